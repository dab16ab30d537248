"""Programs that request large pages, which changes nothing but their first instruction."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph import nn
from jaxgraph.ops import large_pages
from jaxgraph.ops.cpu.library import missing
from jaxgraph.ops.large_pages import on_large_pages
from jaxgraph.parallel import ShardedGraph, make_mesh, shard
from jaxgraph.partition import partition
from jaxgraph.train import compile_train_step
from tests.strategies import NUM_CLASSES
from tests.training import crooked_graph

needs_kernels = pytest.mark.skipif(bool(missing()), reason=missing())
WIDTH = 64
MANY_NODES = 140_000
"""A step of two layers allocates two arrays of 36 MB."""


def sharded_graph(num_nodes: int, parts: int = 1, **options: Any) -> ShardedGraph:
    graph = crooked_graph(num_nodes, num_features=WIDTH)
    return shard(
        graph, partition(graph, parts, "equal-vertices"), make_mesh(parts), mode="sar", **options
    )


def make_model(name: str = "GCN", **options: Any) -> nnx.Module:
    return getattr(nn, name)(WIDTH, WIDTH, NUM_CLASSES, rngs=nnx.Rngs(0), **options)


def step_of(sharded: ShardedGraph, model: nnx.Module | None = None) -> jax.stages.Compiled:
    return compile_train_step(model or make_model(), sharded, optax.adam(0.1))


def asks(program: jax.stages.Compiled) -> bool:
    return "jaxgraph_large_pages" in str(program.as_text())


def temporary(program: jax.stages.Compiled) -> int:
    memory = program.memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes


def without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "_WORTHWHILE", 1 << 62)
    jax.clear_caches()


@pytest.mark.slow
@needs_kernels
@pytest.mark.parametrize("parts", [1, 2])
def test_a_large_program_asks_and_takes_no_more_memory(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharded = sharded_graph(parts * MANY_NODES, parts)
    asking = step_of(sharded)
    without(monkeypatch)
    plain = step_of(sharded)
    assert asks(asking)
    assert not asks(plain)
    assert temporary(asking) <= 1.02 * temporary(plain)


@pytest.mark.parametrize(
    ("num_nodes", "implementation"),
    [(120, None), pytest.param(MANY_NODES, "xla", marks=pytest.mark.slow)],
)
def test_small_programs_and_portable_ones_do_not(num_nodes: int, implementation: Any) -> None:
    assert not asks(step_of(sharded_graph(num_nodes, implementation=implementation)))


@needs_kernels
def test_what_is_copied() -> None:
    """Parameters keep their bits; tables of parameters are unchanged."""
    tree = {
        "small": jnp.asarray([-0.0, np.nan, np.inf, 1e-42], jnp.float32),
        "half": jnp.asarray([-0.0, 3.14], jnp.bfloat16),
        "integers": jnp.arange(3),
        "scalar": jnp.float32(2),
        "table": jnp.ones((1 << 10, 1 << 9)),
    }
    found = jax.jit(on_large_pages, static_argnums=1)(tree, 1 << 24)
    for name, leaf in tree.items():
        bits = np.dtype(f"u{leaf.dtype.itemsize}")
        np.testing.assert_array_equal(
            np.asarray(found[name]).view(bits), np.asarray(leaf).view(bits), err_msg=name
        )
    text = jax.jit(on_large_pages, static_argnums=1).lower(tree, 1 << 24).as_text()
    assert text.count("stablehlo.select") == len(tree) - 1
    assert on_large_pages(tree, 1 << 23) is tree
