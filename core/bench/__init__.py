"""Benchmarks, and the generated books they read."""
