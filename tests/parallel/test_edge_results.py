"""Results by edge slot come back in the order of the graph's edges."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.parallel import edge_messages, gather_edges, make_mesh, shard, spmd
from jaxgraph.partition import Partition, partition
from tests.strategies import skewed_assignment
from tests.training import P3_MODES, crooked_graph

GRAPH = crooked_graph(edge_weight=True)
LAYOUTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "whole": (1, 1, {}),
    "domain": (3, 3, {"mode": "domain"}),
    "sar": (4, 4, {"mode": "sar", "prefetch": True}),
    "several-sar": (6, 2, {"mode": "sar"}),
    "several-domain": (4, 2, {"mode": "domain"}),
    "p3": (4, 4, {"mode": "p3", **P3_MODES["p3-sar-pushed"]}),
}
"""Parts, devices, and options of `shard`."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_both_ends_and_data_of_every_edge(name: str) -> None:
    parts, devices, options = LAYOUTS[name]
    split = Partition(skewed_assignment(GRAPH.num_nodes, parts), parts, "skewed")
    sharded = shard(GRAPH, split, make_mesh(devices), **options)

    def ends(own: Any) -> Any:
        ids = own.node_ids.astype(jnp.float32)
        found = edge_messages(
            own, lambda s, r, e: jnp.stack([s, r, e], 1), ids, ids, own.edge_weight
        )
        return found, own.edge_weight

    run = spmd(ends, outputs="edges")
    found, weights = (gather_edges(v, sharded, GRAPH, split) for v in run(sharded))
    expected = np.stack([GRAPH.senders, GRAPH.receivers, np.asarray(GRAPH.edge_weight)], 1)
    np.testing.assert_array_equal(found, expected.astype(np.float32))
    np.testing.assert_array_equal(weights, GRAPH.edge_weight)


def test_what_does_not_belong_together_is_refused() -> None:
    split = partition(GRAPH, 2, method="hash", seed=0)
    sharded = shard(GRAPH, split, make_mesh(2))
    values = spmd(lambda own: own.edge_weight, outputs="edges")(sharded)
    turned = GRAPH.replace(senders=GRAPH.receivers, receivers=GRAPH.senders)
    others = [(GRAPH, partition(GRAPH, 2, method="hash", seed=1)), (GRAPH, None), (turned, split)]
    for graph, parts in others:
        with pytest.raises(ValueError, match="of another graph or partition; pass those"):
            gather_edges(values, sharded, graph, parts)
    wrongs: tuple[Any, ...] = (values[1:], np.zeros(3))
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"outputs='edges'\) returns it"):
            gather_edges(wrong, sharded, GRAPH, split)
    with pytest.raises(ValueError, match="got a Graph for the sharded graph; expected"):
        gather_edges(values, GRAPH, GRAPH, split)  # pyright: ignore[reportArgumentType]
