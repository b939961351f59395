"""Tensor operations without knowledge of models: attention, transfers and CUDA graphs."""
