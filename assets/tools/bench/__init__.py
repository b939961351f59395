"""Benchmark suites, and the texts they read."""
