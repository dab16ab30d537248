"""GPU kernels on groups of edges, in Pallas' interpreter, against float64 NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.layout.derived.row_splits import split_rows
from jaxgraph.ops.core.edges import EdgeGroup, EdgeGroups, Orientation, RowSplits
from jaxgraph.ops.mosaic_gpu.calls import (
    edge_products,
    neighbor_sum,
)
from pallas_kernels import schedule
from pallas_kernels.teams import Launch
from tests.ops.cpu.groups import group_edges, hub_edges
from tests.pallas_kernels.graphs import in_interpreter, needs_clusters

EDGES = hub_edges(80)
GROUP_OF_EDGE = np.random.default_rng(5).integers(0, 2, 80)
IN_SECOND = GROUP_OF_EDGE == 1


def cut(edges: EdgeGroups, monkeypatch: pytest.MonkeyPatch) -> EdgeGroups:
    """The same edges, rows of more than 10 cut."""
    monkeypatch.setattr(schedule, "SHORTEST", 10)

    def orientation(side: Orientation) -> Orientation:
        fields = ("neighbors", "compressed_ptr", "compressed_rows", "compressed_starts")
        tables = {name: np.asarray(getattr(side, name)) for name in fields}
        lengths = np.diff(tables["compressed_starts"][: tables["compressed_ptr"][-1] + 1])
        made = split_rows(tables, lengths, len(side.position))
        arrays = {name: jnp.asarray(x, jnp.int32) for name, x in made.items()}
        cut = RowSplits(**arrays, partials=len(arrays["split_rows"]), spread=False)
        return dataclasses.replace(side, cut=cut)

    return dataclasses.replace(
        edges,
        by_receiver=orientation(edges.by_receiver),
        by_sender=orientation(edges.by_sender),
    )


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(len(shape)).standard_normal(shape), jnp.float32)


@pytest.mark.expensive
@pytest.mark.parametrize("cluster", [1, pytest.param(2, marks=needs_clusters)])
@pytest.mark.parametrize("side", ["receiver", "sender"])
def test_one_group_after_the_other(
    side: str, cluster: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = cut(group_edges(EDGES, GROUP_OF_EDGE), monkeypatch)
    x, rows = draw(EDGES.num_nodes, 2, 3), EDGES.num_nodes

    monkeypatch.setattr(Launch, "here", lambda: in_interpreter(cluster=cluster))

    @jax.jit
    def both(x: jax.Array, second: jax.Array) -> jax.Array:
        first = neighbor_sum(EdgeGroup(groups, 0), side, x, rows)
        over = EdgeGroup(groups, second)
        return neighbor_sum(over, side, x, rows, before=first)

    exact = np.asarray(x, np.float64)
    if side == "receiver":
        expected = EDGES.sum_by_receiver(exact[EDGES.senders])
    else:
        expected = EDGES.sum_by_sender(exact[EDGES.receivers])
    np.testing.assert_allclose(both(x, jnp.int32(1)), expected, rtol=1e-5, atol=1e-5)


def test_products_of_one_group_leave_the_slots_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launch, "here", in_interpreter)
    groups = group_edges(EDGES, GROUP_OF_EDGE)
    x, z = draw(EDGES.num_nodes, 2, 4), draw(EDGES.num_nodes, 2, 4) + 1
    y = edge_products(EdgeGroup(groups, 1), x, z, heads=2)
    products = np.asarray(x, np.float64)[EDGES.receivers] * np.asarray(z)[EDGES.senders]
    by_slot = np.lexsort((EDGES.receivers, GROUP_OF_EDGE))
    expected = np.where(IN_SECOND[:, None], products.sum(-1), 0)[by_slot]
    np.testing.assert_allclose(y[:80], expected, rtol=1e-5, atol=1e-5)
