"""Programs that time and weigh jaxgraph; each runs as `python -m benchmarks.NAME`."""
