"""The traffic of the first layer under `mode="p3"`, read from compiled programs."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph import nn
from jaxgraph.analysis import overlapped, traffic
from jaxgraph.analysis.hlo import Instruction, parse
from jaxgraph.layout.column_tables import ColumnRequest
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel import ShardedGraph, make_mesh, place, spmd
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.partition import partition
from jaxgraph.train import compile_train_step
from tests.compilation import AS_USERS_DO
from tests.training import crooked_graph, crooked_sharded

PARTS, HIDDEN = 4, 12
COLLECTIVES = ("all-gather", "all-to-all", "reduce-scatter", "collective-permute", "all-reduce")


def abstract(features: int, parts: int = PARTS, **options: Any) -> ShardedGraph:
    """The crooked graph in mode "p3", without data."""
    graph = crooked_graph(240, num_features=features)
    found = tabulate(
        graph,
        partition(graph, parts, method="hash", seed=0),
        "domain",
        columns=ColumnRequest(**options),
    )
    return place(AbstractSource(found.manifest), make_mesh(parts), "p3")


def first_layer(name: str, features: int, hidden: int = HIDDEN) -> Any:
    convolutions: dict[str, Any] = {"gcn": nn.GCNConv, "sage": nn.SAGEConv, "gin": nn.GINConv}
    return convolutions[name](features, hidden, rngs=nnx.Rngs(0))


def compiled_layer(name: str, sharded: ShardedGraph, features: int) -> jax.stages.Compiled:
    """Values of a first layer and the gradient of its parameters."""
    graphdef, state = nnx.split(first_layer(name, features))

    def step(state: Any, shard: Any) -> Any:
        def loss(state: Any) -> Any:
            y = nnx.merge(graphdef, state)(shard, shard.nodes)
            return shard.sum((shard.mask_rows(y) ** 2).sum())

        return jax.grad(loss)(state)

    return spmd(step).lower(state, sharded).compile(compiler_options=AS_USERS_DO)


def pulled_bytes(sharded: ShardedGraph, groups: int, width: int = HIDDEN) -> float:
    """Padded nodes x hidden x 4 x (groups - 1) / groups, of the nodes of a row of devices."""
    rows = groups * sharded.manifest.node_rows
    return rows * width * 4 * (groups - 1) / groups


@pytest.mark.expensive
@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("features", [9, 100])
@pytest.mark.parametrize("name", ["gcn", "sage", "gin"])
def test_the_first_layer_sends_activations_whatever_the_features(
    name: str, features: int, chunks: int
) -> None:
    sharded = abstract(features, chunks=chunks)
    sent = traffic(compiled_layer(name, sharded, features))
    parameters = sent.pop("all-reduce")  # gradients of parameters, and the loss
    expected = pulled_bytes(sharded, PARTS)
    assert sent.keys() == {"reduce-scatter", "all-gather"}
    assert sent["reduce-scatter"] == pytest.approx(expected, rel=0.02)
    assert sent["all-gather"] == pytest.approx(expected, rel=0.02)
    assert parameters <= 2 * 3 / 4 * 4 * 2 * (features * HIDDEN + HIDDEN**2 + 4 * HIDDEN)


def test_replicas_divide_what_is_sent() -> None:
    """Half of the columns fit into the budget with the edges; all of them do not."""
    sharded = abstract(400, budget=300_000)
    schedule = sharded.manifest.columns
    assert schedule is not None and (schedule.groups, schedule.replicas) == (2, 2)
    sent = traffic(compiled_layer("gcn", sharded, 400))
    assert sent["reduce-scatter"] == pytest.approx(pulled_bytes(sharded, 2), rel=0.02)
    assert sent["all-gather"] == sent["reduce-scatter"]


def test_a_pushed_topology_sends_indices_of_edges() -> None:
    """Activations are unchanged; the additional bytes are integers."""
    sharded = abstract(40, topology="pushed", chunks=2)
    compiled = compiled_layer("gcn", sharded, 40)
    pulled = traffic(compiled)["reduce-scatter"]
    assert pulled == pytest.approx(pulled_bytes(sharded, PARTS), rel=0.02)
    floats = [sent for sent in shapes_sent(compiled) if sent[1].startswith("f")]
    assert {kind for kind, _, _ in floats} <= {"all-reduce", "reduce-scatter", "all-gather"}
    assert all(shape[-1] != width(sharded) for kind, _, shape in floats if kind == "all-gather")


def width(sharded: ShardedGraph) -> int:
    """Columns of a device."""
    assert sharded.manifest.columns is not None
    return sharded.manifest.columns.width


def shapes_sent(compiled: jax.stages.Compiled) -> list[tuple[str, str, tuple[int, ...]]]:
    """Collective, element type and shape of every array that a program sends."""
    text = compiled.as_text()
    assert text is not None
    found = []
    for computation in parse(text).computations.values():
        for instruction in computation.instructions:
            kind = instruction.opcode.removesuffix("-start")
            if kind in COLLECTIVES:
                found += [(kind, *array) for array in arrays_of(instruction)]
    return found


def arrays_of(instruction: Instruction) -> list[tuple[str, tuple[int, ...]]]:
    arrays = re.findall(r"([a-z]+\d*)\[([\d,]*)\]", instruction.shape)
    return [(kind, tuple(int(n) for n in sizes.split(",") if n)) for kind, sizes in arrays]


@pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins") is None,
    reason="compiling for H200 needs the CUDA plugin of jax: pip install 'jaxgraph[cuda]'",
)
@pytest.mark.parametrize("implementation", ["mosaic_gpu", "xla"])
def test_compiled_for_h200_a_chunk_is_reduced_while_the_next_is_computed(
    implementation: str,
) -> None:
    from jaxgraph.planner.targets import find_target

    graph = crooked_graph(2400, num_features=100)
    parts = partition(graph, 8, method="hash", seed=0)
    found = tabulate(graph, parts, "domain", columns=ColumnRequest(chunks=4))
    source = AbstractSource(found.manifest)
    sharded = place(
        source, find_target("h200x8").mesh(emulate=False), "p3", implementation=implementation
    )
    model = nn.GraphSAGE(100, 64, 3, rngs=nnx.Rngs(0))
    compiled = compile_train_step(model, sharded, optax.adam(1e-2))
    for collective in ("reduce-scatter", "all-gather"):
        found_here = overlapped(compiled, collective)
        in_loops = [each for each in found_here if "main" not in each.computation]
        assert in_loops
        for each in in_loops:
            assert each.custom_calls_between or each.loops_between, each


@pytest.mark.expensive
@pytest.mark.parametrize("hidden", [2, HIDDEN])
@pytest.mark.parametrize("name", ["gcn", "sage", "gin"])
def test_padding_of_rows_and_columns_reaches_nothing(name: str, hidden: int) -> None:
    """The layer maps before it aggregates for 2 output features, and after it for more."""
    clean = crooked_sharded(4, "hash", "p3-sar", num_features=9)
    graphdef, state = nnx.split(first_layer(name, 9, hidden))

    def poisoned(shard: Any) -> Any:
        x = shard.nodes
        known = shard.columns.nodes.node_mask[:, None] & x.in_range()
        return dataclasses.replace(x, values=jnp.where(known, x.values, jnp.nan)), known.all()

    def step(state: Any, shard: Any) -> Any:
        def loss(state: Any, x: Any) -> Any:
            y = nnx.merge(graphdef, state)(shard, x)
            return shard.sum((shard.mask_rows(y) ** 2).sum())

        dirty, is_full = poisoned(shard)
        pulled = [jax.value_and_grad(loss)(state, x) for x in (shard.nodes, dirty)]
        return pulled, shard.sum(is_full.astype(int))

    (of_clean, of_dirty), full = spmd(step)(state, clean)
    assert full == 0
    for dirty, expected in zip(jax.tree.leaves(of_dirty), jax.tree.leaves(of_clean), strict=True):
        np.testing.assert_allclose(dirty, expected, rtol=1e-4, atol=1e-5)
