"""Proposals of better partitions, from a cost model that is known."""

import numpy as np
import pytest

from jaxgraph import Graph
from jaxgraph.parallel import make_mesh, shard
from jaxgraph.parallel.part_alone import part_alone
from jaxgraph.partition import Partition, partition
from jaxgraph.planner import CostModel
from jaxgraph.planner.cost.features import Access
from jaxgraph.planner.cost.moves import better_partition, groups_of, move_to, partition_of
from tests.training import crooked_graph

PARTS, PER_EDGE = 4, 1e-6


def degree_ordered(num_nodes: int = 400) -> Graph:
    """Node i receives edges in proportion to 1 / (i + 1), from senders at random."""
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(1, num_nodes + 1)
    receivers = rng.choice(num_nodes, 20 * num_nodes, p=weights / weights.sum())
    senders = rng.integers(0, num_nodes, receivers.size)
    return Graph.from_edges(
        senders.astype(np.int32), receivers.astype(np.int32), num_nodes=num_nodes
    )


def edges_only() -> CostModel:
    """A layer that takes a microsecond for an edge."""
    edges = np.array([[1e3], [2e3], [5e3]])
    return CostModel("GCN", "sar", "chip", Access(8, 32), ("edges",), edges, PER_EDGE * edges[:, 0])


def propose(**changes: object) -> tuple[Graph, Partition | None, float]:
    """The proposal for equal vertices, and its gain."""
    graph = degree_ordered()
    wishes: dict = {"groups": np.arange(PARTS), "epoch_seconds": 1.0, "epochs": 1000}
    current = partition(graph, PARTS, "equal-vertices")
    wishes |= {"move_seconds": 2.0} | changes
    found = better_partition(graph, current, [edges_only()], **wishes)
    return graph, None if found is None else found.partition, 0.0 if found is None else found.gain


def slowest_edges(graph: Graph, parts: Partition) -> float:
    return float(np.bincount(parts.assignment, graph.in_degrees(), PARTS).max())


@pytest.mark.slow
def test_a_proposal_gains_what_the_slowest_part_loses() -> None:
    graph, parts, gain = propose()
    assert parts is not None
    before = slowest_edges(graph, partition(graph, PARTS, "equal-vertices"))
    after = slowest_edges(graph, parts)
    assert after < 0.5 * before
    assert gain == pytest.approx(PER_EDGE * (0.96 * before - after), rel=1e-3)
    # Layers that take longer alone than an epoch does cannot save more than their share of it.
    assert propose(epoch_seconds=PER_EDGE * before / 2)[2] == pytest.approx(gain / 2, rel=1e-3)


def test_there_is_none_where_it_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    # Emulated devices share the cores, so that balance alone gains nothing.
    assert propose(groups=np.zeros(PARTS, int))[1] is None
    monkeypatch.setattr("jaxgraph.planner.cost.moves.partition", None)  # Not even a search.
    assert propose(epochs=100)[1] is None


def test_a_move_keeps_mesh_mode_and_type_of_features() -> None:
    graph = crooked_graph()
    first = partition(graph, PARTS, "hash", order="degree")
    second = partition(graph, PARTS, "equal-edges")
    mesh = make_mesh(PARTS)
    like = shard(graph, first, mesh, "domain", implementation="xla", node_dtype="bfloat16")
    np.testing.assert_array_equal(partition_of(like).assignment, first.assignment)
    back = move_to(graph, partition_of(like), like)
    np.testing.assert_array_equal(back.shards.node_ids, like.shards.node_ids)
    moved = move_to(graph, second, like)
    np.testing.assert_array_equal(partition_of(moved).assignment, second.assignment)
    assert moved.mesh == mesh and moved.shards.manifest.mode == "domain"
    assert moved.shards.implementation == "xla"
    assert getattr(moved.shards.nodes, "dtype", None) == "bfloat16"
    assert moved.seconds > 0
    assert groups_of(like).tolist() == [0] * PARTS  # On CPU.
    # Another device computes the same part.
    here, there = part_alone(moved, 3), part_alone(moved, 3, mesh.devices.flat[0])
    assert there.receivers.node_ids.devices() == {mesh.devices.flat[0]}
    np.testing.assert_array_equal(here.senders.node_ids, there.senders.node_ids)
