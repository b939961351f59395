"""Where keys and values live: full, retrieval, streaming. Each has seen a prefix of the committed tokens."""
