"""Training, validation and test rows at random: one split, or the folds of cross-validation."""

from __future__ import annotations

import dataclasses
from numbers import Real
from typing import TypeVar

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.kinds import check_graph
from jaxgraph.seeds import checked_seed
from jaxgraph.typed_graph import TypedGraph

AnyGraph = TypeVar("AnyGraph", Graph, TypedGraph)


def random_split(
    graph: AnyGraph,
    labels_per_class: int = 20,
    val_per_class: int = 30,
    *,
    fractions: tuple[float, float, float] | None = None,
    among: np.ndarray | None = None,
    seed: int = 0,
) -> AnyGraph:
    """Draws training, validation and test nodes at random among the labelled nodes.

    A graph without labels, as for a regression, needs ``fractions``: it draws among all nodes. Of a
    typed graph, it draws among the nodes of the target, such as the graphs of `Graph.batch`.

    Args:
        graph: the graph; its masks are replaced.
        labels_per_class: training nodes of each class.
        val_per_class: validation nodes of each class; all other labelled nodes are for testing.
        fractions: used instead of the two numbers if given: the shares for training, validation and
            test of all labelled nodes, regardless of class (of all nodes where the graph is
            multi-label or has no labels). A share of 0 gives no mask.
        among: bool [num_nodes], the nodes to draw from; no mask selects the others. None: all.
        seed: of the random generator, from 0 to 2**32 - 1.

    Returns:
        The graph with train_mask, val_mask and test_mask, bool [num_nodes].

    Raises:
        ValueError: the labels do not allow such a split, or ``fractions`` are not three shares.

    References:
        Shchur et al., "Pitfalls of Graph Neural Network Evaluation", 2018, section 3 (20 and 30 of
        each class).
    """
    rows = _rows_of(graph, "random_split(graph, ...)")
    generator, ids = np.random.default_rng(checked_seed("seed", seed)), _labelled(rows)
    if among is not None:
        ids = ids[_checked_mask(among, rows.num_nodes)[ids]]
    if fractions is not None:
        parts = _split_by_fraction(ids, fractions, generator)
    elif rows.labels is not None:
        parts = _split_by_class(rows.labels, ids, labels_per_class, val_per_class, generator)
    else:
        raise ValueError(
            f"labels: the graph {graph.name!r} has none, and a split by class draws labelled "
            "nodes; pass fractions=(train, val, test), which draws among all."
        )
    masks = {}
    for name, ids in zip(("train_mask", "val_mask", "test_mask"), parts, strict=True):
        masks[name] = _mask_or_none(ids, rows.num_nodes)
    return _with_masks(graph, **masks)


def folds(graph: AnyGraph, k: int, *, validation: bool = False, seed: int = 0) -> list[AnyGraph]:
    """Makes the k graphs of cross-validation, each of which tests on another k-th of the rows.

    Rows are labelled nodes, or all nodes of a graph without labels, which can be the graphs of
    `Graph.batch`. Where each has one class, folds are stratified: their counts of a class differ by
    at most 1.

    Args:
        graph: the graph, whose masks are replaced; of a typed graph those of its target.
        k: number of folds, from 2; with validation from 3.
        validation: whether graph i takes the test rows of graph i + 1 for validation, and the last
            one those of the first, instead of training on them.
        seed: of the random generator, from 0 to 2**32 - 1.

    Returns:
        The k graphs; they share all arrays but the masks.

    Raises:
        ValueError: ``k`` is no such number, or larger than that of the rows.

    References:
        Kohavi, "A study of cross-validation and bootstrap for accuracy estimation and model
        selection", IJCAI 1995, section 2.2.
    """
    rows = _rows_of(graph, "folds(graph, k)")
    ids, least = _labelled(rows), 3 if validation else 2
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not least <= k <= ids.size:
        raise ValueError(
            f"k: got {k!r}; expected a number of folds from {least} to {ids.size}, the rows that "
            "are divided: those with a label where there are labels."
        )
    order = np.random.default_rng(checked_seed("seed", seed)).permutation(ids)
    if rows.labels is not None and rows.labels.ndim == 1:
        order = order[np.argsort(rows.labels[order], kind="stable")]
    fold = np.full(rows.num_nodes, -1)
    fold[order] = np.arange(order.size) % k
    found = []
    for number in range(k):
        held = {"test_mask": fold == number, "val_mask": None}
        if validation:
            held["val_mask"] = fold == (number + 1) % k
        train = (fold >= 0) & ~np.logical_or.reduce([x for x in held.values() if x is not None])
        found.append(_with_masks(graph, train_mask=train, **held))
    return found


