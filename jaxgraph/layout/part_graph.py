"""The graph that parts were cut from, with its edges, its labels and masks, and no features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.layout.schema import EDGE_DATA, EDGE_PREFIX
from jaxgraph.layout.shard_tables import PartSource

_OF_NODES = ("labels", "train_mask", "val_mask", "test_mask")


def graph_of_parts(source: PartSource) -> Graph:
    """Reads the edges of all parts, part by part; edges are in the order of the parts."""
    found: dict[str, list[np.ndarray]] = {}
    for index in range(source.manifest.num_parts):
        part = source.part(index)
        mask = part["node_mask"]
        for name in ("node_ids", *_OF_NODES):
            if name in part:
                found.setdefault(name, []).append(np.asarray(part[name])[mask])
        for name, values in _edges(part).items():
            found.setdefault(name, []).append(values)
    joined: dict[str, Any] = {name: np.concatenate(each) for name, each in found.items()}
    ids = joined.pop("node_ids")
    for name in _OF_NODES:
        if name in joined:
            rows = joined[name]
            joined[name] = np.empty_like(rows)
            joined[name][ids] = rows
    own = [name for name in joined if name.startswith(EDGE_PREFIX)]
    data = {name.removeprefix(EDGE_PREFIX): joined.pop(name) for name in own}
    return Graph(num_nodes=len(ids), **joined, edge_data=data)


def _edges(part: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """The ends of the edges that end in a part, by id, and their data."""
    rows = "incoming/by_receiver/"
    starts, groups = (part[rows + name] for name in ("compressed_starts", "compressed_ptr"))
    count = int(starts[groups[-1]])
    lengths = np.diff(starts[: groups[-1] + 1])
    receivers = np.repeat(part[rows + "compressed_rows"][: groups[-1]], lengths)
    of_group = np.repeat(part["incoming/sender_ptr"], np.diff(starts[groups]))
    senders = part["incoming/sender_ids"][of_group + part[rows + "neighbors"][:count]]
    names = [name for name in part if name in EDGE_DATA or name.startswith(EDGE_PREFIX)]
    data = {name: np.asarray(part[name])[:count] for name in names}
    return {"senders": senders, "receivers": part["node_ids"][receivers], **data}
