"""The shapes of the parts of a graph that is not there, from its counts and a model of its degrees.

Of the d edges of a node, each comes from the node's own part with probability 1 - c and from every
other part with c / (parts - 1), independently; those from one part are then Poisson distributed.
Under hash c = (parts - 1) / parts. A partitioner of the kind of METIS is known by the halo that it
leaves, in rows per node of a part; c is what leads to that halo.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from jaxgraph.layout.column_tables import describe_columns
from jaxgraph.layout.description import FEWEST_ROWS, choose_halo_unit, describe
from jaxgraph.layout.extents import Extents, kinds_of
from jaxgraph.layout.manifest import ColumnSchedule, Counts, Manifest
from jaxgraph.layout.node_tables import Degrees, counted_arrays
from jaxgraph.layout.row_lengths import EdgeLengths, RowLengths
from jaxgraph.layout.schema import Kinds
from jaxgraph.partition.choices import checked_choice

DEGREES = ("power-law", "uniform")
"""Models of degrees: a power law, or edges between uniformly drawn nodes."""
METHODS = ("metis", "hash")
"""Partitioners that there is a model of."""
MOST = 10**15
"""The largest count."""
HALO_SHARE = 1.0
"""Rows of other parts over own rows that METIS is assumed to leave, where no share is given. At 8
parts it left 0.29 of Cora and 0.69 of Coauthor-CS; of meshes 0.01."""
METIS_NODES, METIS_EDGES = 1.03, 1.3
"""The largest part over the mean: nodes, which METIS balances, and edges, which it does not."""
_DEGREE_CLASSES = 256
_WIDE = 50.0
_EXACT = 8


@dataclasses.dataclass(frozen=True)
class GraphCounts:
    """A graph of which no more is known than how large it is.

    Attributes:
      num_nodes, num_edges: of the graph; edges are directed.
      num_features: of a node.
      num_classes: of the labels.
      degrees: one of `DEGREES`.
      exponent: of the power law.
      halo_share: rows of other parts that a part needs over its own rows, as METIS leaves them;
        None: `HALO_SHARE`.

    Raises:
      ValueError: a count is missing, negative or no whole number, or a name is unknown.
    """

    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    degrees: str = "power-law"
    exponent: float = 2.5
    halo_share: float | None = None

    def __post_init__(self) -> None:
        least = {"num_nodes": 1, "num_edges": 0, "num_features": 1, "num_classes": 1}
        for name, fewest in least.items():
            value = _whole(getattr(self, name))
            if value is None or not fewest <= value <= MOST:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; expected a whole number, at least "
                    f"{fewest} and at most {MOST:.0e}"
                )
            object.__setattr__(self, name, value)
        checked_choice("degrees", self.degrees, DEGREES)
        if not self.exponent > 2:
            raise ValueError(f"exponent is {self.exponent}; expected more than 2: a mean degree")
        if self.halo_share is not None and not 0 < self.halo_share < math.inf:
            raise ValueError(
                f"halo_share is {self.halo_share}; expected a number above 0: rows of other parts "
                "over own rows"
            )

    @property
    def mean_degree(self) -> float:
        """Edges of a node."""
        return self.num_edges / self.num_nodes


def _whole(value: Any) -> int | None:
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value != int(value):
        return None
    return int(value)


@dataclasses.dataclass(frozen=True)
class _Spread:
    """The spread of a part's edges over parts: probabilities of the own and of each other part."""

    own: float
    other: float
    parts: int


def _degrees(counts: GraphCounts) -> tuple[np.ndarray, np.ndarray]:
    """Classes of degrees, and the share of the nodes that each holds."""
    mean = counts.mean_degree
    if counts.degrees == "uniform" or mean == 0:
        return np.asarray([mean]), np.ones(1)
    # Of n draws of a power law, the largest grows as a root of n.
    slope = counts.exponent - 1
    largest = counts.num_nodes ** (1 / slope)
    edges = np.geomspace(1.0, max(largest, 2.0), _DEGREE_CLASSES + 1)
    share = edges[:-1] ** -slope - edges[1:] ** -slope
    values = np.sqrt(edges[:-1] * edges[1:])
    share /= share.sum()
    return np.minimum(values * mean / (values @ share), counts.num_nodes), share


