"""Moves of a training run to another partition: the gain that is predicted, against the cost.

ROC (section 4.2) partitions anew as its cost model learns. Here a move has to pay within the run:
parts are split and placed again, and the epoch is compiled for their shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.parallel import ShardedGraph, shard
from jaxgraph.partition import Partition, partition
from jaxgraph.partition.node_cost import NodeCost
from jaxgraph.partition.report import count_halo_pairs
from jaxgraph.planner.cost.linear_model import CostModel, node_cost

_LEAST_ERROR = 0.04
"""Relative; measurements of the same part repeat no better."""


@dataclass(frozen=True, eq=False)
class Proposal:
    """A partition to which it pays to move.

    Args:
        partition: the parts.
        gain: seconds of an epoch that the move is predicted to save.
    """

    partition: Partition
    gain: float


def better_partition(
    graph: Graph,
    current: Partition,
    models: Sequence[CostModel],
    *,
    groups: np.ndarray,
    epoch_seconds: float,
    epochs: int,
    move_seconds: float,
    others: Sequence[Partition] = (),
) -> Proposal | None:
    """Searches for a partition whose gain in the epochs that remain exceeds the cost of a move.

        gain = min(1, T / S) ((1 - e) S - S'),   S = max_g sum_{p in g} cost_p

    S and S' are the predicted seconds of all layers on the current and on the new parts, T those of
    an epoch as measured, and e the median error of the models, 4% at least: a gain within it is
    none.
    Evaluation and what is elementwise around layers are not counted, though they gain too. There is
    no search where perfect balance without a halo would not pay.
    """
    cost = node_cost(models, graph)
    seconds = _step_seconds(_costs(graph, current, cost), groups)
    error = max([_LEAST_ERROR, *(_error(model) for model in models)])
    scale = min(1.0, epoch_seconds / seconds) if seconds else 0.0

    def gain(other: np.ndarray) -> float:
        return scale * ((1 - error) * seconds - _step_seconds(other, groups))

    if gain(_least(cost, current.num_parts)) * epochs <= move_seconds:
        return None
    candidates = [
        *others,
        partition(graph, current.num_parts, "cost", node_cost=cost),
        partition(graph, current.num_parts, "metis", balance="edges"),
    ]
    found = [Proposal(each, gain(_costs(graph, each, cost))) for each in candidates]
    best = max(found, key=lambda proposal: proposal.gain)
    return best if best.gain * epochs > move_seconds else None


def _step_seconds(costs: np.ndarray, groups: np.ndarray) -> float:
    """The seconds of the slowest group of parts: max_g sum_{p in g} cost_p."""
    return float(np.bincount(groups, costs).max())


def groups_of(sharded: ShardedGraph) -> np.ndarray:
    """The groups of parts that are computed one after the other; see `better_partition`."""
    devices = np.arange(sharded.num_parts)
    is_cpu = sharded.mesh.devices.flat[0].platform == "cpu"
    return np.zeros_like(devices) if is_cpu else devices


def _costs(graph: Graph, parts: Partition, cost: NodeCost) -> np.ndarray:
    return cost.of_parts(parts.assignment, count_halo_pairs(graph, parts))


def _least(cost: NodeCost, num_parts: int) -> np.ndarray:
    """The costs of parts that are balanced perfectly and have no halo."""
    rows = -(-cost.num_nodes // num_parts)
    share = float(cost.per_node.sum()) / num_parts
    return np.full(num_parts, share + cost.per_part + cost.per_padded_row * rows)


def _error(model: CostModel) -> float:
    is_known = len(np.unique(model.values, axis=0)) > 1
    return model.error().median if is_known else 0.0


def partition_of(sharded: ShardedGraph) -> Partition:
    """Reads the parts of a sharded graph, and the order of their nodes, from its devices."""
    shards, count = sharded.shards, sharded.num_nodes
    ids, mask = (
        np.asarray(leaf).reshape(sharded.num_parts, -1)
        for leaf in (shards.node_ids, shards.node_mask)
    )
    part = np.nonzero(mask)[0]
    assignment, rank = np.empty(count, np.int32), np.empty(count, np.int32)
    assignment[ids[mask]] = part
    rank[ids[mask]] = np.arange(count)
    return Partition(assignment, sharded.num_parts, rank=rank)


def move_to(graph: Graph, parts: Partition, like: ShardedGraph) -> ShardedGraph:
    """Splits a graph as it is in another sharded graph: mesh, mode, kernels, type of features."""
    shards = like.shards
    held = shards.manifest.array_shapes().get(shards.manifest.feature_array)
    return shard(
        graph,
        parts,
        like.mesh,
        shards.manifest.mode,
        prefetch=shards.exchange.prefetch,
        implementation=shards.implementation,
        node_dtype=None if graph.nodes is None or held is None else held[1],
    )
