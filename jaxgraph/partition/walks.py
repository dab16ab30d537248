"""How the edges of all parts are walked: which rows on their own, and in how many chunks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from jaxgraph.partition.degrees import DegreeCounts, count_chunks, split_rows
from jaxgraph.partition.manifest import Manifest
from jaxgraph.partition.survey import Survey

__all__ = ["Walk", "choose_walks", "leaving"]

Shape = tuple[int, ...]
CHUNK_ROOM = 4
"""Tables of chunks can be longer by one part in so many. They are small beside the edges, and so
graphs that differ a little fit into the same shapes."""


@dataclasses.dataclass(frozen=True)
class Walk:
    """One orientation of the edges of all parts.

    Attributes:
      thresholds: int64 [parts, groups], the degree from which a row's edges are kept apart.
      rows, light, heavy: int64 [parts, groups], rows that have edges, chunks that lie in slabs, and
        chunks of rows that are kept apart.
    """

    thresholds: np.ndarray
    rows: np.ndarray
    light: np.ndarray
    heavy: np.ndarray

    def leaving(self) -> Walk:
        """The same by the part that the edges leave, without those that stay."""
        fields = (self.thresholds, self.rows, self.light, self.heavy)
        return Walk(*(leaving(values) for values in fields))

    def capacity(self, chunk: int) -> int:
        """Compact rows of the largest group, plus one chunk."""
        return int(self.rows.max()) + chunk

    def extents(self, prefix: str, edges: int, *, room: bool) -> Iterator[tuple[str, Shape]]:
        """The lengths of the arrays of an orientation, without slack.

        Args:
          prefix: what their names start with.
          edges: of the largest part.
          room: whether to leave room for more chunks.

        Yields:
          Names and shapes.
        """
        groups = self.rows.shape[1]
        for kind, chunks in (("light", self.light), ("heavy", self.heavy)):
            yield f"{prefix}/{kind}_ptr", (groups + 1,)
            most = _most(chunks)
            more = most // CHUNK_ROOM + groups if most and room else 0
            for field in ("slots", "rows", "counts"):
                yield f"{prefix}/{kind}_{field}", (most + more,)
        yield f"{prefix}/neighbors", (edges,)
        yield f"{prefix}/walk", (edges,)
        yield f"{prefix}/row_ptr", (groups,)
        yield f"{prefix}/compressed_ptr", (groups + 1,)
        for field in ("rows", "compressed_rows", "compressed_starts"):
            yield f"{prefix}/{field}", (_most(self.rows),)
        yield f"{prefix}/position", (0,)
        if prefix.endswith("by_sender"):
            yield f"{prefix}/edge_ids", (edges,)


def choose_walks(survey: Survey, chunk: int, within: Manifest | None = None) -> tuple[Walk, Walk]:
    """How edges are walked by receiver, and by sender.

    Args:
      survey: the graph.
      chunk: edges handled at a time.
      within: shapes into which the chunks have to fit. Where those of the cheapest walk do not,
        fewer rows are kept apart; where that does not help, the cheapest walk is returned.

    Returns:
      Both walks.
    """
    by_receiver = _choose_walk(survey, survey.receiver_degrees, "by_receiver", chunk, within)
    return by_receiver, _choose_walk(survey, survey.sender_degrees, "by_sender", chunk, within)


def _choose_walk(
    survey: Survey, counts: DegreeCounts, side: str, chunk: int, within: Manifest | None
) -> Walk:
    cheapest = walk = _walk(survey, counts, chunk, 1)
    least, largest = 1, int(counts.degrees.max(initial=0))
    while within is not None and not _fits(walk, side, within):
        if least > largest:
            return cheapest
        least *= 2
        walk = _walk(survey, counts, chunk, least)
    return walk


def _walk(survey: Survey, counts: DegreeCounts, chunk: int, least: int) -> Walk:
    thresholds = split_rows(counts, chunk, least)[0]
    light, heavy = count_chunks(counts, thresholds, chunk)
    fields = (thresholds, counts.by_group(counts.rows), light, heavy)
    return Walk(*(values.reshape(survey.num_parts, -1) for values in fields))


def _fits(walk: Walk, side: str, within: Manifest) -> bool:
    shapes = within.array_shapes()
    sides = {f"incoming/{side}": walk}
    if f"outgoing/{side}/light_slots" in shapes:
        sides[f"outgoing/{side}"] = walk.leaving()
    return all(
        _most(chunks) <= shapes[f"{prefix}/{kind}_slots"][0][0]
        for prefix, each in sides.items()
        for kind, chunks in (("light", each.light), ("heavy", each.heavy))
    )


def leaving(values: np.ndarray) -> np.ndarray:
    """[parts, groups] of edges by the part they end in, as [parts, steps] by that they leave."""
    part, step = np.ogrid[: len(values), 1 : len(values)]
    return values[(part + step) % len(values), step]


def _most(values: np.ndarray) -> int:
    """The largest total of a part, of [parts, groups]."""
    return int(values.sum(axis=1).max())
