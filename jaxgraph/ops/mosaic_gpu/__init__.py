"""Kernels of `pallas_kernels` as implementations of ops, for GPUs."""
