"""The programs that the peers suite starts, each in its peer's environment: only `ours` and `stock` need ours."""
