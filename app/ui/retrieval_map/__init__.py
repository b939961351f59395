"""Which pages of the book the retrieval cache held for an answer."""
