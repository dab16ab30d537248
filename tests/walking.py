"""The edge tables of a part, read back lane by lane as `jaxgraph.ops.edges` documents them."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from jaxgraph.partition.manifest import Manifest, fill_value
from jaxgraph.partition.shard_tables import PartSource

Arrays = Mapping[str, np.ndarray]


class Lane(NamedTuple):
    """One edge as an orientation walks it: its slot there, compact row, row and neighbour."""

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

    Every chunk is read as the device reads it, by a slice of the walk of full length; a slice that
    does not fit into its array fails.
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
            place, compact = int(table(f"{kind}_slots")[index]), int(table(f"{kind}_rows")[index])
            count = int(table(f"{kind}_counts")[index])
            assert 0 < count <= chunk
            row_start = int(table("row_ptr")[group]) + compact
            rows = window(table("rows"), row_start)
            slots = window(table("walk"), place)
            neighbors = table("neighbors")[slots]
            for lane in range(count):
                shift = lane if kind == "light" else 0
                row, neighbor = int(rows[shift]), int(neighbors[lane])
                yield Lane(int(slots[lane]), compact + shift, row, neighbor)


def edges_by_receiver(arrays: Arrays, name: str, group: int, chunk: int) -> list[Edge]:
    """The edges of a group as the orientation by receiver has them, by slot."""
    found = lanes(arrays, f"{name}/by_receiver", group, chunk)
    return sorted(Edge(lane.slot, lane.neighbor, lane.row) for lane in found)


def edges_by_sender(arrays: Arrays, name: str, group: int, chunk: int) -> list[Edge]:
    """The edges of a group as the orientation by sender has them, by slot by receiver."""
    ids = arrays[f"{name}/by_sender/edge_ids"]
    found = lanes(arrays, f"{name}/by_sender", group, chunk)
    return sorted(Edge(int(ids[lane.slot]), lane.row, lane.neighbor) for lane in found)


def compressed_edges(arrays: Arrays, name: str, side: str, group: int) -> list[Edge]:
    """The edges of a group as the compressed rows of an orientation have them, by slot by receiver.

    Asserts that rows have edges and stand in the order of their slots.
    """
    prefix = f"{name}/{side}"
    starts, neighbors = arrays[f"{prefix}/compressed_starts"], arrays[f"{prefix}/neighbors"]
    edges = []
    for index in compressed_range(arrays, prefix, group):
        row, first, last = (
            arrays[f"{prefix}/compressed_rows"][index],
            starts[index],
            starts[index + 1],
        )
        assert first < last
        for slot in range(first, last):
            if side == "by_receiver":
                edges.append(Edge(slot, int(neighbors[slot]), int(row)))
            else:
                slot_by_receiver = int(arrays[f"{prefix}/edge_ids"][slot])
                edges.append(Edge(slot_by_receiver, int(row), int(neighbors[slot])))
    return sorted(edges)


def compressed_range(arrays: Arrays, prefix: str, group: int) -> range:
    """Which compressed rows belong to a group."""
    pointers = arrays[f"{prefix}/compressed_ptr"]
    return range(pointers[group], pointers[group + 1])


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
    """Asserts what chunks and rows promise, and that all of them hold the same edges once each."""
    chunk = manifest.chunk
    capacities = {
        "incoming": (manifest.receiver_capacity, manifest.sender_capacity),
        "outgoing": (manifest.outgoing_receiver_capacity, manifest.outgoing_sender_capacity),
    }
    for side, capacity in zip(("by_receiver", "by_sender"), capacities[name], strict=True):
        slots: list[int] = []
        for group in range(num_groups(arrays, name)):
            found = list(lanes(arrays, f"{name}/{side}", group, chunk))
            # A group's slots are consecutive, behind those of the groups before it.
            assert sorted(lane.slot for lane in found) == list(
                range(len(slots), len(slots) + len(found))
            )
            slots += [lane.slot for lane in found]
            compact = {lane.compact: lane.row for lane in found}
            assert sorted(compact) == list(range(len(compact)))
            assert len(set(compact.values())) == len(compact)
            assert len(compact) + chunk <= capacity
            own = compressed_range(arrays, f"{name}/{side}", group)
            rows = arrays[f"{name}/{side}/compressed_rows"][own.start : own.stop]
            assert sorted(rows.tolist()) == sorted(compact.values())
        check_compressed_ends(arrays, f"{name}/{side}", len(slots))
        assert len(arrays[f"{name}/{side}/neighbors"]) == len(arrays[f"{name}/{side}/walk"])
    for group in range(num_groups(arrays, name)):
        by_receiver = edges_by_receiver(arrays, name, group, chunk)
        assert by_receiver == edges_by_sender(arrays, name, group, chunk)
        for side in ("by_receiver", "by_sender"):
            assert by_receiver == compressed_edges(arrays, name, side, group)


def check_compressed_ends(arrays: Arrays, prefix: str, num_edges: int) -> None:
    """Asserts that compressed rows start at slot 0 and end behind the last edge."""
    starts, pointers = (arrays[f"{prefix}/compressed_{name}"] for name in ("starts", "ptr"))
    assert len(starts) == len(arrays[f"{prefix}/compressed_rows"]) + 1
    assert pointers[0] == 0
    assert starts[0] == 0
    assert starts[pointers[-1]] == num_edges


def check_walk_position(arrays: Arrays, num_edges: int) -> None:
    """Asserts that positions lead back from every slot to its place in the walk, and no further."""
    walk, position = arrays["incoming/by_receiver/walk"], arrays["incoming/walk_position"]
    assert len(position) == len(walk)
    assert walk[position[:num_edges]].tolist() == list(range(num_edges))
    assert np.all(position[:num_edges] < num_edges)
    assert np.all(position[num_edges:] == -1)
