"""Mini-batches: their seeds and shapes, the same whatever makes them, and bad input."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
import scipy.sparse as sp

from jaxgraph import Graph, TypedGraph
from jaxgraph.parallel import ShardedGraph, make_mesh, shard, spmd
from jaxgraph.sampling import Loader
from jaxgraph.sampling.neighbors import neighbors_of
from jaxgraph.transforms import add_self_loops
from tests.strategies import SMALL_GRAPHS
from tests.train.small_model import on_devices, random_partition, small_graph


@cache
def graph() -> Graph:
    return small_graph(61)


def samples(loader: Loader, epoch: int = 0) -> list[Any]:
    """The samples of an epoch on the host, batch after batch."""
    return [jax.device_get(batch.shards.sample) for batch in loader.batches(epoch)]


def arrays(sample: Any) -> dict[str, np.ndarray]:
    """The arrays of all devices by name; words between them are of no array."""
    of_each = [sample.sizes.views(words) for words in sample.words]
    return {name: np.stack([views[name] for views in of_each]) for name in of_each[0]}


def assert_equal(one: Any, other: Any) -> None:
    of_one, of_other = arrays(one), arrays(other)
    for name, values in of_one.items():
        np.testing.assert_array_equal(values, of_other[name], name)
    for each in zip(one.edge_data, other.edge_data, strict=True):
        jax.tree.map(np.testing.assert_array_equal, *each)


def seeds_of(loader: Loader, epoch: int = 0) -> list[np.ndarray]:
    """The seeds of each batch, of all devices."""
    found = []
    for sample in samples(loader, epoch):
        own = []
        for words in sample.words:
            views = sample.sizes.views(words)
            own.append(views["nodes/node_ids"][: views["counts"][-1, 0]])
        found.append(np.concatenate(own))
    return found


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("batch_size", [1, 3, 7, 1000])
def test_an_epoch_has_every_seed_once(parts: int, batch_size: int) -> None:
    """Also where a batch has fewer seeds than there are devices."""
    nodes = np.flatnonzero(np.asarray(graph().train_mask))
    loader = Loader(
        graph(), [2, 2], sharded=on_devices(graph(), parts), batch_size=batch_size, threads=2
    )
    epochs = [seeds_of(loader, epoch) for epoch in range(2)]
    for found in epochs:
        assert [len(each) for each in found[:-1]] == [batch_size] * (len(loader) - 1)
        assert len(found) == len(loader) and 0 < len(found[-1]) <= batch_size
        assert np.array_equal(np.sort(np.concatenate(found)), nodes)
    if batch_size < 1000:
        one, other = map(np.concatenate, epochs)
        assert not np.array_equal(one, other)
    else:
        assert len(loader) == 1


@pytest.mark.parametrize("parts", [1, 3])
def test_threads_and_calls_draw_the_same(parts: int) -> None:
    how: dict[str, Any] = {"sharded": on_devices(graph(), parts), "batch_size": 4, "seed": 5}
    loaders = [Loader(graph(), [3, 2], threads=count, **how) for count in (1, 2, 4)]
    expected, *others = [samples(loader, 2) for loader in loaders]
    others += [samples(loaders[0], 2)]
    assert len({sample.sizes for sample in expected}) == 1
    for found in others:
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    how["seed"] = 6
    of_seed = samples(Loader(graph(), [3, 2], **how), 2)
    of_epoch = samples(loaders[0], 3)
    for found in (of_seed, of_epoch):
        assert not np.array_equal(
            arrays(found[0])["nodes/node_ids"], arrays(expected[0])["nodes/node_ids"]
        )


def test_a_loader_like_another_has_batches_of_its_sizes() -> None:
    """The other one has few neighbours to draw."""
    few, all_nodes = np.argsort(graph().in_degrees())[:9], np.arange(61)
    how: dict[str, Any] = {"batch_size": 9, "nodes": all_nodes}
    small = Loader(graph(), [-1, -1], batch_size=9, nodes=few)
    large = Loader(graph(), [-1, -1], **how)
    (sizes,) = {sample.sizes for sample in samples(large)}
    (own,) = {sample.sizes for sample in samples(small)}
    assert own != sizes and sizes.holds(own)
    alike = Loader(graph(), [-1, -1], batch_size=9, nodes=few, like=large)
    assert {sample.sizes for sample in samples(alike)} == {sizes}
    # What does not fit gets more room.
    for sample in samples(Loader(graph(), [-1, -1], **how, like=small)):
        assert sample.sizes.holds(own)


def edges_of(loader: Loader) -> list[list[set[tuple[int, int]]]]:
    """The edges of each layer of each batch as pairs of ids, over all devices."""
    found = []
    for sample in samples(loader):
        layers: list[set[tuple[int, int]]] = [set() for _ in sample.sizes.edges]
        for words in sample.words:
            views = sample.sizes.views(words)
            ids = views["nodes/node_ids"]
            for layer, edges in enumerate(layers):
                side = f"{layer}/edges/by_receiver"
                count = views[f"{side}/compressed_starts"][views[f"{side}/compressed_ptr"][1]]
                lengths = np.diff(views[f"{side}/compressed_starts"])
                receivers = ids[np.repeat(views[f"{side}/compressed_rows"], lengths)]
                edges |= set(zip(ids[views[f"{side}/neighbors"][:count]], receivers, strict=True))
        found.append(layers)
    return found


@pytest.mark.parametrize(
    "options",
    [{}, {"method": "labor"}, {"replace": True}, {"cache_bytes": 500}, {"weights": "random"}],
    ids=str,
)
def test_devices_draw_the_edges_of_one(options: dict[str, Any]) -> None:
    how: dict[str, Any] = {"batch_size": 9, "nodes": np.arange(61), **options}
    if "weights" in options:
        how["weights"] = np.random.default_rng(0).random(graph().num_edges)
    of_one = edges_of(Loader(graph(), [3, 2], **how))
    of_three = edges_of(Loader(graph(), [3, 2], sharded=on_devices(graph(), 3), **how))
    assert of_one == of_three
    edges = set(zip(graph().senders, graph().receivers, strict=True))
    assert all(layer <= edges for batch in of_one for layer in batch)


@pytest.mark.parametrize("given", SMALL_GRAPHS, ids=lambda given: given.name)
def test_small_graphs_have_batches(given: Graph) -> None:
    """One node, no edges, isolated seeds, stars; fan-outs below and beyond the degrees."""
    nodes = np.arange(given.num_nodes)
    for fanout in (-1, 1, 1000):
        loader = Loader(given, [fanout, fanout], nodes=nodes, batch_size=5)
        assert np.array_equal(np.sort(np.concatenate(seeds_of(loader))), nodes)
        drawn = [edges[1] for edges in edges_of(loader)]
        if fanout != 1:
            edges = set(zip(given.senders, given.receivers, strict=True))
            assert set().union(*drawn) == edges


def test_equal_edges_are_numbered() -> None:
    senders, receivers = np.array([[0, 1, 0, 0, 2, 1], [1, 1, 1, 1, 0, 1]], np.int32)
    found = neighbors_of(3, senders, receivers).repetition()
    assert found is not None and found.tolist() == [0, 0, 1, 2, 0, 1]
    assert neighbors_of(3, senders[:2], receivers[:2]).repetition() is None


def test_a_batch_is_described_by_its_loader() -> None:
    fanouts: Any = np.array([3, -1])
    loader = Loader(graph(), fanouts, batch_size=4)
    assert repr(loader) == "Loader(6 batches of 4 of 21 seeds, fanouts=[3, -1])"
    abstract = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), loader.abstract_batch())
    for batch in loader.batches(1):
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), batch) == abstract
    count = spmd(lambda shard: shard.sum(shard.flow[-1].receivers.node_mask.sum()))
    assert int(sum(count(batch) for batch in loader.batches(0))) == 21


def typed(target: str | None = "user", name: str = "knows") -> TypedGraph:
    users = {"nodes": np.ones((4, 2)), "labels": np.zeros(4, int), "train_mask": np.ones(4, bool)}
    if target is None:
        users = {"nodes": np.ones((4, 2))}
    edges = {("user", name, "user"): {"senders": [0], "receivers": [1]}}
    return TypedGraph({"user": users, "item": {"num_nodes": 2}}, edges, target=target)


def in_mode(mode: str, **options: Any) -> ShardedGraph:
    return on_devices(graph(), 2, mode, **options)


def streamed() -> Any:
    return shard(graph(), random_partition(graph(), 2), make_mesh(1), mode="stream")


def weighted(factor: float) -> Graph:
    return graph().replace(edge_weight=np.full(graph().num_edges, 0.7 * factor))


def sparse() -> Graph:
    return graph().replace(nodes=sp.csr_array(np.asarray(graph().nodes)))


def loader(given: Any = None, fanouts: Any = (2, 2), **options: Any) -> Loader:
    return Loader(graph() if given is None else given, fanouts, **options)


BAD: dict[str, tuple[Any, str]] = {
    "graph": (lambda: loader(np.ones(3)), r"graph is .*array; expected a jaxgraph.Graph"),
    "no target": (lambda: loader(typed(None)), "no target, .*; give TypedGraph target=..."),
    "relation": (
        lambda: loader(typed(), [{"likes": 2}]),
        "fanouts names the relation 'likes'; expected some of 'knows'",
    ),
    "weights of a set": (
        lambda: loader(typed(), weights=[1.0]),
        "weights is a list; of a TypedGraph expected a dict .* which are 'knows'",
    ),
    "weights of no set": (lambda: loader(typed(), weights={"likes": [1.0]}), "which are 'knows'"),
    "sparse": (
        lambda: loader(sparse()),
        r"features are sparse.*replace\(nodes=graph.nodes.toarray\(\)\), and shard",
    ),
    "fanout": (lambda: loader(fanouts=3), r"fanouts is 3; expected .* such as \[15, 10, 5\]"),
    "no fanouts": (lambda: loader(fanouts=[]), r"fanouts is \[\]; expected the most neighbours"),
    "fanout 0": (lambda: loader(fanouts=[3, 0]), r"fanouts is \[3, 0\]; expected .* -1 stands"),
    "fanout -2": (lambda: loader(fanouts=[-2]), r"fanouts is \[-2\]"),
    "fanout 2.5": (lambda: loader(fanouts=[2.5]), r"fanouts is \[2.5\]"),
    "fanout True": (lambda: loader(fanouts=[True]), r"fanouts is \[True\]"),
    "batch_size": (lambda: loader(batch_size=0), "batch_size is 0; expected a positive integer"),
    "threads": (lambda: loader(threads=0), "threads is 0; expected a positive integer"),
    "seed": (lambda: loader(seed=-1), "seed: got -1; expected an integer"),
    "method": (
        lambda: loader(method="walk"),
        "method is 'walk'; expected 'neighbors' or 'labor'",
    ),
    "cache_bytes": (
        lambda: loader(cache_bytes=-1),
        "cache_bytes: got -1; expected an amount of memory",
    ),
    "labor": (lambda: loader(method="labor", replace=True), "'labor' draws all .* leave out"),
    "labor by weights": (
        lambda: loader(method="labor", weights=np.ones(graph().num_edges)),
        "'labor' draws all neighbours alike, .*; leave out replace and weights",
    ),
    "outside": (
        lambda: loader(nodes=[3, 61]),
        "nodes: values run from 3 to 61; expected ids from 0 to 60",
    ),
    "negative": (lambda: loader(nodes=[-1, 4]), "nodes: values run from -1 to 4; expected ids"),
    "twice": (lambda: loader(nodes=[4, 5, 4]), "nodes: some ids are repeated"),
    "empty": (
        lambda: loader(nodes=[]),
        r"nodes: got float64 \[0\]; expected at least one",
    ),
    "mask": (
        lambda: loader(nodes=np.ones(61, bool)),
        r"nodes: got bool \[61\]; expected .*np.flatnonzero makes ids from a mask",
    ),
    "no train_mask": (
        lambda: loader(graph().replace(train_mask=None)),
        r"no training nodes to begin from; give .*random_split, or give the loader nodes=",
    ),
    "like nothing": (
        lambda: loader(like=graph()),
        "like is a Graph; expected a Loader of a graph with the same sets, on as many devices",
    ),
    "like other batches": (
        lambda: loader(like=loader(batch_size=7)),
        "like is a loader of other samples; expected .* layers and the same batch_size",
    ),
    "like other layers": (
        lambda: loader(like=Loader(graph(), [2], batch_size=5)),
        "like is a loader of other samples; expected .* layers and the same batch_size",
    ),
    "few weights": (lambda: loader(weights=[1.0]), r"weights: got shape \[1\]; expected \[244\]"),
    "negative weights": (
        lambda: loader(weights=-np.ones(graph().num_edges)),
        "weights: 244 of 244 are negative; expected 0 or more",
    ),
    "sharded": (
        lambda: loader(sharded=graph()),
        "sharded is a Graph; expected the result of jaxgraph.parallel.shard",
    ),
    "stream": (
        lambda: loader(sharded=streamed()),
        "sharded is in mode 'stream', .*; shard the graph in mode 'sar', 'domain' or 'p3'",
    ),
    "message flow": (
        lambda: loader(sharded=in_mode("sar", message_flow=2)),
        "sharded has message_flow, .*; shard the graph .*without message_flow",
    ),
    "sharded typed": (
        lambda: loader(sharded=shard(typed(), None, make_mesh(1))),
        "sharded is Sharded.*, and not the graph that is given, of 61 nodes; shard that one",
    ),
    "sharded sparse": (
        lambda: loader(sharded=on_devices(sparse(), 2)),
        "the features are sparse, .*; make them dense",
    ),
    "other sets": (
        lambda: loader(typed(), sharded=shard(typed(name="likes"), None, make_mesh(1))),
        "sharded is Sharded.*, and not the graph that is given, of 6 nodes; shard that one",
    ),
    "not typed": (
        lambda: loader(typed(), sharded=on_devices(graph(), 1)),
        "sharded is Sharded.*, and not the graph that is given, of 6 nodes; shard that one",
    ),
    "other nodes": (
        lambda: loader(sharded=on_devices(small_graph(60), 2)),
        "sharded is .*num_nodes=60.*, and not the graph that is given, of 61 nodes; shard that",
    ),
    "other edges": (
        lambda: loader(sharded=on_devices(add_self_loops(graph()), 2)),
        "sharded has other edges than the graph; shard the graph that is given",
    ),
    "other weights": (
        lambda: loader(weighted(1), sharded=on_devices(weighted(2), 2)),
        "sharded has other edge_weight than the graph",
    ),
    "no weights": (
        lambda: loader(sharded=on_devices(weighted(1), 2)),
        "sharded has other edge_weight than the graph",
    ),
    "other labels": (
        lambda: loader(graph().replace(labels=np.zeros(61, int)), sharded=on_devices(graph(), 2)),
        "sharded has other labels than the graph",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        make()
