"""Typed graphs of the nested dicts of PyG and TF-GNN."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxgraph.datasets import from_hetero
from jaxgraph.typed_graph import TypedGraph
from tests.datasets.structure import present

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
X, ENDS = np.arange(10.0).reshape(5, 2), np.array([[0, 2, 2], [4, 1, 0]])


def of_pyg() -> dict[Any, Any]:
    """The keys and entries of `HeteroData.to_dict()` of PyG 2.8."""
    return {
        "_global_store": {"seed": 3},
        "paper": {
            "x": X,
            "y": np.array([0, 1, 2, 0, -1]),
            "train_mask": np.arange(5) < 2,
            "val_mask": np.arange(5) == 2,
            "test_mask": np.arange(5) == 3,
            "year": np.arange(2010, 2015),
        },
        "author": {"num_nodes": 3},
        WRITES: {"edge_index": ENDS, "edge_attr": np.ones((3, 4)), "edge_weight": [1, 2, 3]},
        CITES: {"edge_index": ENDS, "edge_type": [0, 1, 0], "time": [0.5, 1.5, 2.5]},
    }


def of_tfgnn() -> dict[str, Any]:
    """The same graph in the shape of TF-GNN."""
    sets = of_pyg()
    papers, (senders, receivers) = sets["paper"], ENDS
    papers |= {"hidden_state": papers.pop("x"), "labels": papers.pop("y")}
    return {
        "context": {"seed": 3},
        "node_sets": {"paper": papers, "author": sets["author"]},
        "edge_sets": {
            "writes": {
                "source": ("author", senders),
                "target": ("paper", receivers),
                "hidden_state": sets[WRITES]["edge_attr"],
                "edge_weight": sets[WRITES]["edge_weight"],
            },
            "cites": {
                "source": ("paper", senders),
                "target": ("paper", receivers),
                "edge_type": sets[CITES]["edge_type"],
                "time": sets[CITES]["time"],
            },
        },
    }


def check(graph: TypedGraph) -> None:
    papers = graph.node_sets["paper"]
    assert (graph.target, papers.num_classes, graph.node_sets["author"].num_nodes) == (
        "paper",
        3,
        3,
    )
    np.testing.assert_array_equal(papers.nodes, X)
    masks = (papers.train_mask, papers.val_mask, papers.test_mask)
    assert [np.flatnonzero(present(mask)).tolist() for mask in masks] == [[0, 1], [2], [3]]
    np.testing.assert_array_equal(papers.node_data["year"], np.arange(2010, 2015))
    assert list(graph.edge_sets) == [WRITES, CITES]
    writes, cites = graph.edge_sets.values()
    for edges in (writes, cites):
        np.testing.assert_array_equal(np.stack([edges.senders, edges.receivers]), ENDS)
    assert writes.edges is not None and writes.edges.shape == (3, 4) and not writes.edge_data
    np.testing.assert_array_equal(writes.edge_weight, [1, 2, 3])
    np.testing.assert_array_equal(cites.edge_type, [0, 1, 0])
    np.testing.assert_array_equal(cites.edge_data["time"], [0.5, 1.5, 2.5])


@pytest.mark.parametrize("made", [of_pyg, of_tfgnn])
def test_both_shapes_give_the_graph(made: Any) -> None:
    check(from_hetero(made()))
    named = from_hetero(made(), name="few", target="author")
    assert (named.name, named.target) == ("few", "author")


def test_an_object_gives_its_dict() -> None:
    check(from_hetero(SimpleNamespace(to_dict=of_pyg)))


class Tensor:
    """A tensor that NumPy refuses: it needs a gradient, or is on a device."""

    dtype = "float32"

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("Use tensor.detach().numpy() instead.")


@pytest.mark.parametrize(
    ("key", "entries", "match"),
    [
        ("paper", {"num_classes": 3}, r"set 'paper': node_data\['num_classes'\]: got shape \[\]"),
        ("paper", {"title": ["a"] * 5}, r"set 'paper': node_data\['title'\]: got dtype <U1"),
        ("paper", {"x": Tensor()}, r"set 'paper': nodes: cannot be made an array .*detach"),
        (WRITES, {"edge_attr": Tensor()}, r"writes.*: edges: cannot be made an array .*detach"),
        (WRITES, {"edge_label": [1, 0]}, r"writes.*: edge_data\['edge_label'\]: got shape \[2\]"),
        (WRITES, {"edge_index": ENDS.T}, r"writes.*edge_index has 3 rows.*\[2, num_edges\]"),
        (("a", "b", "c"), {"adj_t": 1}, r"'a', 'b', 'c'.*edge_index has 0 rows"),
        (("a", "b", "c"), {"edge_index": ENDS}, "'a', 'b', 'c'.*no set of nodes 'a'"),
        ("venue", {}, "set 'venue': num_nodes: cannot be inferred"),
        ("venue", {"sizes": [9]}, r"set 'venue': num_nodes: got \[9\].*expected an integer"),
        ("venue", {"features": {"x": X}}, r"set 'venue': features: got a mapping"),
        ("venue", X, "got a dict; expected .*dict of arrays for each set.*Graph.from_edges"),
    ],
)
def test_errors_name_the_set_and_the_entry(key: Any, entries: Any, match: str) -> None:
    data = of_pyg()
    data[key] = data.get(key, {}) | entries if isinstance(entries, dict) else entries
    with pytest.raises(ValueError, match=match):
        from_hetero(data)


@pytest.mark.parametrize(
    "wrong", [{"source": [0, 2, 2]}, {"source": ("author",)}, {"source": None, "sender": 1}]
)
def test_ends_of_tfgnn_have_the_name_of_a_set_and_ids(wrong: dict[str, Any]) -> None:
    data = of_tfgnn()
    writes = data["edge_sets"]["writes"] | wrong
    data["edge_sets"]["writes"] = {k: v for k, v in writes.items() if v is not None}
    with pytest.raises(ValueError, match=r"edge set 'writes': .*source and target, each \(set of"):
        from_hetero(data)
