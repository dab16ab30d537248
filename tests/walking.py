"""The edge tables of a part, read back lane by lane as `jaxgraph.ops.edges` documents them."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from jaxgraph.partition.manifest import Manifest, fill_value
from jaxgraph.partition.shard_tables import PartSource

Arrays = Mapping[str, np.ndarray]


class Lane(NamedTuple):
    """One edge as an orientation stores it."""

    slot: int
    compact: int
    row: int
    neighbor: int


class Edge(NamedTuple):
    """One edge in terms of the tables of a group: its slot by receiver and the rows at its ends."""

    slot: int
    sender: int
    receiver: int


def padded_parts(source: PartSource) -> list[dict[str, np.ndarray]]:
    """All parts in the shapes of the manifest."""
    parts = []
    for index in range(source.manifest.num_parts):
        part = source.part(index)
        arrays = {}
        for name, (shape, dtype) in source.manifest.array_shapes().items():
            arrays[name] = np.full(shape, fill_value(name, len(shape)), dtype)
            arrays[name][tuple(slice(0, size) for size in part[name].shape)] = part[name]
        parts.append(arrays)
    return parts


def lanes(arrays: Arrays, prefix: str, group: int, chunk: int) -> Iterator[Lane]:
    """The lanes of all chunks of one group of an orientation.

    Every chunk is read as the device reads it, by a slice of full length from its first slot; a
    slice that does not fit into its array fails.
    """

    def table(name: str) -> np.ndarray:
        return arrays[f"{prefix}/{name}"]

    def window(values: np.ndarray, start: int) -> np.ndarray:
        found = values[start : start + chunk]
        assert len(found) == chunk, f"{prefix}: a chunk from {start} leaves its array"
        return found

    for kind in ("light", "heavy"):
        first, last = table(f"{kind}_ptr")[group], table(f"{kind}_ptr")[group + 1]
        for index in range(first, last):
            slot, compact = int(table(f"{kind}_slots")[index]), int(table(f"{kind}_rows")[index])
            count = int(table(f"{kind}_counts")[index])
            assert 0 < count <= chunk
            row_start = int(table("row_ptr")[group]) + compact
            rows = window(table("rows"), row_start)
            neighbors = window(table("neighbors"), slot)
            for lane in range(count):
                shift = lane if kind == "light" else 0
                yield Lane(slot + lane, compact + shift, int(rows[shift]), int(neighbors[lane]))


def edges_by_receiver(arrays: Arrays, name: str, group: int, chunk: int) -> list[Edge]:
    """The edges of a group as the orientation by receiver has them, by slot."""
    found = lanes(arrays, f"{name}/by_receiver", group, chunk)
    return sorted(Edge(lane.slot, lane.neighbor, lane.row) for lane in found)


def edges_by_sender(arrays: Arrays, name: str, group: int, chunk: int) -> list[Edge]:
    """The edges of a group as the orientation by sender has them, by slot by receiver."""
    ids = arrays[f"{name}/by_sender/edge_ids"]
    found = lanes(arrays, f"{name}/by_sender", group, chunk)
    return sorted(Edge(int(ids[lane.slot]), lane.row, lane.neighbor) for lane in found)


def num_groups(arrays: Arrays, name: str) -> int:
    """How many groups some edges are in."""
    return len(arrays[f"{name}/by_receiver/row_ptr"])


def global_ends(arrays: Arrays, name: str, group: int, edge: Edge) -> tuple[int, int]:
    """The ids in the whole graph of sender and receiver."""
    if name == "incoming":
        first = arrays["incoming/sender_ptr"][min(group, len(arrays["incoming/sender_ptr"]) - 1)]
        sender = arrays["incoming/sender_ids"][first + edge.sender]
        return int(sender), int(arrays["node_ids"][edge.receiver])
    first = arrays["outgoing/receiver_ptr"][group]
    receiver = arrays["outgoing/receiver_ids"][first + edge.receiver]
    return int(arrays["node_ids"][edge.sender]), int(receiver)


def sent_ids(arrays: Arrays, table: str, step: int) -> list[int]:
    """The ids in the whole graph of the rows of a halo table for one step of the ring, in order."""
    first, last = arrays[f"{table}/ptr"][step - 1], arrays[f"{table}/ptr"][step]
    return arrays["node_ids"][arrays[f"{table}/rows"][first:last]].tolist()


def check_orientation(arrays: Arrays, name: str, manifest: Manifest) -> None:
    """Asserts what chunks promise, and that both orientations hold the same edges once each."""
    chunk = manifest.chunk
    capacities = {
        "incoming": (manifest.receiver_capacity, manifest.sender_capacity),
        "outgoing": (manifest.outgoing_receiver_capacity, manifest.outgoing_sender_capacity),
    }
    for side, capacity in zip(("by_receiver", "by_sender"), capacities[name], strict=True):
        slots: list[int] = []
        for group in range(num_groups(arrays, name)):
            found = list(lanes(arrays, f"{name}/{side}", group, chunk))
            slots += [lane.slot for lane in found]
            compact = {lane.compact: lane.row for lane in found}
            assert sorted(compact) == list(range(len(compact)))
            assert len(set(compact.values())) == len(compact)
            assert len(compact) + chunk <= capacity
        assert sorted(slots) == list(range(len(slots)))
    for group in range(num_groups(arrays, name)):
        by_receiver = edges_by_receiver(arrays, name, group, chunk)
        assert by_receiver == edges_by_sender(arrays, name, group, chunk)
