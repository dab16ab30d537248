"""The tables of drawn edges: those of `block_tables`, the same from NumPy and the library."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from jaxgraph.layout.block_tables import BlockSizes, block_tables
from jaxgraph.sampling.neighbors import Draws, Neighbors, neighbors_of
from jaxgraph.sampling.sampler import Sampler
from tests.oracles.sampling import NumpySampler
from tests.sampling.batches import (
    compiled,
    edges_of,
    ids_of,
    in_numpy,
    layers,
    receivers_of,
    sizes_of,
    written,
)

SIZES = ((1, 0), (1, 9), (5, 0), (30, 100), (200, 5000), (3000, 3000))
DRAWS = {
    "distinct": layers(5, 3),
    "all": layers(-1, 2, -1),
    "none": layers(2, 0),
    "repeated": layers(4, -1, 7, replace=True),
    "labor": layers(3, 3, method="labor"),
    "many": layers(900, 40),
    "weighted": layers(5, 3, -1),
    "weighted, repeated": layers(5, -1, 3, replace=True),
}


def random_neighbors(num_nodes: int, num_edges: int, weighted: bool) -> Neighbors:
    """Edges with hubs at both ends, among them repeated ones and self-loops."""
    random = np.random.default_rng(num_nodes + num_edges)
    senders, receivers = (
        (num_nodes * random.random(num_edges) ** power).astype(np.int64) for power in (2, 3)
    )
    weights = random.random(num_edges) ** 8 * (random.random(num_edges) > 0.2)
    return neighbors_of(num_nodes, senders, receivers, weights if weighted else None)


def check_tables(found: dict[str, np.ndarray], edges: int, sizes: BlockSizes) -> None:
    """Compares with `block_tables`; the order of edges in a row is free."""
    senders, receivers = found["by_receiver/neighbors"][:edges], receivers_of(found)
    tables, _, _ = block_tables(
        senders, receivers, {}, sizes.num_senders, sizes.num_receivers, sizes
    )
    for side in ("by_receiver", "by_sender"):
        rows = int(tables[f"block/{side}/compressed_ptr"][1])
        for name, kept in (("ptr", 2), ("rows", None), ("starts", rows + 1)):
            own = found[f"{side}/compressed_{name}"][:kept]
            expected = tables[f"block/{side}/compressed_{name}"][:kept]
            np.testing.assert_array_equal(own, expected, err_msg=name)
        assert (found[f"{side}/compressed_starts"][rows:] == edges).all()
    for name in ("by_receiver/neighbors", "by_sender/neighbors", "by_sender/edge_ids"):
        assert not found[name][edges:].any()
    slots = found["by_sender/edge_ids"][:edges]
    np.testing.assert_array_equal(np.sort(slots), np.arange(edges))
    np.testing.assert_array_equal(senders[slots], np.sort(senders))
    np.testing.assert_array_equal(receivers[slots], found["by_sender/neighbors"][:edges])


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_tables_and_numbers_are_those_of_numpy(size: tuple[int, int], name: str) -> None:
    neighbors = random_neighbors(*size, weighted="weighted" in name)
    samplers = [make(neighbors, DRAWS[name]) for make in (in_numpy, compiled)]
    random = np.random.default_rng(0)
    for key in (0, 7, 2**64 - 1):
        seeds = random.permutation(size[0])[: random.integers(0, 60)].astype(np.int32)
        drawn, other = (sampler.draw(seeds, key) for sampler in samplers)
        assert drawn == other
        ids, other_ids = (ids_of(sampler, drawn) for sampler in samplers)
        np.testing.assert_array_equal(ids, other_ids)
        np.testing.assert_array_equal(ids[: len(seeds)], seeds)
        for layer, (edges,) in enumerate(drawn.edges):
            more = tuple(int(x) for x in random.integers(0, 40, 3))
            sizes = sizes_of(drawn, layer, (more[0], more[1], more[2]))
            expected, found = (written(sampler, layer, sizes) for sampler in samplers)
            for array, values in expected.items():
                np.testing.assert_array_equal(found[array], values, err_msg=array)
            check_tables(found, edges, sizes)


def test_edges_are_those_of_the_graph() -> None:
    random = np.random.default_rng(1)
    senders, receivers = random.integers(0, 50, (2, 400))
    sampler = compiled(neighbors_of(50, senders, receivers), layers(3, 4))
    for found in edges_of(sampler, sampler.draw(np.arange(5, dtype=np.int32), 1)):
        np.testing.assert_array_equal(found[0], senders[found[2]])
        np.testing.assert_array_equal(found[1], receivers[found[2]])


def test_threads_draw_the_same() -> None:
    neighbors = random_neighbors(3000, 40000, False)
    seeds = np.random.default_rng(2).permutation(3000).astype(np.int32).reshape(30, 100)
    draws = layers(5, 5)

    def draw(batches: range) -> list[np.ndarray]:
        sampler = compiled(neighbors, draws)
        return [np.concatenate(edges_of(sampler, sampler.draw(seeds[i], i))[0]) for i in batches]

    with ThreadPoolExecutor(3) as pool:
        found = [
            x for each in pool.map(draw, (range(10), range(10, 20), range(20, 30))) for x in each
        ]
    for one, other in zip(draw(range(30)), found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_several_sets_are_those_of_numpy() -> None:
    """Nodes of two sets, of three sets of edges with fan-outs of their own."""
    random = np.random.default_rng(4)
    nodes, ends = (40, 70), ((0, 1), (1, 0), (0, 0))
    neighbors = tuple(
        neighbors_of(nodes[y], random.integers(0, nodes[x], 300), random.integers(0, nodes[y], 300))
        for x, y in ends
    )
    draws = Draws(((3, 2, 0), (-1, 4, 2)))
    samplers = [Sampler(neighbors, draws, ends, nodes, 1), NumpySampler(neighbors, draws, ends, 1)]
    seeds = np.arange(9, dtype=np.int32)
    drawn, other = (sampler.draw(seeds, 5) for sampler in samplers)
    assert drawn == other
    for number in range(2):
        found, expected = (ids_of(each, drawn, number) for each in samplers)
        np.testing.assert_array_equal(found, expected)
    for layer, edges in enumerate(drawn.edges):
        for number, count in enumerate(edges):
            sizes = sizes_of(drawn, layer, (1, 2, 3), number, ends[number])
            found, expected = (written(each, layer, sizes, number) for each in samplers)
            for name, values in expected.items():
                np.testing.assert_array_equal(found[name], values, err_msg=name)
            check_tables(found, count, sizes)


def test_the_order_of_the_edges_changes_no_sample() -> None:
    random = np.random.default_rng(1)
    senders, receivers = random.integers(0, 50, (2, 400))
    order = random.permutation(400)
    seeds, found = np.arange(9, dtype=np.int32), []
    for chosen in (np.arange(400), order):
        sampler = compiled(neighbors_of(50, senders[chosen], receivers[chosen]), layers(3, 3))
        found.append(edges_of(sampler, sampler.draw(seeds, 1)))
    for one, other in zip(*found, strict=True):
        for x, y in zip(one[:2], other[:2], strict=True):
            np.testing.assert_array_equal(x, y)
