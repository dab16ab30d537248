"""Programs of graphs of many sizes: those of the latest are held, and no others."""

import gc
from typing import Any

import jax
import numpy as np
import pytest

from jaxgraph.train.latest_programs import SHAPES, LatestPrograms
from tests.times import compilations


@pytest.mark.slow
def test_the_programs_of_the_latest_shapes_are_held() -> None:
    client: Any = jax.devices()[0].client
    doubled = LatestPrograms(lambda x: 2 * x)
    gc.collect()
    before = len(client.live_executables())
    for size in range(SHAPES + 5):
        np.testing.assert_array_equal(doubled(np.ones(size)), np.full(size, 2))
    gc.collect()
    assert len(client.live_executables()) == before + SHAPES
    with compilations() as compiled:
        doubled(np.ones(SHAPES))
    assert not compiled
    del doubled
    gc.collect()
    assert len(client.live_executables()) == before
