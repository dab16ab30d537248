"""The mark of tests that need the CPU kernels."""

import pytest

from jaxgraph.ops.cpu.library import missing

needs_kernels = pytest.mark.skipif(bool(missing()), reason=missing())
"""Skips a test, with the reason, where the kernels were not built."""
