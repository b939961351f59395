"""The peers suite: this program beside others on the same weights, prompt and threads, each run in its own process."""
