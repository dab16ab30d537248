"""The tables of drawn edges: those of `block_tables`, the same from NumPy and the library."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from jaxgraph.layout.block_tables import BlockSizes, block_tables
from jaxgraph.ops.cpu.library import library
from jaxgraph.sampling.draw import Draws, NumpySampler
from jaxgraph.sampling.native import NativeSampler, sampler_of
from jaxgraph.sampling.neighbors import Neighbors, neighbors_of
from tests.sampling.batches import edges_of, ids_of, sizes_of, written

SIZES = ((1, 0), (1, 9), (5, 0), (30, 100), (200, 5000), (3000, 3000))
DRAWS = {
    "distinct": Draws((5, 3)),
    "all": Draws((-1, 2, -1)),
    "none": Draws((2, 0)),
    "repeated": Draws((4, -1, 7), replace=True),
    "labor": Draws((3, 3), method="labor"),
    "many": Draws((900, 40)),
    "weighted": Draws((5, 3, -1)),
    "weighted, repeated": Draws((5, -1, 3), replace=True),
}


def random_neighbors(num_nodes: int, num_edges: int, weighted: bool) -> Neighbors:
    """Edges with hubs at both ends, among them repeated ones and self-loops."""
    random = np.random.default_rng(num_nodes + num_edges)
    ends = (num_nodes * random.random((2, num_edges)) ** [[2], [3]]).astype(np.int64)
    weights = random.random(num_edges) ** 8 * (random.random(num_edges) > 0.2)
    return neighbors_of(num_nodes, *ends, weights if weighted else None)


def check_tables(found: dict[str, np.ndarray], edges: int, sizes: BlockSizes) -> None:
    """Compares with `block_tables`; the order of edges in a row is free."""
    senders, receivers = found["by_receiver/neighbors"][:edges], found["receivers"][:edges]
    expected, _, _ = block_tables(
        senders, receivers, {}, sizes.num_senders, sizes.num_receivers, sizes
    )
    in_any_order = {"block/by_receiver/neighbors", "block/by_sender/neighbors"}
    in_any_order |= {"block/by_sender/edge_ids", "block/repetition"}
    for name, values in expected.items():
        if name not in in_any_order:
            np.testing.assert_array_equal(found[name.removeprefix("block/")], values, err_msg=name)
    for name in ("by_receiver/neighbors", "by_sender/neighbors", "by_sender/edge_ids", "receivers"):
        assert not found[name][edges:].any()
    assert (np.diff(receivers) >= 0).all()
    slots = found["by_sender/edge_ids"][:edges]
    np.testing.assert_array_equal(np.sort(slots), np.arange(edges))
    np.testing.assert_array_equal(senders[slots], np.sort(senders))
    np.testing.assert_array_equal(receivers[slots], found["by_sender/neighbors"][:edges])


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_tables_and_numbers_are_those_of_numpy(size: tuple[int, int], name: str) -> None:
    neighbors = random_neighbors(*size, weighted="weighted" in name)
    samplers = [make(neighbors, DRAWS[name]) for make in (NumpySampler, sampler_of)]
    random = np.random.default_rng(0)
    for key in (0, 7, 2**64 - 1):
        seeds = random.permutation(size[0])[: random.integers(0, 60)].astype(np.int32)
        drawn, other = (sampler.draw(seeds, key) for sampler in samplers)
        assert drawn == other
        ids, other_ids = (ids_of(sampler, drawn) for sampler in samplers)
        np.testing.assert_array_equal(ids, other_ids)
        np.testing.assert_array_equal(ids[: len(seeds)], seeds)
        for layer, edges in enumerate(drawn.edges):
            more = tuple(int(x) for x in random.integers(0, 40, 3))
            sizes = sizes_of(drawn, layer, (more[0], more[1], more[2]))
            expected, found = (written(sampler, layer, sizes) for sampler in samplers)
            for array, values in expected.items():
                np.testing.assert_array_equal(found[array], values, err_msg=array)
            check_tables(found, edges, sizes)


def test_edges_are_those_of_the_graph() -> None:
    random = np.random.default_rng(1)
    senders, receivers = random.integers(0, 50, (2, 400))
    sampler = sampler_of(neighbors_of(50, senders, receivers), Draws((3, 4)))
    for found in edges_of(sampler, sampler.draw(np.arange(5, dtype=np.int32), 1)):
        np.testing.assert_array_equal(found[0], senders[found[2]])
        np.testing.assert_array_equal(found[1], receivers[found[2]])


def test_threads_draw_the_same() -> None:
    neighbors = random_neighbors(3000, 40000, False)
    seeds = np.random.default_rng(2).permutation(3000).astype(np.int32).reshape(30, 100)
    draws = Draws((5, 5))

    def draw(batches: range) -> list[np.ndarray]:
        sampler = sampler_of(neighbors, draws)
        return [np.concatenate(edges_of(sampler, sampler.draw(seeds[i], i))[0]) for i in batches]

    with ThreadPoolExecutor(3) as pool:
        found = [
            x for each in pool.map(draw, (range(10), range(10, 20), range(20, 30))) for x in each
        ]
    for one, other in zip(draw(range(30)), found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_arrays_without_room_are_refused() -> None:
    neighbors = random_neighbors(200, 5000, False)
    sampler = sampler_of(neighbors, Draws((5,)))
    drawn = sampler.draw(np.arange(9, dtype=np.int32), 0)
    with pytest.raises(ValueError, match="sizes"):
        written(sampler, 0, BlockSizes(drawn.nodes[0], drawn.nodes[1], drawn.edges[0] - 1))
    compiled = library().handle
    if compiled is None:
        pytest.skip("there is no library")
    sampler, sizes = NativeSampler(neighbors, Draws((5,)), compiled), sizes_of(drawn, 0)
    sampler.draw(np.arange(9, dtype=np.int32), 0)
    out = written(sampler, 0, sizes)
    for wrong in (out["receivers"][1:], out["receivers"].astype(np.int64)):
        with pytest.raises(ValueError, match="receivers"):
            sampler.write(0, sizes, out | {"receivers": wrong})
