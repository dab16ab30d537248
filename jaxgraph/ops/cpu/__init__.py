"""Implementations of the ops for CPUs: compiled kernels that XLA custom calls run."""
