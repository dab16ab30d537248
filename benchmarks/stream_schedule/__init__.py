"""Benchmarks of how a streamed graph visits the devices."""
