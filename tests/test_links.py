"""Links as rows: splits that leak nothing, pairs that are no links, and bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxgraph import Graph, TypedGraph
from jaxgraph.negatives import Known, NodePairs, drawn
from jaxgraph.transforms import link_split, to_undirected, with_links


def undirected(num_nodes: int = 50, num_edges: int = 200) -> Any:
    ends = np.random.default_rng(0).integers(0, num_nodes, (2, num_edges))
    return to_undirected(Graph.from_edges(*ends, num_nodes=num_nodes))


def pairs(graph: TypedGraph, ends: tuple[str, str, str] = ("node", "edge", "node")) -> set[Any]:
    edges = graph.edge_sets[ends]
    return set(zip(edges.senders.tolist(), edges.receivers.tolist(), strict=True))


def links_of(graph: TypedGraph, chosen: Any) -> set[tuple[int, int]]:
    ends = (graph.edge_sets["node", end, "link"].senders[chosen] for end in ("head", "tail"))
    return set(zip(*(each.tolist() for each in ends), strict=True))


def turned(links: set[Any]) -> set[Any]:
    return {(tail, head) for head, tail in links}


@pytest.mark.parametrize("seed", [0, 1])
def test_no_message_tells_of_a_link_that_is_held_out(seed: int) -> None:
    graph = undirected()
    split = link_split(graph, (0.1, 0.2), negatives=2, seed=seed)
    links: Any = split.node_sets["link"]
    left, every = pairs(split), pairs(TypedGraph.of(graph))
    held = {s: links_of(split, getattr(links, s) & (links.labels == 1)) for s in MASKS}
    count = len({tuple(sorted(x)) for x in every if x[0] != x[1]})
    for mask, share in zip(MASKS, (0.1, 0.2), strict=True):
        assert held[mask] <= every
        assert not held[mask] & (left | turned(left))
        assert abs(len(held[mask]) - share * count) <= 1
    first, second = held.values()
    assert not (first | turned(first)) & second
    # All others are there, in both directions, with the self-loops.
    taken = first | second
    assert left == every - taken - turned(taken)
    negatives = links_of(split, links.labels == 0)
    assert not negatives & (every | turned(every))
    assert all(head != tail for head, tail in negatives)
    assert (links.labels == 0).sum() == 2 * (links.labels == 1).sum()


MASKS = ("val_mask", "test_mask")


def test_splits_follow_the_seed() -> None:
    graph = undirected()
    found = [links_of(link_split(graph, seed=seed), slice(None)) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]


def test_edges_between_the_same_nodes_are_held_out_together() -> None:
    graph = Graph.from_edges([0, 0, 1, 2, 3, 4, 4], [1, 1, 0, 3, 4, 2, 4], num_nodes=5)
    for seed in range(8):
        split = link_split(graph, (0.25, 0.25), negatives=0, seed=seed)
        links: Any = split.node_sets["link"]
        left = pairs(split)
        taken = links_of(split, links.labels == 1)
        assert len(taken) == len(links.labels) == 2
        assert not left & (taken | turned(taken))
        assert (4, 4) in left


def test_data_of_edges_stay_with_them() -> None:
    graph = undirected().with_edges(number=np.arange(undirected().num_edges))
    edges = link_split(graph).edge_sets["node", "edge", "node"]
    numbers = edges.edge_data["number"]
    np.testing.assert_array_equal(graph.senders[numbers], edges.senders)
    np.testing.assert_array_equal(graph.receivers[numbers], edges.receivers)


def test_links_that_are_given_keep_their_types() -> None:
    edges = {"senders": [0, 1, 2], "receivers": [1, 2, 3], "edge_type": [0, 1, 1]}
    graph = TypedGraph({"entity": {"num_nodes": 6}}, {("entity", "related", "entity"): edges})
    split = link_split(graph, held_out={"test": [[0, 1, 1], [4, 5, 0]]}, negatives=1)
    links: Any = split.node_sets["link"]
    assert links.val_mask is None and links.test_mask.all()
    np.testing.assert_array_equal(links.node_data["link_type"], [1, 0, 1, 0])
    assert split.edge_sets["entity", "related", "entity"].num_edges == 3


def test_no_pair_beside_links_that_are_given_is_one_of_them() -> None:
    """Of four nodes, all pairs but one are edges or held out, in one direction or the other."""
    graph = Graph.from_edges([0, 1, 1, 2], [1, 0, 2, 1], num_nodes=4)
    held = {"val": [[0, 2], [1, 3]], "test": [[3, 2]]}
    split = link_split(graph, held_out=held, negatives=4)
    negatives = links_of(split, split.node_sets["link"].labels == 0)
    assert negatives == {(0, 3), (3, 0)}


def test_links_of_the_user_are_rows() -> None:
    graph = with_links(undirected(), [0, 3], [1, 3], labels=[2, 0], train_mask=[True, False])
    assert graph.target == "link" and graph.readout == ("head", "tail")
    assert links_of(graph, slice(None)) == {(0, 1), (3, 3)}
    assert graph.node_sets["link"].num_classes == 3


@pytest.mark.parametrize("one_end", [False, True])
def test_negatives_are_uniform_and_never_known(one_end: bool) -> None:
    """Of a head with few free tails, every free one is drawn about equally often."""
    size, count = 6, 4000
    links = NodePairs(np.array([0]), np.array([1]))
    listed = NodePairs(np.array([0, 0, 3]), np.array([1, 2, 1]))
    known = Known.of((size, size), listed, both_ways=False)
    found = drawn(links, count, (size, size), 5, one_end=one_end, is_one_set=True, known=known)
    drawn_pairs, times = np.unique([found.heads, found.tails], axis=1, return_counts=True)
    free = {(h, t) for h in range(size) for t in range(size) if h != t}
    free -= {(0, 1), (0, 2), (3, 1)}
    if one_end:
        free = {(h, t) for h, t in free if h == 0 or t == 1}
    assert set(map(tuple, drawn_pairs.T.tolist())) == free
    if not one_end:
        expected = count / len(free)
        assert ((times - expected) ** 2 / expected).sum() < 60  # chi-square, 26 degrees: p < 1e-4


def test_negatives_depend_on_the_key_and_the_type_alone() -> None:
    links = NodePairs(np.arange(20), np.arange(1, 21), np.arange(20) % 3)
    how: dict[str, Any] = {"one_end": False, "is_one_set": True, "known": None}
    first, again, other = (drawn(links, 2, (30, 30), key, **how) for key in (1, 1, 2))
    np.testing.assert_array_equal(first.heads, again.heads)
    assert (first.heads != other.heads).any()
    np.testing.assert_array_equal(first.types, np.repeat(np.arange(20) % 3, 2))


def test_a_pair_is_known_with_its_type() -> None:
    listed = NodePairs(np.array([3]), np.array([4]), np.array([2]))
    known = Known.of((9, 9), listed, both_ways=False)
    asked = NodePairs(np.array([3, 3, 4]), np.array([4, 4, 3]), np.array([2, 1, 2]))
    assert known.holds(asked).tolist() == [True, False, False]


def test_a_complete_graph_has_no_negatives() -> None:
    heads, tails = np.nonzero(~np.eye(4, dtype=bool))
    with pytest.raises(ValueError, match="nearly all pairs of the graph are links"):
        link_split(Graph.from_edges(heads, tails), (0.2, 0.2))


NO_GRAPH: Any = "cora"
BAD = {
    "expected a jaxgraph.Graph": lambda g: link_split(NO_GRAPH),
    "expected the shares of the edges": lambda g: link_split(g, (0.6, 0.6)),
    "0.001 of .* pairs of nodes with an edge is none": lambda g: link_split(g, (0.001, 0.2)),
    "negatives is -1; expected": lambda g: link_split(g, negatives=-1),
    "by name": lambda g: link_split(g, held_out={"valid": [[0, 1]]}),
    r"integers \[links, 2\]": lambda g: link_split(g, held_out={"val": [[0, 1, 2]]}),
    "leaks: 1 of 1 links": lambda g: link_split(
        g, held_out={"val": [[g.receivers[0], g.senders[0]]]}
    ),
    r"held_out\['test'\].*50": lambda g: link_split(g, held_out={"test": [[0, 50]]}),
    "tails: .*50": lambda g: with_links(g, [0], [50]),
    "heads has 2 entries and tails 1": lambda g: with_links(g, [0, 1], [1]),
    "heads has 0 entries": lambda g: with_links(g, [], []),
    "sets of nodes of heads and of tails": lambda g: with_links(g, [0], [1], ends=("node", "x")),
    "labels": lambda g: with_links(g, [0], [1], labels=[1, 0]),
    "has a set '(link|head|tail)' already": lambda g: with_links(link_split(g), [0], [1]),
    "of 0 or more: heads, tails": lambda g: link_split(g, held_out={"val": [[-1, 0]]}),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_says_what_came(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BAD[message](undirected())
