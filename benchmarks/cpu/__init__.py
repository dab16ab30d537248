"""Time and memory on CPU against DGL, PyG, torch and scipy; run as `python -m benchmarks.cpu`."""
