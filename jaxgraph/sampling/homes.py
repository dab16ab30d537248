"""The device and the row of each node, and the rows that a sample reads of devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxgraph.layout.sample_tables import ASKED, NODE_IDS, PLACES
from jaxgraph.parallel import ShardedGraph
from jaxgraph.parallel.spmd import on_host
from jaxgraph.sampling.sources import Source

_OTHER = "sharded has other {} than the graph; shard the graph that is given, after all transforms"


@dataclasses.dataclass(frozen=True)
class Homes:
    """Where the rows of the nodes are.

    Attributes:
      owner: int32 [nodes], the device of each.
      row: int32 [nodes], its row there; None: batches bring all that there is of a node.
      rows: of each device.
      cached: int32 [nodes], the row in the cache, -1: none; or None: there is no cache.
      cache_rows: rows of the cache.
    """

    owner: np.ndarray
    row: np.ndarray | None
    rows: int
    cached: np.ndarray | None = None
    cache_rows: int = 0

    @property
    def places(self) -> np.ndarray:
        """int32 [nodes, 2], the device and the row of each node."""
        assert self.row is not None
        return np.stack([self.owner, self.row], 1)

    def requests(
        self, ids: np.ndarray, device: int, devices: int, held: int | None = None
    ) -> Requests:
        """The rows of some nodes, as a device reads them; `held`: the first so many, None: all."""
        held_ids, none = ids[:held], np.zeros(0, np.int64)
        if self.row is None:
            return Requests(ids, np.zeros(len(ids), np.int64), none, np.zeros(devices, int), none)
        if devices == 1:
            # Ids are nodes: clipping costs less than to refuse others.
            return Requests(ids, self.row.take(held_ids, mode="clip"), none, none, none)
        owner, places = self.owner[held_ids], self.row[held_ids].astype(np.int64)
        remote, copied = owner != device, 0
        if self.cached is not None:
            found = self.cached[held_ids]
            is_cached = remote & (found >= 0)
            copied = int(is_cached.sum())
            places[is_cached] = self.rows + found[is_cached]
            remote &= ~is_cached
        which = np.flatnonzero(remote)
        order = which[np.argsort(owner[which], kind="stable")]
        counts = np.bincount(owner[order], minlength=devices)
        return Requests(ids, places, order, counts, places[order], copied)


@dataclasses.dataclass(frozen=True)
class Requests:
    """The rows of some nodes, as a device reads them.

    Attributes:
      ids: int32 [nodes], the nodes.
      places: int64 [nodes with rows], own and cached rows; of others the row on its device.
      order: int [remote], the nodes that other devices hold, by device.
      counts: int [devices], how many of each.
      wanted: int64 [remote], their rows there.
      copied: how many of other devices are in the cache.
    """

    ids: np.ndarray
    places: np.ndarray
    order: np.ndarray
    counts: np.ndarray
    wanted: np.ndarray
    copied: int = 0

    def write(self, views: Mapping[str, np.ndarray], name: str, first: int) -> None:
        """Fills a set's arrays of a sample; rows of other devices are numbered from `first` on."""
        found, asked = self.places, views.get(name + ASKED)
        if asked is not None:
            device = np.repeat(np.arange(len(self.counts)), self.counts)
            before = np.cumsum(self.counts) - self.counts
            slot = np.arange(len(device)) - before[device]
            asked[...] = 0
            asked[device, slot] = self.wanted
            found[self.order] = first + device * asked.shape[1] + slot
        fill(views[name + NODE_IDS], self.ids)
        fill(views[name + PLACES], found)


def fill(array: np.ndarray, values: np.ndarray) -> None:
    """Writes values and, after them, zeros."""
    array[: len(values)] = values
    array[len(values) :] = 0


def homes_of(sharded: ShardedGraph, source: Source) -> dict[str, Homes]:
    """Where the rows of each set of nodes are, of devices that hold the source."""
    found = {}
    for name, nodes in source.sets.items():
        table = sharded.shards.tables[name]
        ids, mask = on_host(table.node_ids, table.node_mask)
        places = np.empty((2, int(mask.sum())), np.int32)
        places[:, ids[mask]] = np.nonzero(mask)
        found[name] = Homes(places[0], places[1], ids.shape[1])
        for field in ("labels", "train_mask", "val_mask", "test_mask"):
            given, placed = getattr(nodes, field), getattr(table, field)
            if given is not None and placed is not None:
                _check_alike(field, on_host(placed)[0][places[0], places[1]], given)
    for (name, _, receiver), edges in zip(source.ends, source.edges, strict=True):
        arrays, home = sharded.shards.edge_arrays[name], found[receiver]
        # Degrees tell most other edges.
        held: dict[str, Any] = {"edges": (arrays.at_receivers.in_degree, None)}
        if (arrays.edge_weight is None) != (edges.edge_weight is None):
            raise ValueError(_OTHER.format("edge_weight"))
        if arrays.at_receivers.weighted_in_degree is not None:
            held["edge_weight"] = (arrays.at_receivers.weighted_in_degree, edges.edge_weight)
        for field, (degrees, weights) in held.items():
            (degrees,) = on_host(degrees)
            given = np.bincount(edges.receivers, weights, len(home.owner))
            _check_alike(field, degrees[home.owner, home.row], given)
    return found


def _check_alike(field: str, held: np.ndarray, given: np.ndarray) -> None:
    """Refuses an array of the devices, in the order of the nodes, that is not the source's."""
    if not np.allclose(held, given, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise ValueError(_OTHER.format(field))
