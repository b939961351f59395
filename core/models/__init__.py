"""Models come from transformers; here is the seam to our caches, the catalogue, loading, and the verifier."""