def _thinned(degrees: np.ndarray, nodes: np.ndarray, probability: float) -> dict[int, float]:
    """{edges: nodes with so many}, where each edge of a node is kept with a probability."""
    found: dict[int, float] = {}

    def add(lengths: np.ndarray, weights: np.ndarray) -> None:
        for length, weight in zip(lengths.tolist(), weights.tolist(), strict=True):
            if length > 0:
                found[length] = found.get(length, 0.0) + weight

    for mean, count in zip(degrees * probability, nodes, strict=True):
        if probability == 1 and len(degrees) > 1:
            add(np.rint([max(mean, 1)]).astype(int), np.asarray([count]))
        elif mean < _WIDE:
            lengths = np.arange(int(mean + 8 * math.sqrt(mean) + 12))
            logs = lengths * math.log(mean or 1e-300) - mean - _log_factorials(len(lengths))
            add(lengths, count * np.exp(logs))
        else:
            steps = np.asarray([-1.28, -0.52, 0.0, 0.52, 1.28])
            add(np.rint(mean + steps * math.sqrt(mean)).astype(int), np.full(5, count / 5))
    return found


def _log_factorials(count: int) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count)))])


def _rows(found: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """Lengths, descending, and whole numbers of rows, whose running sum is rounded."""
    merged: dict[int, float] = {}
    for length, count in found.items():
        # Long rows are told apart by a quarter: of many parts there would be very many lengths.
        rounded = length if length <= _EXACT else round(1.25 ** round(math.log(length, 1.25)))
        merged[rounded] = merged.get(rounded, 0.0) + count
    lengths = np.asarray(sorted(merged, reverse=True), np.int64)
    running = np.rint(np.cumsum([merged[length] for length in lengths.tolist()]))
    rows = np.diff(running, prepend=0).astype(np.int64)
    return lengths[rows > 0], rows[rows > 0]


def _tables(groups: list[tuple[np.ndarray, np.ndarray]], tables: int) -> RowLengths:
    """The same groups in every table."""
    sizes = np.asarray([len(lengths) for lengths, _ in groups])
    numbers = np.repeat(np.arange(len(groups)), sizes)
    lengths = np.concatenate([lengths for lengths, _ in groups])
    rows = np.concatenate([rows for _, rows in groups])
    first = np.repeat(np.arange(tables) * len(groups), len(numbers))
    return RowLengths(
        first + np.tile(numbers, tables),
        np.tile(lengths, tables),
        np.tile(rows, tables),
        tables,
        len(groups),
    )


def _halo(counts: GraphCounts, spread: _Spread) -> float:
    degrees, share = _degrees(counts)
    return (spread.parts - 1) * float(share @ -np.expm1(-degrees * spread.other))


def _spread(counts: GraphCounts, parts: int, method: str) -> _Spread:
    if parts == 1:
        return _Spread(1.0, 0.0, 1)
    by_hash = _Spread(1 / parts, 1 / parts, parts)
    if method == "hash":
        return by_hash
    wanted = min(
        HALO_SHARE if counts.halo_share is None else counts.halo_share, _halo(counts, by_hash)
    )
    low, high = 0.0, 1 / parts
    for _ in range(60):
        middle = (low + high) / 2
        is_more = _halo(counts, _Spread(0.0, middle, parts)) > wanted
        low, high = (low, middle) if is_more else (middle, high)
    return _Spread(1 - (parts - 1) * low, low, parts)


def _skew(counts: GraphCounts, spread: _Spread, method: str) -> np.ndarray:
    """The halo from the part at each step of the ring over the mean of all.

    Of P parts that METIS cuts well a part needs much of one other: P / 2 times the mean. Where it
    leaves as much as hash does, all pairs are alike; between the two the exponent is linear.
    """
    parts = spread.parts
    skew = np.ones(parts - 1)
    if method == "hash" or parts < 3:
        return skew
    share = _halo(counts, spread)
    saved = 1 - share / _halo(counts, _Spread(1 / parts, 1 / parts, parts)) if share else 0.0
    # No part needs more than all rows of another.
    most = (parts - 1) / max(share, 1.0)
    skew[0] = min((parts / 2) ** saved, most)
    skew[1:] = (parts - 1 - skew[0]) / (parts - 2)
    return skew


def _largest(counts: GraphCounts, parts: int, method: str) -> tuple[int, float]:
    """Nodes of the largest part, and its edges over the mean."""
    mean = counts.num_nodes / parts
    if parts == 1:
        return counts.num_nodes, 1.0
    if method == "metis":
        return min(math.ceil(METIS_NODES * mean), counts.num_nodes), METIS_EDGES
    degrees, share = _degrees(counts)
    # The largest of so many sums of independent numbers.
    deviations = math.sqrt(2 * math.log(parts))
    nodes = math.ceil(mean + deviations * math.sqrt(mean))
    second = float(share @ degrees**2) / max(counts.mean_degree, 1e-9) ** 2
    return min(nodes, counts.num_nodes), 1 + deviations * math.sqrt(second / mean)


def counted_extents(counts: GraphCounts, parts: int, mode: str, method: str) -> Extents:
    """The extents of a graph by its counts."""
    spread, (degrees, share) = _spread(counts, parts, method), _degrees(counts)
    nodes = share * counts.num_nodes / parts
    own = _thinned(degrees, nodes, spread.own)
    other = _thinned(degrees, nodes, spread.other) if parts > 1 else {}
    skew = _skew(counts, spread, method)
    groups = [_rows(own), *(_rows({n: count * f for n, count in other.items()}) for f in skew)]
    if mode == "sar":
        by_receiver = by_sender = _tables(groups, parts)
    else:
        senders = dict(own)
        for length, count in other.items():
            senders[length] = senders.get(length, 0.0) + (parts - 1) * count
        by_receiver = _tables([_rows(_thinned(degrees, nodes, 1.0))], parts)
        by_sender = _tables([_rows(senders)], parts)
    largest, more_edges = _largest(counts, parts, method)
    needed = np.asarray([0, *(int(rows.sum()) for _, rows in groups[1:])])
    part, other_part = np.ogrid[:parts, :parts]
    halo = needed[(part - other_part) % parts]
    part_nodes = np.full(parts, counts.num_nodes // parts, np.int64)
    part_nodes[0] = largest
    part_edges = np.full(parts, math.ceil(counts.num_edges / parts * more_edges), np.int64)
    leaving = float(nodes @ -np.expm1(-degrees * spread.other * (parts - 1)))
    return Extents(
        mode=mode,
        counts=Counts(counts.num_nodes, counts.num_edges, int(halo.sum())),
        num_classes=counts.num_classes,
        multilabel=False,
        part_nodes=part_nodes,
        part_edges=part_edges,
        boundary=min(max(math.ceil(leaving), int(needed.max())), largest),
        halo=halo,
        reach=np.zeros_like(halo) if mode == "domain" else halo,
        lengths=EdgeLengths(by_receiver, by_sender),
        has_repetitions=False,
        data=_data(counts),
    )


def _data(counts: GraphCounts) -> Kinds:
    degrees = Degrees(0, weighted=False).arrays()
    counted = kinds_of(counted_arrays(degrees, np.zeros(0, np.int64)))
    masks = dict.fromkeys(("train_mask", "val_mask", "test_mask"), ((), np.dtype(bool)))
    labels, features = ((), np.dtype(np.int32)), ((counts.num_features,), np.dtype(np.float32))
    return {**counted, **masks, "labels": labels, "nodes": features}


def counted_manifest(
    counts: GraphCounts,
    parts: int,
    mode: str,
    method: str,
    *,
    topology: str | None = None,
    chunks: int = 1,
) -> Manifest:
    """The shapes of a graph by its counts."""
    checked_choice("method", method, METHODS)
    extents = counted_extents(counts, parts, mode, method)
    manifest = describe(extents, choose_halo_unit([extents]), chunks, FEWEST_ROWS)
    if topology is None:
        return manifest
    if counts.num_features < parts:
        raise ValueError(
            f"the graph has {counts.num_features} feature column(s) for {parts} devices; "
            "mode='p3' gives every device a slice of its own: take fewer devices or another mode"
        )
    holders = 1 if topology == "replicated" else parts
    degrees, share = _degrees(counts)
    nodes = share * counts.num_nodes / (holders * chunks)
    receivers = _rows(_thinned(degrees, nodes, 1.0))
    senders = share * counts.num_nodes
    spread = _Spread(1.0, 0.0, 1) if holders == 1 else _spread(counts, parts, method)
    near = _thinned(degrees, senders / holders, spread.own / chunks)
    far = _thinned(degrees, senders * (holders - 1) / holders, spread.other / chunks)
    for length, count in far.items():
        near[length] = near.get(length, 0.0) + count
    lengths = EdgeLengths(
        _tables([receivers], holders * chunks), _tables([_rows(near)], holders * chunks)
    )
    schedule = ColumnSchedule(counts.num_features, parts, 1, topology, chunks, lengths)
    share_of_edges = 1.0 if holders == 1 else extents.part_edges.max() / counts.num_edges
    slots = math.ceil(counts.num_edges * share_of_edges / chunks)
    return describe_columns(extents, manifest, schedule, slots)
