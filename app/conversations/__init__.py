"""Conversations: a tree of questions and answers, its file, and the store of all files."""
