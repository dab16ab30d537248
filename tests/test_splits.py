"""Folds of cross-validation, and splits of the target of a typed graph."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedKFold

from jaxgraph import transforms
from jaxgraph.graph import Graph
from jaxgraph.typed_graph import TypedGraph


def nodes_with(labels: Any, **arrays: Any) -> Graph:
    return Graph.from_edges([0], [1], labels=labels, num_nodes=len(labels), **arrays)


def batch() -> TypedGraph:
    """30 graphs of one node and a loop each, of two classes."""
    one = Graph.from_edges([0], [0], nodes=np.ones((1, 2)))
    return Graph.batch([one] * 30, labels=np.arange(30) % 2)


def masks_of(graph: Graph) -> dict[str, np.ndarray]:
    names = ("train_mask", "val_mask", "test_mask")
    return {x: mask for x in names if (mask := getattr(graph, x)) is not None}


SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=5)


@given(SIZES, st.integers(0, 5), st.integers(3, 8), st.booleans(), st.integers(0, 2**32 - 1))
def test_each_labelled_node_is_tested_once(
    sizes: list[int], unlabelled: int, k: int, validation: bool, seed: int
) -> None:
    labels = np.r_[np.repeat(np.arange(len(sizes)), sizes), np.full(unlabelled, -1)]
    labels = np.random.default_rng(0).permutation(labels)
    k = min(k, sum(sizes))
    if k < 3 or len(labels) < 2:
        return
    found = transforms.folds(nodes_with(labels), k, validation=validation, seed=seed)
    tests = np.stack([masks_of(each)["test_mask"] for each in found])
    np.testing.assert_array_equal(tests.sum(axis=0), labels >= 0)
    counts = np.stack([np.bincount(labels[test], minlength=len(sizes)) for test in tests])
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.ptp(counts.sum(axis=1)) <= 1
    for number, each in enumerate(found):
        masks = masks_of(each)
        np.testing.assert_array_equal(sum(masks.values()), labels >= 0)
        assert len(masks) == 2 + validation
        if validation:
            np.testing.assert_array_equal(masks["val_mask"], tests[(number + 1) % k])


@given(st.lists(st.integers(5, 30), min_size=1, max_size=5), st.integers(2, 5))
def test_counts_of_the_classes_are_those_of_scikit_learn(sizes: list[int], k: int) -> None:
    # scikit-learn deals classes in the order in which they appear.
    labels = np.repeat(np.arange(len(sizes)), sizes)
    found = transforms.folds(nodes_with(np.r_[labels, -1]), k, seed=1)
    counts = [np.bincount(labels[masks_of(each)["test_mask"][:-1]]).tolist() for each in found]
    theirs = StratifiedKFold(k, shuffle=True, random_state=0)
    expected = [np.bincount(labels[test]).tolist() for _, test in theirs.split(labels, labels)]
    assert counts == expected


def test_folds_share_all_arrays_but_masks_and_follow_the_seed() -> None:
    labels, x = np.arange(40) % 4, np.ones((40, 3), np.float32)
    graph = nodes_with(labels, nodes=x)
    first, again, other = (transforms.folds(graph, 5, seed=seed) for seed in (3, 3, 4))
    for one, same in zip(first, again, strict=True):
        for name, mask in masks_of(one).items():
            np.testing.assert_array_equal(mask, masks_of(same)[name])
        assert np.shares_memory(one.nodes, x) and np.shares_memory(one.senders, graph.senders)
    tests = [np.stack([masks_of(x)["test_mask"] for x in each]) for each in (first, other)]
    assert (tests[0] != tests[1]).any()
    # The order of the nodes says nothing of the fold.
    assert len({tuple(np.flatnonzero(test) % 5) for test in tests[0]}) > 1


@pytest.mark.parametrize("labels", [None, np.eye(20, 3), np.zeros((20, 2), bool)])
def test_without_one_class_a_node_all_are_divided(labels: Any) -> None:
    graph = Graph.from_edges([0], [1], num_nodes=20, labels=labels)
    tests = [masks_of(each)["test_mask"] for each in transforms.folds(graph, 3)]
    assert sorted(int(test.sum()) for test in tests) == [6, 7, 7]
    np.testing.assert_array_equal(sum(tests), 1)


def test_the_target_of_a_typed_graph_is_divided() -> None:
    graph = batch()
    folds = transforms.folds(graph, 3, validation=True)
    split = transforms.random_split(graph, fractions=(0.5, 0.2, 0.3))
    by_class = transforms.random_split(graph, 4, 3)
    for each in (*folds, split, by_class):
        assert (each.target, each.readout) == ("graph", ("member",))
        assert masks_of(each.node_sets["node"]) == {}
        assert np.shares_memory(each.node_sets["node"].nodes, graph.node_sets["node"].nodes)
        for ends, edges in graph.edge_sets.items():
            assert np.shares_memory(each.edge_sets[ends].senders, edges.senders)
    sizes = [
        [int(mask.sum()) for mask in masks_of(each.node_sets["graph"]).values()]
        for each in (*folds, split, by_class)
    ]
    assert sizes == [[10, 10, 10]] * 3 + [[15, 6, 9], [8, 6, 16]]


@pytest.mark.parametrize(
    ("k", "options", "message"),
    [
        (1, {}, "k: got 1; expected a number of folds from 2 to 9, the rows that are divided"),
        (2, {"validation": True}, "k: got 2; expected a number of folds from 3 to 9"),
        (10, {}, "k: got 10; expected a number of folds from 2 to 9"),
        (True, {}, "k: got True; expected a number of folds"),
        (2.0, {}, "k: got 2.0; expected a number of folds"),
        (3, {"seed": -1}, "seed: got -1; expected an integer"),
    ],
)
def test_a_number_of_folds_that_does_not_fit_is_refused(k: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        transforms.folds(nodes_with(np.r_[np.zeros(9, int), -1]), k, **options)


@pytest.mark.parametrize("fractions", [0.5, "abc", (0.5, 0.5), (0.5, float("nan"), 0.1)])
def test_fractions_are_three_shares(fractions: Any) -> None:
    with pytest.raises(ValueError, match="expected three shares"):
        transforms.random_split(nodes_with(np.zeros(9, int)), fractions=fractions)


def test_what_has_no_rows_to_divide_is_refused() -> None:
    both = {"labels": np.zeros(4, int)}
    graph = TypedGraph({"a": both, "b": both}, {})
    divide: Any
    for divide in (lambda x: transforms.folds(x, 2), transforms.random_split):
        with pytest.raises(ValueError, match="sets of nodes a, b, and none is its target; give Ty"):
            divide(graph)
        with pytest.raises(ValueError, match="got a NumPy array for the graph; expected a jaxgrap"):
            divide(np.ones(3))
