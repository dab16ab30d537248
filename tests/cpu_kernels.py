"""Tests of the CPU kernels, where these are there."""

import pytest

from jaxgraph.ops.cpu.library import missing

needs_kernels = pytest.mark.skipif(bool(missing()), reason=missing())
"""Leaves a test out, saying what is missing, where the kernels were not built."""
