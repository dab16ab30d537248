"""Named arrays of nodes and edges on the host: what is kept, refused, and carried along."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from jaxgraph import Graph, transforms

NAN = np.nan


@pytest.fixture
def graph() -> Graph:
    made = Graph.from_edges(
        [0, 1, 2, 3, 3],
        [1, 2, 0, 3, 1],
        node_data={"target": [[1.0, NAN], [2, 3], [4, 5], [6, 7]]},
        edge_data={"length": np.array([1, 2, 3, 4, NAN])},
    )
    return made.with_nodes(old=np.array([True, False, True, True]))


def test_arrays_are_kept_as_given_and_read_only(graph: Graph) -> None:
    assert graph.num_nodes == 4
    assert {name: array.dtype.str[1:] for name, array in graph.node_data.items()} == {
        "target": "f8",
        "old": "b1",
    }
    assert repr(graph).endswith("node_data=[target, old], edge_data=[length])")
    with pytest.raises(ValueError, match="read-only"):
        graph.node_data["target"][0] = 1
    with pytest.raises(TypeError):
        graph.node_data["new"] = 1  # type: ignore[index]
    assert list(graph.with_nodes(old=None).node_data) == ["target"]
    assert list(graph.with_edges(kind=np.arange(5, dtype=np.uint8)).edge_data) == ["length", "kind"]
    swapped = np.arange(4, dtype=">i8")
    assert graph.with_nodes(rank=swapped).node_data["rank"].dtype == np.dtype("=i8")


@pytest.mark.parametrize("again", [copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph))])
def test_copies_are_graphs_as_well(graph: Graph, again: Any) -> None:
    copied = again(graph)
    np.testing.assert_array_equal(copied.node_data["target"], graph.node_data["target"])
    assert not copied.edge_data["length"].flags.writeable
    with pytest.raises(TypeError):
        copied.node_data["new"] = 1


def test_transforms_carry_them(graph: Graph) -> None:
    np.testing.assert_array_equal(
        transforms.remove_self_loops(graph).edge_data["length"], [1, 2, 3, NAN]
    )
    some = transforms.subgraph(graph, np.array([3, 1]))
    np.testing.assert_array_equal(some.node_data["target"], [[6, 7], [2, 3]])
    np.testing.assert_array_equal(some.edge_data["length"], [4, NAN])
    both = transforms.to_undirected(graph)
    assert both.num_edges == 9  # one self-loop
    pairs = zip(both.senders.tolist(), both.receivers.tolist(), strict=True)
    by_pair = dict(zip(pairs, both.edge_data["length"], strict=True))
    assert by_pair[0, 1] == by_pair[1, 0] == 1 and np.isnan(by_pair[1, 3])
    # NaN of equal edges is one value.
    np.testing.assert_array_equal(
        transforms.to_undirected(both).edge_data["length"], both.edge_data["length"]
    )
    with pytest.raises(ValueError, match=r"edge_data\['length'\].*with_edges\(length=None\)"):
        transforms.add_self_loops(graph)
    assert transforms.add_self_loops(graph.with_edges(length=None)).num_edges == 8
    conflicting = graph.replace(senders=[0, 1, 2, 0, 3], receivers=[1, 0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"edge_data\['length'\]: the edges 0 -> 1.*length=None"):
        transforms.remove_duplicate_edges(conflicting)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"target": [1.0, 2]}, r"node_data\['target'\]: got shape \[2\]; expected \[4, ...\]"),
        ({"target": 1.0}, r"got shape \[\]"),
        ({"target": ["a", "b", "c", "d"]}, "expected numbers.* np.unique"),
        ({"target": np.ones(4, complex)}, "complex128"),
        ({"target": np.array([1, None, 2, 3], object)}, "dtype object"),
        ({"target": [1.0, np.inf, 2, NAN]}, r"1 of 4 values are infinite, the first at \[1\]"),
        ({"target": np.ma.masked_less(np.arange(4), 1)}, "masked"),
        ({"labels": np.arange(4)}, r"labels is a field of Graph; .*graph.replace\(labels="),
        ({"a/b": np.arange(4)}, "got the name 'a/b'"),
    ],
)
def test_what_is_no_array_of_nodes_is_refused(graph: Graph, arrays: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        graph.with_nodes(**arrays)


def test_arrays_of_another_number_of_edges_are_refused(graph: Graph) -> None:
    with pytest.raises(ValueError, match=r"edge_data\['length'\]: got shape \[5\].*num_edges"):
        graph.replace(senders=[0], receivers=[1])
    with pytest.raises(ValueError, match=r"edge_data: got a list.*with_edges\(name=array\)"):
        graph.replace(edge_data=[1, 2])
