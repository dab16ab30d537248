"""Links, pairs of nodes, as rows that a task reads: edges with targets, and held-out edges."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.graph_arrays import checked_ids
from jaxgraph.kinds import check_graph, kind_of
from jaxgraph.negatives import Known, NodePairs, drawn
from jaxgraph.seeds import checked_seed, mix
from jaxgraph.typed_graph import EdgeSet, TypedGraph

LINK, HEAD, TAIL = "link", "head", "tail"
"""The sets that links add: a head and a tail are edges from a node to a link."""


def with_links(
    graph: Graph | TypedGraph,
    heads: Any,
    tails: Any,
    *,
    ends: tuple[str, str] | None = None,
    **of_links: Any,
) -> TypedGraph:
    """Adds pairs of nodes, links, that a task learns about, such as the edges and their classes.

        targets = with_links(graph, graph.senders, graph.receivers, labels=y, train_mask=mask)

    Args:
        graph: the graph; its edges carry messages as before.
        heads, tails: int [links], the nodes of each pair.
        ends: the sets of nodes of heads and of tails, of a ``TypedGraph``; None: its only set, or
            its target.
        **of_links: arrays with a row for each link, as ``Graph`` takes them of nodes: labels,
            train_mask, val_mask, test_mask, nodes (features), and node_data, where DistMult reads
            the type of a link under "link_type".

    Returns:
        The graph with a set "link", the target, and the sets of edges "head" and "tail" from nodes
        to links, for ``jaxgraph.nn.LinkReadout``. Nodes and edges of a ``Graph`` are the sets
        "node" and "edge".

    Raises:
        ValueError: a pair is outside of the graph, or an array of links has another length.
    """
    typed, sets = _typed(graph, ends, "with_links")
    sizes = [typed.node_sets[name].num_nodes for name in sets]
    found = [
        checked_ids(what, ids, size)
        for what, ids, size in zip(("heads", "tails"), (heads, tails), sizes, strict=True)
    ]
    count = len(found[0])
    if len(found[1]) != count or not count:
        raise ValueError(
            f"heads has {count} entries and tails {len(found[1])}; expected one of each for every "
            "link, and at least one link."
        )
    types = np.asarray((of_links.get("node_data") or {}).get("link_type", 0))
    if types.dtype.kind not in "iu" or types.min(initial=0) < 0:
        raise ValueError(
            "node_data['link_type'] has other values than types; expected int [links], 0 or more."
        )
    rows = {"senders": found[0], "receivers": np.arange(count)}
    others = {"senders": found[1], "receivers": np.arange(count)}
    return TypedGraph(
        {**typed.node_sets, LINK: {"num_nodes": count, **of_links}},
        {**typed.edge_sets, (sets[0], HEAD, LINK): rows, (sets[1], TAIL, LINK): others},
        name=typed.name,
        target=LINK,
        readout=(HEAD, TAIL),
    )


def link_split(
    graph: Graph | TypedGraph,
    fractions: tuple[float, float] = (0.05, 0.1),
    *,
    held_out: Mapping[str, Any] | None = None,
    negatives: int = 1,
    seed: int = 0,
) -> TypedGraph:
    """Holds edges out for validation and test, with pairs that are no edges beside them.

    Messages use the other edges alone. An edge and its reverse, and edges between the same nodes,
    are held out together, so that no message tells of them. Self-loops are kept.

    Train with ``jaxgraph.sampling.Loader(split, fanouts, links=...)``, whose links are the edges
    that are left, and task ``jaxgraph.train.LinkPrediction()``.

    Args:
        graph: a graph, or a ``TypedGraph`` of one set of nodes and one of edges.
        fractions: shares of the edges for validation and for test.
        held_out: in place of a draw, the links of "val" and "test", int [links, 2], or [links, 3]
            with their types; all edges of the graph are then for training.
        negatives: pairs that are no edges for each link that is held out; 0: none.
        seed: of the draw, from 0 to 2**32 - 1.

    Returns:
        The graph without the edges that are held out, with a set "link" of the links and the other
        pairs: labels 1 and 0, val_mask, test_mask and, with types, node_data "link_type".

    Raises:
        ValueError: no link is left for a split, a link is outside of the graph, or is an edge of
            the graph: the split would leak.

    References:
        Kipf and Welling, "Variational Graph Auto-Encoders", 2016 (85 / 5 / 10%).
    """
    typed, (name, _) = _typed(graph, None, "link_split")
    if len(typed.edge_sets) != 1:
        raise ValueError(
            f"link_split: the graph has {len(typed.edge_sets)} sets of edges; expected one. Split "
            "the edges yourself, and add those of validation and test with with_links."
        )
    if isinstance(negatives, bool) or not isinstance(negatives, int) or negatives < 0:
        raise ValueError(f"negatives is {negatives!r}; expected a number of pairs, 0 or more.")
    ((ends, edges),) = typed.edge_sets.items()
    count = typed.node_sets[name].num_nodes
    number = int(mix(np.array([checked_seed("seed", seed)], np.uint64))[0])
    every = NodePairs(edges.senders, edges.receivers, edges.edge_type)
    if held_out is None:
        of_edge = _drawn_splits(edges, fractions, number)
        positives = {
            split: every.chosen(np.flatnonzero((of_edge == place) & _is_first(edges)))
            for place, split in ((1, "val"), (2, "test"))
        }
        edges = _chosen(edges, of_edge == 0)
    else:
        positives = _given(held_out, count, every)
    typed = dataclasses.replace(typed, edge_sets={ends: edges})
    known = Known.of((count, count), every, *positives.values(), both_ways=every.types is None)
    parts = []
    for place, split in enumerate(("val", "test")):
        links = positives[split]
        how = {"one_end": False, "is_one_set": True, "known": known}
        parts += [links, drawn(links, negatives, (count, count), number ^ place, **how)]
    sizes = [len(links) for links in parts]
    data: dict[str, Any] = {"labels": np.repeat([1, 0, 1, 0], sizes)}
    for split, which in (("val", [1, 1, 0, 0]), ("test", [0, 0, 1, 1])):
        if len(positives[split]):
            data[f"{split}_mask"] = np.repeat(which, sizes).astype(bool)
    heads, tails = (np.concatenate([getattr(x, end) for x in parts]) for end in ("heads", "tails"))
    if every.types is not None:
        data["node_data"] = {"link_type": np.concatenate([x.types for x in parts])}
    return with_links(typed, heads, tails, ends=(name, name), **data)


def training_links(edges: EdgeSet) -> np.ndarray:
    """The numbers of the edges that are links to learn: of an edge and its reverse the first."""
    return np.flatnonzero(_is_first(edges))


def _is_first(edges: EdgeSet) -> np.ndarray:
    """bool [edges], False for self-loops and, without types, for the second of equal pairs."""
    differs = edges.senders != edges.receivers
    if edges.edge_type is not None:
        return differs
    _, first = np.unique(_pair_of(edges), return_index=True)
    found = np.zeros(edges.num_edges, bool)
    found[first] = True
    return found & differs


def _pair_of(edges: EdgeSet) -> np.ndarray:
    """int64 [edges], a number for each pair of nodes, whatever the direction of its edges."""
    ends = edges.senders.astype(np.int64), edges.receivers.astype(np.int64)
    return np.minimum(*ends) << 32 | np.maximum(*ends)


def _drawn_splits(edges: EdgeSet, fractions: Any, key: int) -> np.ndarray:
    """int [edges], 1 for validation and 2 for test; edges between the same nodes are alike."""
    shares = tuple(fractions) if isinstance(fractions, tuple | list) else ()
    is_share = len(shares) == 2 and all(isinstance(x, int | float) and x >= 0 for x in shares)
    if not is_share or not 0 < sum(shares) < 1:
        raise ValueError(
            f"fractions is {fractions!r}; expected the shares of the edges for validation and for "
            "test, such as (0.05, 0.1)."
        )
    differs = edges.senders != edges.receivers
    listed, of_edge = np.unique(_pair_of(edges)[differs], return_inverse=True)
    order = np.argsort(mix(np.arange(len(listed), dtype=np.uint64) ^ np.uint64(key)))
    bounds = np.rint(np.cumsum(shares) * len(listed)).astype(int)
    of_pair = np.zeros(len(listed), int)
    for place, (start, stop) in enumerate(zip((0, bounds[0]), bounds, strict=True)):
        if shares[place] > 0 and start == stop:
            raise ValueError(
                f"fractions: {shares[place]} of {len(listed)} pairs of nodes with an edge is none; "
                "pass a larger share, or 0."
            )
        of_pair[order[start:stop]] = place + 1
    found = np.zeros(edges.num_edges, int)
    found[differs] = of_pair[of_edge]
    return found


def _given(held_out: Any, num_nodes: int, edges: NodePairs) -> dict[str, NodePairs]:
    """The links of both splits, which are no edges of the graph."""
    columns = 2 if edges.types is None else 3
    if not isinstance(held_out, Mapping) or not held_out or not held_out.keys() <= {"val", "test"}:
        raise ValueError(
            f"held_out: got {kind_of(held_out)}; expected the links of 'val' and 'test' by name."
        )
    sizes = num_nodes, num_nodes
    known, found = Known.of(sizes, edges, both_ways=edges.types is None), {}
    for split in ("val", "test"):
        rows = np.asarray(held_out.get(split, np.zeros((0, columns), int)))
        is_table = rows.ndim == 2 and rows.shape[1] == columns and rows.dtype.kind in "iu"
        if not is_table or rows.min(initial=0) < 0:
            raise ValueError(
                f"held_out[{split!r}] has shape {list(rows.shape)} and type {rows.dtype}; expected "
                f"integers [links, {columns}] of 0 or more: heads, tails"
                f"{', types' * (columns == 3)}."
            )
        heads, tails = (
            checked_ids(f"held_out[{split!r}]", rows[:, column], num_nodes) for column in (0, 1)
        )
        links = NodePairs(heads, tails, rows[:, 2] if columns == 3 else None)
        leaks = known.holds(links)
        if leaks.any():
            first = np.flatnonzero(leaks)[0]
            raise ValueError(
                f"held_out[{split!r}] leaks: {int(leaks.sum())} of {len(links)} links are edges of "
                f"the graph, which carry messages, such as {heads[first]} - {tails[first]}; remove "
                "them from the graph, in both directions."
            )
        found[split] = links
    return found


def _chosen(edges: EdgeSet, which: np.ndarray) -> EdgeSet:
    def of(values: Any) -> Any:
        return None if values is None else values[which]

    fields = {each.name: getattr(edges, each.name) for each in dataclasses.fields(edges)}
    data = {name: values[which] for name, values in fields.pop("edge_data").items()}
    return EdgeSet(**{name: of(values) for name, values in fields.items()}, edge_data=data)


def _typed(graph: Any, ends: Any, function: str) -> tuple[TypedGraph, tuple[str, str]]:
    """The graph with sets by name, and the sets of heads and tails."""
    if not isinstance(graph, TypedGraph):
        check_graph(graph, f"{function}(graph)")
        graph = TypedGraph.of(graph)
    sets: Any = ends or (graph.target, graph.target)
    if len(sets) != 2 or not set(sets) <= set(graph.node_sets):
        raise ValueError(
            f"ends is {ends!r}; expected the sets of nodes of heads and of tails, two of "
            f"{', '.join(map(repr, graph.node_sets))}."
        )
    taken = {LINK, HEAD, TAIL} & {*graph.node_sets, *(name for _, name, _ in graph.edge_sets)}
    if taken:
        raise ValueError(
            f"{function}(graph): the graph has a set {taken.pop()!r} already, the name of one that "
            "is added; give it another name."
        )
    return graph, sets
