"""Conversations: a tree of questions and answers, its file, all of them on disk."""
