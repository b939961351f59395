"""The programs that the peers suite starts: each runs in its peer's environment, so these modules need nothing of ours."""
