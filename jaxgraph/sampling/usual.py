"""The usual sizes of samples, from those of some batches."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.layout.sample_tables import SampleSizes
from jaxgraph.partition import Partition
from jaxgraph.sampling.batches import Drawer
from jaxgraph.sampling.homes import Homes
from jaxgraph.sampling.neighbors import Draws
from jaxgraph.sampling.order import epoch_key, shuffled
from jaxgraph.sampling.sources import source_of

_PROBES = 8
"""Batches from which the usual sizes of a sample are found."""
_ROOM = 1.04


def most_seeds(batch_size: int, seeds: np.ndarray, devices: int) -> int:
    """The most seeds of a device in a batch."""
    return -(-min(batch_size, len(seeds)) // devices)


def probed(
    seeds: np.ndarray,
    batch_size: int,
    seed: int,
    needed: Callable[[np.ndarray, int], Iterable[SampleSizes]],
) -> list[SampleSizes]:
    """The least sizes of the samples of some batches: `needed(seeds of a batch, key)`."""
    key = epoch_key(seed, 0)
    ordered, found = shuffled(seeds, key), []
    for start in range(0, len(ordered), batch_size)[:_PROBES]:
        found += needed(ordered[start : start + batch_size], key)
    return found


def with_usual_room(sizes: SampleSizes) -> SampleSizes:
    """Sizes that hold most samples, given those that held some."""
    return sizes.with_room(_ROOM)


def usual_sizes(
    graph: Graph,
    fanouts: Sequence[int],
    parts: Partition,
    *,
    batch_size: int,
    method: str,
    seed: int,
) -> tuple[SampleSizes, SampleSizes]:
    """The sizes that a `Loader` of the graph in these parts compiles a step for.

    Returns:
      Those where devices fetch rows of features, and those where they hold columns.
    """
    source, owner = source_of(graph), parts.assignment.astype(np.int32)
    seeds, counts = source.seeds(None), np.bincount(owner, minlength=parts.num_parts)
    row, order = np.empty_like(owner), np.argsort(owner, kind="stable")
    row[order] = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    drawer = Drawer(
        neighbors=source.neighbors(None),
        draws=Draws(source.fanouts(fanouts), method=method),
        ends=source.ends,
        homes=dict.fromkeys(source.sets, Homes(owner, row, int(counts.max()))),
        target=source.target,
        batch=most_seeds(batch_size, seeds, parts.num_parts),
        devices=parts.num_parts,
        by_column=False,
    )
    # A sample is measured before the next one is drawn.
    samplers = dict.fromkeys(range(parts.num_parts), drawer.sampler())

    def sizes(drawer: Drawer) -> SampleSizes:
        def needed(seeds: np.ndarray, key: int) -> list[SampleSizes]:
            return [each.needed for each in drawer.drawings(samplers, seeds, key)]

        found = functools.reduce(SampleSizes.joined, probed(seeds, batch_size, seed, needed))
        return with_usual_room(found).with_room(1.0)

    return sizes(drawer), sizes(dataclasses.replace(drawer, by_column=True))
