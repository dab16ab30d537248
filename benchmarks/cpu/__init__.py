"""Time and memory on CPU beside DGL, PyG, torch and scipy; run as `python -m benchmarks.cpu`."""
