"""Saved books: the full cache's contents for a book on disk, written once, opened in seconds after a restart."""
