"""Reductions by XLA alone, without a scatter."""
