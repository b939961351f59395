"""Speculative decoding: distributions from logits, accept or correct, one round, and the compositions of it."""
