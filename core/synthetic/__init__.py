"""Generated books whose facts are recorded, for benchmarks and training."""
