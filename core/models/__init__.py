"""Models of transformers: the interface to our caches, the catalogue, loading and cached passes."""
