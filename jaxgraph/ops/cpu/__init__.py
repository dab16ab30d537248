"""Implementations of the ops for CPUs: compiled kernels behind XLA custom calls."""
