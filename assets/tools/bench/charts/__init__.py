"""Figures of benchmark documents, drawn with matplotlib."""
