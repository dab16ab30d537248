"""The comparison on one GPU: kernels checked on the chip, then timed beside peers and bounds."""
