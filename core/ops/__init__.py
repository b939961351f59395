"""Tensor operations without state: attention, later transfers and graphs."""
