"""Rows, edges and the interpreter for tests of the kernels."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks

from pallas_kernels.compatibility import interpreter
from pallas_kernels.rows import RowList, Rows
from pallas_kernels.schedule import cut_rows
from pallas_kernels.teams import Launch

FAR = np.iinfo(np.int32).max // 2
"""The value of padding after the last entry in use: the index of a row that no table has."""


needs_clusters = pytest.mark.skipif(
    not hasattr(gpu_callbacks, "call_allocate_cluster_barriers"),
    reason="this version's interpreter has no barrier for the blocks of a cluster (jax 0.10)",
)


def in_interpreter(warpgroups: int = 1, cluster: int = 1, cached: int = Launch.cached) -> Launch:
    """Two clusters; the interpreter looks for races between the warpgroups of each.

    It compiles every warpgroup separately: most tests have one, which reads little ahead.
    """
    return Launch(
        programs=2 * cluster,
        warpgroups=warpgroups,
        cluster=cluster,
        words=8,
        cached=cached,
        reuse=1,
        interpret=interpreter(),
    )


@dataclasses.dataclass(frozen=True)
class Graph:
    """Edges by row.

    Attributes:
      degrees: int [rows].
      neighbors: int32 [edges + 3], the last three of no edge.
      slots: int32 [edges + 3], a permutation.
      rows: the schedule.
    """

    degrees: np.ndarray
    neighbors: Any
    slots: Any
    rows: Rows

    @property
    def num_edges(self) -> int:
        return int(self.degrees.sum())

    def ends(self) -> list[tuple[int, int, int]]:
        """(row, neighbor, slot) of every edge."""
        owners = np.repeat(np.arange(len(self.degrees)), self.degrees)
        columns = (owners, self.neighbors[: self.num_edges], self.slots[: self.num_edges])
        return list(zip(*(column.tolist() for column in columns), strict=True))


def graph(
    degrees: list[int],
    neighbors: int,
    *,
    longest: int = 1000,
    every: bool = False,
    seed: int = 0,
) -> Graph:
    """A random graph.

    Args:
      degrees: of the rows.
      neighbors: number of neighbors.
      longest: most edges of a row that is not cut.
      every: whether rows without edges are reduced.
      seed: of the edges.

    Returns:
      The graph, with repeated edges.
    """
    rng, count = np.random.default_rng(seed), np.asarray(degrees)
    total = int(count.sum())
    return Graph(
        degrees=count,
        neighbors=_behind(rng.integers(0, neighbors, total)),
        slots=_behind(rng.permutation(total)),
        rows=schedule(count, longest, every),
    )


def schedule(degrees: np.ndarray, longest: int, every: bool = False) -> Rows:
    """The rows that have edges, or all of them, after a row that belongs to another group."""
    order = np.argsort(-degrees, kind="stable")
    order = order if every else order[degrees[order] > 0]
    starts = (np.cumsum(degrees) - degrees)[order]
    pieces = cut_rows(order, starts, degrees[order], longest)
    cut, count = len(pieces.joined_rows), len(order)
    whole = _listed(order, starts, degrees[order], (cut, count), 0)
    if not cut:
        return Rows(whole)
    largest = int(pieces.lengths.max())
    parts = (pieces.rows, pieces.starts, pieces.lengths)
    joined = (pieces.joined_rows, pieces.joined_starts, pieces.joined_lengths)
    return Rows(
        whole,
        _listed(*parts, (0, len(pieces.rows)), largest),
        _listed(*joined, (0, cut), 0),
        partials=len(pieces.rows),
    )


def _listed(
    rows: np.ndarray, starts: np.ndarray, lengths: np.ndarray, bounds: tuple[int, int], largest: int
) -> RowList:
    def shifted(values: np.ndarray) -> Any:
        return jnp.asarray(np.concatenate([[FAR], _behind(values)]))

    limits = jnp.asarray([bounds[0] + 1, bounds[1] + 1, largest], jnp.int32)
    return RowList(shifted(rows), shifted(starts), shifted(lengths), limits)


def _behind(values: np.ndarray) -> np.ndarray:
    return np.concatenate([values, np.full(3, FAR)]).astype(np.int32)
