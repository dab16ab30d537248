"""The edges of a graph by receiver, and how neighbours are drawn from them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from jaxgraph.partition.sorting import counting_argsort, index_dtype


@dataclasses.dataclass(frozen=True)
class Draws:
    """The way in which neighbours are drawn; by their weights where there are some.

    Attributes:
      fanouts: the most neighbours of a node in each layer, the first layer first, for each set of
        edges; -1: all.
      replace: whether a neighbour can be drawn more than once.
      method: "neighbors", or "labor": receivers share the numbers of their senders (LABOR-0), and
        have so many neighbours in the mean.
    """

    fanouts: tuple[tuple[int, ...], ...]
    replace: bool = False
    method: str = "neighbors"


@dataclasses.dataclass
class Drawn:
    """The sizes of what was drawn.

    Attributes:
      nodes: of each set, in the node tables from that of the first layer's senders to the seeds'.
      edges: of each set in each layer, the first layer first.
    """

    nodes: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Neighbors:
    """The edges of a graph by receiver.

    Attributes:
      pointers: int64 [nodes + 1], where the edges of each node start.
      senders: int32 [edges], by receiver, then by sender.
      edges: int32 (int64 where needed) [edges], the edge's number in the graph.
      weights: float32 [edges], by which neighbours are drawn; None: all alike.
    """

    pointers: np.ndarray
    senders: np.ndarray
    edges: np.ndarray
    weights: np.ndarray | None = None

    @functools.cached_property
    def cumulative(self) -> np.ndarray:
        """int64 [edges + 1], the sums of the weights before each edge, in units of 2**-31.

        The unit is relative to the largest weight of the receiver. Sums of integers have no
        rounding: the differences within a row are exact.
        """
        assert self.weights is not None
        degrees = np.diff(self.pointers)
        with_edges = degrees > 0
        largest = np.maximum.reduceat(self.weights, self.pointers[:-1][with_edges])
        largest = np.repeat(np.where(largest > 0, largest, 1), degrees[with_edges])
        units = np.ceil(self.weights / largest.astype(np.float64) * 2**31)
        return np.append(np.int64(0), np.cumsum(units.astype(np.int64)))

    def repetition(self) -> np.ndarray | None:
        """int32 [edges], the number of each edge among those with equal ends; None: all are 0."""
        first = np.ones(len(self.senders), bool)
        first[1:] = self.senders[1:] != self.senders[:-1]
        first[self.pointers[:-1][np.diff(self.pointers) > 0]] = True
        if first.all():
            return None
        starts = np.flatnonzero(first)
        counts = np.diff(np.append(starts, len(first)))
        found = np.empty(len(first), np.int32)
        found[self.edges] = np.arange(len(first)) - np.repeat(starts, counts)
        return found


def neighbors_of(
    num_nodes: int,
    senders: np.ndarray,
    receivers: np.ndarray,
    weights: np.ndarray | None = None,
) -> Neighbors:
    """Orders edges by receiver, those of a receiver by sender, and equal ones as the graph does.

    The order is the same however the edges came here, so that the same ones are drawn.
    """
    by_sender = counting_argsort(senders, int(senders.max(initial=0)) + 1)
    order = by_sender[counting_argsort(receivers[by_sender], num_nodes)]
    order = order.astype(index_dtype(len(senders)), copy=False)
    degrees = np.bincount(receivers, minlength=num_nodes)
    pointers = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    ordered = None if weights is None else np.asarray(weights, np.float32)[order]
    return Neighbors(pointers, np.asarray(senders, np.int32)[order], order, ordered)


def check_method(
    method: Any, replace: Any = False, weights: Any = None, *, name: str = "method"
) -> None:
    """Refuses a method that there is not, or one that other arguments contradict."""
    if method not in ("neighbors", "labor"):
        raise ValueError(f"{name} is {method!r}; expected 'neighbors' or 'labor'")
    if method == "labor" and (replace or weights is not None):
        raise ValueError(
            "method 'labor' draws all neighbours alike, and none twice; leave out replace and "
            "weights, or take method='neighbors'"
        )
