"""The programs that the peers suite starts, each in its peer's environment: but for our own, they need nothing of ours."""
