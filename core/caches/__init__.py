"""The key/value caches: full, retrieval, streaming. Each has seen a prefix of the committed tokens."""
