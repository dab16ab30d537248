"""Programs of graphs of many sizes: those of the latest are held, and no others."""

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.analysis import compilations
from jaxgraph.train.latest_programs import SHAPES, LatestPrograms


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


def test_a_lowered_call_is_compiled_once() -> None:
    added = LatestPrograms(lambda tree, flag: sum(tree) if flag else tree[0], static_argnums=(1,))
    tree = [jnp.ones(3), jnp.ones(3)]
    added.lower([jax.ShapeDtypeStruct((3,), jnp.float32)] * 2, True).compile()
    with compilations() as compiled:
        np.testing.assert_array_equal(added(tree, True), [2, 2, 2])
    assert not compiled
    np.testing.assert_array_equal(added(tree, False), [1, 1, 1])
