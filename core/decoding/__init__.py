"""Speculative decoding: distributions from logits, verification, one round, and the methods composed of these."""
