"""Programs that measure jaxgraph's time and memory; each runs as `python -m benchmarks.NAME`."""
