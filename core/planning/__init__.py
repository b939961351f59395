"""What a machine has, what fits on it and where, and what a pass should cost. Pure arithmetic."""
