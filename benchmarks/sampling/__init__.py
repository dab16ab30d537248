"""Samples beside DGL's; see `benchmarks.sampling.__main__`."""
