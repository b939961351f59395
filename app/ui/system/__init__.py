"""The tab "System": what runs, on what, how fast, and where data lies."""
