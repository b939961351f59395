"""What a machine has, what fits on it, where it would lie, and what a pass should cost. Pure arithmetic."""
