"""Programs of graphs of many sizes: those of the latest are held, and no others."""

import gc
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxgraph.train import fit, latest_programs
from jaxgraph.train.latest_programs import SHAPES, LatestPrograms
from tests.times import compilations
from tests.train.small_model import SmallNet, on_devices, small_graph


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


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux lists mappings of memory")
def test_fits_of_new_sizes_hold_few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program takes mappings of memory, of which a process has a limited number."""
    monkeypatch.setattr(latest_programs, "SHAPES", 2)
    counts = []
    for nodes in range(40, 48):
        graph = on_devices(small_graph(nodes), 1)
        fit(SmallNet(), graph, optax.adam(0.0375), epochs=1, aggregate_once=False)
        gc.collect()
        counts.append(mappings())
    first = counts[1] - counts[0]
    assert first > 20
    assert counts[-1] - counts[2] < first
