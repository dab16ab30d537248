import sys

import numpy as np
import pytest

from benchmarks.cpu import resident

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MEGABYTE = 1 << 20


@linux_only
def test_the_peak_is_that_since_it_was_reset():
    resident.settle()
    if not resident.reset_peak():
        pytest.skip("the system does not let a process reset its peak")
    before = resident.resident_bytes()
    np.ones(64 * MEGABYTE, np.uint8)
    assert resident.peak_bytes() - before > 60 * MEGABYTE
    resident.settle()
    resident.reset_peak()
    assert resident.peak_bytes() - before < 30 * MEGABYTE
