"""Graphs sharded in given sizes: one compiled program for all of them, and the results of each."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgraph as jg
from jaxgraph import Graph
from jaxgraph.analysis import compilations
from jaxgraph.parallel import (
    PartSizes,
    ShardedGraph,
    gather_rows,
    make_mesh,
    propagate,
    shard,
    spmd,
)
from jaxgraph.partition import Partition
from tests.layers.neighborhood_cases import CASES
from tests.strategies import NUM_CLASSES, complete, random_edges
from tests.tolerance import assert_close

NODES, EDGES = 40, 160
SIZES = PartSizes(nodes=NODES, edges=EDGES, classes=NUM_CLASSES, edge_types=3)
TIGHT = PartSizes(
    nodes=NODES, edges=EDGES, leaving=EDGES, halo=38, longest=150, classes=NUM_CLASSES, edge_types=3
)


def cases() -> list[tuple[Graph, bool]]:
    """Graphs of very different edges, and whether one part holds all nodes."""
    hub, others = np.zeros(150, int), random_edges(39, 150, 1)[0] + 1
    edges: dict[str, tuple[Any, int]] = {
        "random": (random_edges(40, 160, 0), 40),
        "hub-to": ((others, hub), 40),
        "hub-from": ((hub, others), 40),
        "no-edges": (([], []), 30),
        "in-one-part": (random_edges(38, 160, 2), 38),
    }
    return [
        (complete(ends[0], ends[1], size, name, len(name), edge_data=True), name == "in-one-part")
        for name, (ends, size) in edges.items()
    ]


def step(params: Any, sharded: ShardedGraph, name: str) -> Any:
    """A convolution and a weighted sum of the labelled rows in the mask, and their gradients."""

    def on_shard(params: Any, shard: Any) -> Any:
        def loss(params: Any, x: Any) -> Any:
            weight = shard.edge_weight if name.startswith("gcn") else None
            seen = shard.replace(edges=None, edge_type=None, edge_weight=weight)
            y = CASES[name].conv(params, seen, x)
            sums = propagate(shard, lambda s, r, w: s * w[:, None], x, None, shard.edge_weight)
            rows = jnp.concatenate([y, sums], 1)
            weight = jnp.sin(1.0 + shard.node_ids + shard.labels)[:, None]
            chosen = jnp.where(shard.train_mask[:, None], rows * weight, 0.0)
            return shard.sum(jnp.sum(chosen)), rows

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, shard.nodes)

    outputs = (("replicated", "rows"), ("replicated", "rows"))
    return spmd(on_shard, outputs=outputs)(params, sharded)


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("mode", "parts", "devices", "sizes", "name", "by"),
    [
        ("sar", 1, 1, SIZES, "gcn-narrow", "xla"),
        ("domain", 1, 1, SIZES, "sage-max", None),
        ("sar", 2, 2, SIZES, "gat", None),
        ("sar", 4, 4, SIZES, "gcn-narrow", "xla"),
        ("sar", 4, 4, TIGHT, "sage-max", "xla"),
        ("sar", 4, 4, TIGHT, "gcn-narrow", None),
        ("sar", 4, 2, SIZES, "gcn-narrow", None),
        ("domain", 2, 2, TIGHT, "gat", "xla"),
        ("domain", 4, 4, SIZES, "gcn-narrow", None),
    ],
)
def test_one_program_runs_on_all_graphs_of_the_same_sizes(
    mode: str, parts: int, devices: int, sizes: PartSizes, name: str, by: str | None
) -> None:
    case, mesh = CASES[name], make_mesh(devices)
    run, alone = (jax.jit(step, static_argnums=2) for _ in range(2))
    for number, (graph, in_one) in enumerate(cases()):
        owner = np.random.default_rng(0).integers(0, 1 if in_one else parts, graph.num_nodes)
        partition = Partition.from_assignment(owner, parts)
        options: dict[str, Any] = {"mode": mode, "implementation": by}
        padded = shard(graph, partition, mesh, pad_to=sizes, **options)
        assert padded.num_nodes == graph.num_nodes
        assert padded.padding().edges == graph.num_edges
        with compilations() as compiled:
            found = run(case.params, padded, name)
        assert len(compiled) == (number == 0), graph.name
        plain = shard(graph, None, make_mesh(1), implementation=by)
        expected = alone(case.params, plain, name)
        rows, others = (
            (gather_rows(each[0][1], of), gather_rows(each[1][1], of))
            for each, of in ((found, padded), (expected, plain))
        )
        assert_close(rows[0], others[0], reduction_length=1000, name=graph.name)
        assert_close(rows[1], others[1], reduction_length=5000, name=graph.name)
        for key, value in expected[1][0].items():
            # Gradients of attention cancel: their sum may be far below its addends.
            np.testing.assert_allclose(found[1][0][key], value, 1e-4, 1e-4, err_msg=key)


def test_features_are_held_in_the_dtype_asked_for() -> None:
    graph, _ = cases()[0]
    held = shard(graph, None, make_mesh(1), pad_to=SIZES, node_dtype=jnp.bfloat16)
    nodes: Any = held.shards.nodes
    assert nodes.dtype == jnp.bfloat16 and nodes.shape == (1, NODES, graph.num_features)


def test_sizes_belong_to_modes_sar_and_domain() -> None:
    graph, _ = cases()[0]
    parts = jg.partition.partition(graph, 2, method="hash")
    with pytest.raises(ValueError, match="mode='p3' takes no pad_to"):
        shard(graph, parts, make_mesh(2), "p3", pad_to=SIZES)
    with pytest.raises(ValueError, match="pad_to: not for mode='stream'"):
        shard(graph, parts, make_mesh(1), "stream", pad_to=SIZES)
    with pytest.raises(ValueError, match="does not fit into pad_to: nodes 40 > 39"):
        shard(
            graph,
            None,
            make_mesh(1),
            pad_to=PartSizes(nodes=39, edges=160, classes=3, edge_types=3),
        )
