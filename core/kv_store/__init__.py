"""Prefilled books on disk: what the full cache holds of a book, written once, opened in seconds after a restart."""
