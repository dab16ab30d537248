"""Programs that request large pages, which changes nothing but their first instruction."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
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
from jaxgraph.parallel import Shard, ShardedGraph, make_mesh, shard
from jaxgraph.partition import partition
from jaxgraph.process import use_large_pages
from jaxgraph.train import NodeClassification, compile_train_step, initial_state
from jaxgraph.train.task import Sums
from tests.strategies import NUM_CLASSES
from tests.training import crooked_graph

needs_kernels = pytest.mark.skipif(bool(missing()), reason=missing())
LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
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


def asked_bytes() -> int:
    """Bytes of this process's memory for which Linux was asked for large pages."""
    of_mappings = re.findall(
        r"^Size: +(\d+) kB$.*?^VmFlags:(.*?)$", Path("/proc/self/smaps").read_text(), re.M | re.S
    )
    return sum(1024 * int(size) for size, flags in of_mappings if "hg" in flags.split())


def without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "_WORTHWHILE", 1 << 62)
    jax.clear_caches()


def for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "_WORTHWHILE", 0)
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


class Watched(NodeClassification):
    """A task that returns the requested bytes instead of the loss."""

    def sums(self, outputs: jax.Array, shard: Shard, split: str) -> Sums:
        """As given, with the bytes among them."""
        # The check of functions of a shard does not follow its results.
        device = jax.lax.axis_index(shard.axis)
        asked = jax.pure_callback(
            lambda _: np.float32(asked_bytes()),
            jax.ShapeDtypeStruct((), jnp.float32),
            jax.lax.stop_gradient((outputs * device)[0, 0]),
        )
        return {**super().sums(outputs, shard, split), "asked": asked + 0 * device}

    def metrics(self, sums: Sums) -> Mapping[str, jax.Array]:
        """As given, but for the loss."""
        found = super().metrics(sums)
        return {**found, "loss": 0 * found["loss"] + sums["asked"]}


def asked_share(name: str, worthwhile: int) -> float:
    """The share of a step's temporary memory for which it asks for large pages."""
    large_pages._WORTHWHILE = worthwhile
    use_large_pages()
    sharded, model = sharded_graph(MANY_NODES), make_model(name)
    program = compile_train_step(model, sharded, optax.adam(0.1), task=Watched())
    state, shares = initial_state(model, sharded, optax.adam(0.1)), []
    for _ in range(5):
        before = asked_bytes()
        state, asked = program(state, sharded, jax.random.key(0))
        shares.append((float(asked) - before) / temporary(program))
    return float(np.median(shares))


@pytest.mark.slow
@needs_kernels
@pytest.mark.skipif(not LARGE_PAGES.exists(), reason="this system has no large pages to ask for")
@pytest.mark.parametrize("name", ["GCN", "GAT"])
@pytest.mark.parametrize("is_asking", [True, False])
def test_linux_is_asked_for_all_that_a_program_makes(name: str, is_asking: bool) -> None:
    """Not for the memory of its results."""
    # In a process of its own: memory that other tests have left is asked for and given back beside.
    worthwhile = 0 if is_asking else 1 << 62
    call = f"print(module.asked_share({name!r}, {worthwhile}))"
    run = subprocess.run(
        [sys.executable, "-c", f"import {__name__} as module; {call}"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert (float(run.stdout) > 0.95) == is_asking


@pytest.mark.slow
@needs_kernels
@pytest.mark.parametrize("name", ["GCN", "GraphSAGE", "GAT"])
@pytest.mark.parametrize("parts", [1, 2])
def test_the_same_bits(name: str, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sharded, model = sharded_graph(500, parts), make_model(name)
    found = []
    for setting in (for_all, without):
        setting(monkeypatch)
        program = step_of(sharded, model)
        assert asks(program) == (setting is for_all)
        state = initial_state(model, sharded, optax.adam(0.1))
        losses = []
        for _ in range(3):
            state, loss = program(state, sharded, jax.random.key(0))
            losses.append(loss)
        found.append((losses, state.params))
    jax.tree.map(np.testing.assert_array_equal, *found)


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
