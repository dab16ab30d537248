"""A copy on every device of the rows that samples read most."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

from jaxgraph.layout.sample_tables import (
    COUNTS,
    SampleSizes,
    empty_words,
)
from jaxgraph.parallel.samples import cache_of
from jaxgraph.sampling.batches import Maker
from jaxgraph.sampling.homes import Homes


def with_cache(maker: Maker, reads: Mapping[str, np.ndarray], num_bytes: int) -> Maker:
    """The maker with a cache; each set has an equal share of the bytes.

    Args:
      maker: the maker.
      reads: int [nodes] of each set, how often a node is read, in proportion.
      num_bytes: of a device.
    """
    counts = {}
    for name, of_set in reads.items():
        leaves = jax.tree.leaves(maker.sharded.shards.tables[name])
        row = sum(leaf.nbytes // (leaf.shape[0] * leaf.shape[1]) for leaf in leaves)
        counts[name] = min(num_bytes // len(reads) // row, len(of_set))
    if maker.devices == 1:
        return maker
    if not all(counts.values()):
        raise ValueError(
            f"cache_bytes is {num_bytes}, which holds no row of each of {len(counts)} set(s) of "
            "nodes; give more, or leave it out"
        )
    hot = {
        name: np.argsort(-of_set, kind="stable")[: counts[name]].astype(np.int32)
        for name, of_set in reads.items()
    }
    local = maker.local_devices()
    asked = [int(np.bincount(maker.homes[name].owner[ids]).max()) for name, ids in hot.items()]
    rows = tuple(counts.values())
    sizes = SampleSizes(tuple(hot), (), (rows,), (), maker.devices, tuple(asked))
    words = empty_words(len(local), sizes)
    homes: dict[str, Homes] = {}
    for name, ids in hot.items():
        known = maker.homes[name]
        for (device, _), own in zip(local, words, strict=True):
            views, requests = sizes.views(own), known.requests(ids, device, maker.devices)
            views[COUNTS][...] = rows
            requests.write(views, name, known.rows)
        cached = np.full(len(known.owner), -1, np.int32)
        cached[ids] = np.arange(len(ids))
        homes[name] = dataclasses.replace(known, cached=cached, cache_rows=len(ids))
    cache = cache_of(maker.sharded, maker.on_devices(list(words)), sizes, maker.ends)
    return dataclasses.replace(maker, homes={**maker.homes, **homes}, cache=cache)
