"""Edges as the seeds of batches, with pairs that are no edges beside them, drawn in each epoch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxgraph.graph_arrays import checked_choice
from jaxgraph.kinds import check_positive, kind_of
from jaxgraph.links import HEAD, LINK, TAIL, training_links
from jaxgraph.negatives import Known, NodePairs, drawn
from jaxgraph.sampling.neighbors import Neighbors
from jaxgraph.typed_graph import EdgeSet, TypedGraph

CORRUPTIONS = ("both ends", "one end")


@dataclasses.dataclass(frozen=True, eq=False)
class Links:
    """The links that batches have, and the pairs beside them, for `jaxgraph.sampling.Loader`.

    Negatives are drawn anew in each epoch, by a hash of the seed, the epoch and the link: the same
    on any number of devices and processes. A batch has them beside their link.

    Args:
      edges: int [links], numbers of the edges to learn; None: all, but for self-loops and, where
        edges have no types, of an edge and its reverse the first.
      negatives: pairs for each link.
      corrupt: "both ends": two uniform nodes, which are not the same; "one end": the link with
        its head or its tail replaced.
      avoid_known: whether a pair that is an edge of the graph, of the type of its link, is drawn
        again. Links that are held out are not known.

    Raises:
      ValueError: an argument is of the wrong kind.
    """

    edges: Any = None
    _: dataclasses.KW_ONLY
    negatives: int = 1
    corrupt: str = "both ends"
    avoid_known: bool = True

    def __post_init__(self) -> None:
        check_positive("negatives", self.negatives)
        if self.corrupt not in CORRUPTIONS:
            raise ValueError(
                f"corrupt is {self.corrupt!r}; expected one of {', '.join(map(repr, CORRUPTIONS))}"
            )


@dataclasses.dataclass(frozen=True, eq=False)
class LinkSeeds:
    """The links of an epoch: those to learn, then the negatives of each.

    Attributes:
      given: how negatives are drawn.
      pairs: the links to learn.
      sizes: nodes of the sets of heads and of tails.
      is_one_set: whether these are the same set.
      known: edges that are no negatives, or None.
    """

    given: Links
    pairs: NodePairs
    sizes: tuple[int, int]
    is_one_set: bool
    known: Known | None

    def with_negatives(self, seeds: np.ndarray) -> np.ndarray:
        """The numbers of some links and of their negatives."""
        count = self.given.negatives
        of_each = seeds[:, None] * count + np.arange(count)
        return np.concatenate([seeds, len(self.pairs) + of_each.reshape(-1)])

    def neighbors(self, key: int) -> dict[str, Neighbors]:
        """The ends of all links of an epoch, each the only neighbour of its link."""
        how = {"one_end": self.given.corrupt == "one end", "is_one_set": self.is_one_set}
        found = drawn(self.pairs, self.given.negatives, self.sizes, key, known=self.known, **how)
        pointers = np.arange(len(self.pairs) + len(found) + 1)
        edges = pointers[:-1].astype(np.int32)
        return {
            name: Neighbors(
                pointers,
                np.concatenate([getattr(self.pairs, end), getattr(found, end)]).astype(np.int32),
                edges,
            )
            for name, end in ((HEAD, "heads"), (TAIL, "tails"))
        }

    def of_links(self, values: np.ndarray) -> np.ndarray:
        """Values of the links to learn, for all links of an epoch."""
        return np.concatenate([values, np.repeat(values, self.given.negatives)])

    @functools.cached_property
    def targets(self) -> Mapping[str, np.ndarray]:
        """Arrays of all links of an epoch, by name: labels 1 and 0, and types."""
        labels = self.of_links(np.zeros(len(self.pairs), np.int32))
        labels[: len(self.pairs)] = 1
        found = {"labels": labels}
        if self.pairs.types is not None:
            found["link_type"] = self.of_links(self.pairs.types.astype(np.int32))
        return found


def link_seeds(graph: Any, links: Any) -> LinkSeeds:
    """The links that a loader's batches have, checked."""
    if not isinstance(links, Links):
        raise ValueError(f"links is {kind_of(links)}; expected jaxgraph.sampling.Links(...)")
    if not isinstance(graph, TypedGraph) or graph.readout != (HEAD, TAIL):
        raise ValueError(
            f"links: {graph!r} has no set {LINK!r} of links; make one by "
            "jaxgraph.transforms.link_split(graph)"
        )
    ends = {name: sender for sender, name, _ in graph.edge_sets if name in (HEAD, TAIL)}
    between = [
        edges
        for (sender, name, receiver), edges in graph.edge_sets.items()
        if (sender, receiver) == (ends[HEAD], ends[TAIL])
    ]
    if len(between) != 1:
        raise ValueError(
            f"links: {len(between)} sets of edges go from {ends[HEAD]!r} to {ends[TAIL]!r}; "
            "expected one, whose edges are the links to learn"
        )
    (edges,) = between
    sizes = graph.node_sets[ends[HEAD]].num_nodes, graph.node_sets[ends[TAIL]].num_nodes
    is_one_set, known = ends[HEAD] == ends[TAIL], None
    every = NodePairs(edges.senders, edges.receivers, edges.edge_type)
    if links.avoid_known:
        # Without types, an edge tells of its reverse.
        both_ways = is_one_set and edges.edge_type is None
        known = Known.of(sizes, every, both_ways=both_ways)
    chosen = every.chosen(_chosen(edges, links, is_one_set))
    return LinkSeeds(links, chosen, sizes, is_one_set, known)


def _chosen(edges: EdgeSet, links: Links, is_one_set: bool) -> np.ndarray:
    """The numbers of the edges to learn, in ascending order."""
    if links.edges is not None:
        which = checked_choice("links.edges", links.edges, edges.num_edges)
    else:
        which = training_links(edges) if is_one_set else np.arange(edges.num_edges)
    if not len(which) or len(which) * (1 + links.negatives) >= 2**31:
        raise ValueError(
            f"links: {len(which):,} links with {links.negatives} negatives each; expected at least "
            "one link, and fewer than 2**31 pairs"
        )
    return np.sort(which)
