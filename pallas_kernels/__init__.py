"""Mosaic GPU kernels: arrays, configurations, launch shapes; nothing of graphs or derivatives."""