def _rows_of(graph: Graph | TypedGraph, function: str) -> Graph:
    """The nodes that are divided."""
    if not isinstance(graph, TypedGraph):
        check_graph(graph, function)
        return graph
    if graph.target is None:
        raise ValueError(
            f"{function}: the graph {graph.name!r} has the sets of nodes "
            f"{', '.join(graph.node_sets)}, and none is its target; give TypedGraph target=..., "
            "the set that is to be divided."
        )
    return graph.node_sets[graph.target]


def _with_masks(graph: AnyGraph, **masks: np.ndarray | None) -> AnyGraph:
    """The graph with other masks, of a typed one on its target."""
    if isinstance(graph, Graph):
        return graph.replace(**masks)
    target = str(graph.target)
    rows = graph.node_sets[target].replace(**masks)
    return dataclasses.replace(graph, node_sets={**graph.node_sets, target: rows})


def _labelled(rows: Graph) -> np.ndarray:
    """The nodes with a class; all where a node has none or several."""
    if rows.labels is not None and rows.labels.ndim == 1:
        return np.flatnonzero(rows.labels >= 0)
    return np.arange(rows.num_nodes)


def _checked_mask(mask: np.ndarray, num_nodes: int) -> np.ndarray:
    mask = np.asarray(mask)
    if mask.dtype != bool or mask.shape != (num_nodes,):
        raise ValueError(
            f"among: got {mask.dtype} {list(mask.shape)}; expected bool [{num_nodes}], one for "
            "each node."
        )
    return mask


def _split_by_fraction(
    ids: np.ndarray, fractions: tuple[float, float, float], generator: np.random.Generator
) -> list[np.ndarray]:
    is_shares = isinstance(fractions, tuple | list | np.ndarray) and len(fractions) == 3
    is_shares = is_shares and all(isinstance(x, Real) and x >= 0 for x in fractions)
    if not is_shares or sum(fractions) > 1 + 1e-9:
        raise ValueError(
            f"fractions: got {fractions!r}; expected three shares (train, validation, test) of 0 "
            "or more that sum to at most 1."
        )
    bounds = np.rint(np.cumsum(fractions) * ids.size).astype(int)
    shuffled = generator.permutation(ids)
    parts = np.split(shuffled[: bounds[2]], bounds[:2])
    for name, share, part in zip(("train", "validation", "test"), fractions, parts, strict=True):
        if share > 0 and part.size == 0:
            raise ValueError(
                f"fractions: {share} of {ids.size} labelled nodes for {name} is no node; pass a "
                "larger share, or 0 for no mask."
            )
    return parts


def _split_by_class(
    labels: np.ndarray,
    ids: np.ndarray,
    train: int,
    validation: int,
    generator: np.random.Generator,
) -> list[np.ndarray]:
    if labels.ndim == 2:
        raise ValueError(
            "labels: multi-label nodes have no one class; pass fractions=(train, val, test)."
        )
    if train < 1 or validation < 0:
        raise ValueError(
            f"labels_per_class = {train}, val_per_class = {validation}; expected at least 1 and 0."
        )
    sizes = np.bincount(labels[ids])
    short = np.flatnonzero((sizes > 0) & (sizes < train + validation))
    if short.size:
        raise ValueError(
            f"labels_per_class + val_per_class = {train + validation}, but class {short[0]} has "
            f"{sizes[short[0]]} nodes; pass smaller numbers, or fractions in place of both."
        )
    shuffled = generator.permutation(ids)
    shuffled = shuffled[np.argsort(labels[shuffled], kind="stable")]
    first_of_class = np.repeat(np.cumsum(sizes) - sizes, sizes)
    rank = np.arange(shuffled.size) - first_of_class
    in_train, in_both = rank < train, rank < train + validation
    return [shuffled[in_train], shuffled[in_both & ~in_train], shuffled[~in_both]]


def _mask_or_none(ids: np.ndarray, num_nodes: int) -> np.ndarray | None:
    if ids.size == 0:
        return None
    mask = np.zeros(num_nodes, bool)
    mask[ids] = True
    return mask
