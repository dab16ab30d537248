"""The edge tables of a part, read back lane by lane as in `jaxgraph.ops.core.edges`."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from jaxgraph.layout.derived.chunks import PIECE
from jaxgraph.layout.derived.rows import sizes_of
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.placed import placed_part
from jaxgraph.layout.shard_tables import PartSource

Arrays = Mapping[str, np.ndarray]


class Lane(NamedTuple):
    """One edge in the order of an orientation: its slot there, compact row, row and neighbour."""

    slot: int
    compact: int
    row: int
    neighbor: int


class Edge(NamedTuple):
    """One edge in terms of the tables of a group: its slot by receiver and the rows at its ends."""

    slot: int
    sender: int
    receiver: int


def placed_parts(source: PartSource, implementation: str = "xla") -> list[dict[str, np.ndarray]]:
    """All parts as devices store them."""
    manifest = source.manifest
    return [
        placed_part(source, manifest, index, implementation) for index in range(manifest.num_parts)
    ]


def lanes(arrays: Arrays, prefix: str, group: int, chunk: int) -> Iterator[Lane]:
    """The edges of one group of an orientation, compact row by compact row.

    Every row is read like on the device: together with the following rows of a block, and a heavy
    one run by run. A slice beyond the end of its array fails.
    """

    def window(name: str, start: int, size: int) -> np.ndarray:
        found = arrays[f"{prefix}/{name}"][start : start + size]
        assert len(found) == size, f"{prefix}: {name} from {start} leaves its array"
        return found

    first = arrays[f"{prefix}/run_ptr"][group]
    count = len(compressed_range(arrays, prefix, group))
    for compact, at in enumerate(range(first, first + count)):
        row, start, degree = (
            int(window(name, at, chunk // PIECE)[0]) for name in ("rows", "starts", "degrees")
        )
        cut = [(start, degree)]
        if compact < arrays[f"{prefix}/heavy_rows"][group]:
            first = arrays[f"{prefix}/run_ptr"][group] + start
            cut = []
            for run in range(first, first + degree):
                assert window("rows", run, 1)[0] == row
                cut.append([int(window(name, run, 1)[0]) for name in ("starts", "degrees")])
        for start, degree in cut:
            for slot in range(start, start + degree):
                yield Lane(slot, compact, row, int(window("neighbors", slot, 1)[0]))


def edges_by_receiver(arrays: Arrays, name: str, group: int, chunk: int) -> list[Edge]:
    """The edges of a group from the orientation by receiver, by slot."""
    found = lanes(arrays, f"{name}/by_receiver", group, chunk)
    return sorted(Edge(lane.slot, lane.neighbor, lane.row) for lane in found)


def edges_by_sender(arrays: Arrays, name: str, group: int, chunk: int) -> list[Edge]:
    """The edges of a group from the orientation by sender, by slot by receiver."""
    ids = arrays[f"{name}/by_sender/edge_ids"]
    found = lanes(arrays, f"{name}/by_sender", group, chunk)
    return sorted(Edge(int(ids[lane.slot]), lane.row, lane.neighbor) for lane in found)


def compressed_edges(arrays: Arrays, name: str, side: str, group: int) -> list[Edge]:
    """The edges of a group from the compressed rows of an orientation, by slot by receiver.

    Asserts that rows have edges and are in the order of their slots.
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
    """The range of the compressed rows of a group."""
    pointers = arrays[f"{prefix}/compressed_ptr"]
    return range(pointers[group], pointers[group + 1])


def num_groups(arrays: Arrays, name: str) -> int:
    """The number of edge groups of the incoming or the outgoing edges."""
    return len(arrays[f"{name}/by_receiver/heavy_rows"])


def global_ends(arrays: Arrays, name: str, group: int, edge: Edge) -> tuple[int, int]:
    """The global ids of sender and receiver."""
    if name == "incoming":
        first = arrays["incoming/sender_ptr"][min(group, len(arrays["incoming/sender_ptr"]) - 1)]
        sender = arrays["incoming/sender_ids"][first + edge.sender]
        return int(sender), int(arrays["node_ids"][edge.receiver])
    first = arrays["outgoing/receiver_ptr"][group]
    receiver = arrays["outgoing/receiver_ids"][first + edge.receiver]
    return int(arrays["node_ids"][edge.sender]), int(receiver)


def sent_ids(arrays: Arrays, table: str, step: int) -> list[int]:
    """The global ids of the rows of a halo table for one step of the ring, in order."""
    first, last = arrays[f"{table}/ptr"][step - 1], arrays[f"{table}/ptr"][step]
    return arrays["node_ids"][arrays[f"{table}/rows"][first:last]].tolist()


def check_orientation(arrays: Arrays, name: str, manifest: Manifest) -> None:
    """Asserts the promises of chunks and rows, and that all hold the same edges, once each."""
    sizes = sizes_of(manifest.edge_sets[name])
    chunk = sizes.chunk
    for side in ("by_receiver", "by_sender"):
        capacity = getattr(sizes, side).capacity
        slots: list[int] = []
        for group in range(num_groups(arrays, name)):
            found = list(lanes(arrays, f"{name}/{side}", group, chunk))
            # A group's slots are consecutive, after those of the groups before it.
            assert sorted(lane.slot for lane in found) == list(
                range(len(slots), len(slots) + len(found))
            )
            slots += [lane.slot for lane in found]
            compact = {lane.compact: lane.row for lane in found}
            assert sorted(compact) == list(range(len(compact)))
            assert len(set(compact.values())) == len(compact)
            own = compressed_range(arrays, f"{name}/{side}", group)
            rows = arrays[f"{name}/{side}/compressed_rows"][own.start : own.stop]
            assert sorted(rows.tolist()) == sorted(compact.values())
            first, last = arrays[f"{name}/{side}/run_ptr"][group : group + 2]
            assert len(compact) <= last - first <= capacity - chunk // PIECE
            degrees = arrays[f"{name}/{side}/degrees"][first : first + len(own)]
            heavy = arrays[f"{name}/{side}/heavy_rows"][group]
            assert 0 <= heavy <= len(own)
            # Runs of heavy rows, and edges of the others.
            assert np.all(np.diff(degrees[:heavy]) <= 0)
            assert np.all(np.diff(degrees[heavy:]) <= 0)
            assert degrees[:heavy].sum() == last - first - len(own)
        check_compressed_ends(arrays, f"{name}/{side}", len(slots))
    for group in range(num_groups(arrays, name)):
        by_receiver = edges_by_receiver(arrays, name, group, chunk)
        assert by_receiver == edges_by_sender(arrays, name, group, chunk)
        for side in ("by_receiver", "by_sender"):
            assert by_receiver == compressed_edges(arrays, name, side, group)


def check_compressed_ends(arrays: Arrays, prefix: str, num_edges: int) -> None:
    """Asserts that compressed rows start at slot 0 and end after the last edge."""
    starts, pointers = (arrays[f"{prefix}/compressed_{name}"] for name in ("starts", "ptr"))
    assert len(starts) == len(arrays[f"{prefix}/compressed_rows"]) + 1
    assert pointers[0] == 0
    assert starts[0] == 0
    assert starts[pointers[-1]] == num_edges


def check_receivers(arrays: Arrays, chunk: int) -> None:
    """Asserts that every slot by receiver has its receiver, and that a chunk fits from there on."""
    receivers = arrays["incoming/receivers"]
    for group in range(num_groups(arrays, "incoming")):
        for edge in edges_by_receiver(arrays, "incoming", group, chunk):
            assert receivers[edge.slot] == edge.receiver
            assert edge.slot + chunk <= len(receivers)
