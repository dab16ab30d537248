"""Typed graphs beside PyG and DGL; see `benchmarks.typed.__main__`."""
