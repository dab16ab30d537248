"""Rows whose pieces a cluster joins: the bits of a second kernel, and no races."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.attention import attention_output, attention_state
from pallas_kernels.attention_gradient import Adjoint, Edges, attention_gradients
from pallas_kernels.attention_logits import DOT, GAT, GATV2
from pallas_kernels.extremum import neighbor_extremum
from pallas_kernels.neighbor_sum import Neighbors, neighbor_mean, neighbor_sum
from tests.pallas_kernels.attention_oracle import make_attention, start_of_gradients, transposed
from tests.pallas_kernels.graphs import Graph, graph, in_interpreter, needs_clusters

pytestmark = needs_clusters

DEGREES, NEIGHBORS, LONGEST = [23, 2, 0, 9, 1, 14, 2, 5, 7], 6, 4
"""Five rows are cut: of two clusters one has three."""

every_kind = pytest.mark.parametrize(
    "kind", [GAT, GATV2, pytest.param(DOT, marks=pytest.mark.slow)]
)


def two_ways(run: Any, *arrays: Any, warpgroups: int = 1, cluster: int = 2) -> list[Any]:
    """The results where clusters join the pieces of rows, and where a second kernel does."""
    launches = in_interpreter(warpgroups, cluster), in_interpreter()
    return [
        jax.jit(lambda *a, launch=launch: run(*a, launch=launch))(*arrays) for launch in launches
    ]


def assert_same_bits(run: Any, *arrays: Any, **how: int) -> None:
    jax.tree.map(np.testing.assert_array_equal, *two_ways(run, *arrays, **how))


def over_edges(**options: Any) -> Graph:
    over = graph(DEGREES, NEIGHBORS, longest=LONGEST, **options)
    assert over.rows.joined is not None and over.rows.joined.bounds.tolist() == [1, 6, 0]
    return over


def draw(*shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(jnp.dtype(dtype))


@pytest.mark.parametrize(
    ("warpgroups", "cluster"), [(1, 2), (2, 2), pytest.param(1, 4, marks=pytest.mark.slow)]
)
def test_weighted_sums(warpgroups: int, cluster: int) -> None:
    over, width = over_edges(), 8
    edges = Neighbors(
        draw(NEIGHBORS, 2 * width), over.neighbors, draw(over.num_edges, 2), over.slots
    )
    before = draw(len(DEGREES), 2 * width)
    assert_same_bits(neighbor_sum, edges, over.rows, before, warpgroups=warpgroups, cluster=cluster)


def test_means_of_16_bits() -> None:
    over, width, rows = over_edges(every=True), 41, len(DEGREES)
    edges = Neighbors(draw(NEIGHBORS, width, dtype="float16"), over.neighbors)
    results = (
        jax.ShapeDtypeStruct((rows, width), "float16"),
        jax.ShapeDtypeStruct((rows, 1), "float32"),
    )
    assert_same_bits(
        lambda edges, rows, launch: neighbor_mean(edges, rows, results, launch=launch),
        edges,
        over.rows,
    )


def test_winners() -> None:
    over, width = over_edges(), 8
    start = np.zeros((len(DEGREES), width), np.float32)
    before = (start - np.inf, start)
    # Equal values, so that pieces must agree on the winner.
    x = np.round(draw(NEIGHBORS, width))
    assert_same_bits(
        lambda *a, launch: neighbor_extremum(*a, maximum=True, launch=launch),
        x,
        over.rows,
        over.neighbors,
        before,
    )


@every_kind
def test_attention(kind: str) -> None:
    over, heads, width = over_edges(every=True), 2, 8
    attention = make_attention(over, kind, heads, width, "float32", NEIGHBORS, False)
    rows = len(DEGREES)
    before = (
        draw(rows, heads),
        np.abs(draw(rows, heads)),
        draw(rows, heads * width),
    )
    number, sums = (jax.ShapeDtypeStruct(each.shape, "float32") for each in before[1:])
    assert_same_bits(attention_state, attention, over.rows, over.neighbors, before)
    assert_same_bits(
        lambda a, rows, neighbors, launch: attention_output(
            a, rows, neighbors, (number, number, sums), launch=launch
        ),
        attention,
        over.rows,
        over.neighbors,
    )


@every_kind
def test_gradients_of_attention(kind: str) -> None:
    over, heads, width = over_edges(), 2, 8
    back = transposed(over, NEIGHBORS, LONGEST)
    attention = make_attention(over, kind, heads, width, "float32", NEIGHBORS, False)
    adjoint = Adjoint(draw(len(DEGREES), heads * width), draw(len(DEGREES), heads * 4))
    before = start_of_gradients(attention, len(DEGREES), NEIGHBORS, draw)
    found, expected = two_ways(
        attention_gradients,
        attention,
        adjoint,
        Edges(back.rows, back.neighbors, back.slots),
        Edges(over.rows, over.neighbors),
        before,
    )
    if kind == GATV2:
        # Every team has its own sum, over other rows where these are in another order.
        np.testing.assert_allclose(found.vector, expected.vector, rtol=1e-5, atol=1e-5)
    found, expected = (dataclasses.replace(each, vector=None) for each in (found, expected))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_row_for_the_whole_chip_is_joined_by_a_second_kernel() -> None:
    over = over_edges()
    x, before = draw(NEIGHBORS, 8), draw(len(DEGREES), 8)
    edges, rows = Neighbors(x, over.neighbors), dataclasses.replace(over.rows, spread=True)

    def kernels(rows: Any) -> int:
        launch = in_interpreter(cluster=2)
        jaxpr = jax.make_jaxpr(lambda x: neighbor_sum(edges, rows, x, launch=launch))(before)
        return str(jaxpr).count("mpmd_map")

    assert (kernels(over.rows), kernels(rows)) == (1, 2)
    assert_same_bits(neighbor_sum, edges, rows, before)
