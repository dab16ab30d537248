"""The comparison on one GPU: kernels are checked, then timed against peers and bounds."""
