"""Generated books: writing them, questions about them, and `launch.py book`, which saves both as files."""
