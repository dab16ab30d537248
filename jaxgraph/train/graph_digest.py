"""Digests of the data of sharded graphs, whatever their partition, mode and devices.

An array of nodes is the sum, modulo 2**64, of its bits times a random number of the node's id and
one of the column: h = sum_vk a(v) b(k) x_vk. An array of edges has a number of both ends in place
of a(v). So each process adds up its own parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxgraph.graph_arrays import NODE_FIELDS
from jaxgraph.parallel import ShardedGraph
from jaxgraph.parallel.feature_protocol import features_of, plain_features
from jaxgraph.seeds import mix
from jaxgraph.train.agreement import from_all
from jaxgraph.train.identity import definition

# Features are digested by themselves: they have kinds.
_OF_NODES = tuple(name for name in NODE_FIELDS if name != "nodes")
_OF_EDGES = ("edges", "edge_weight", "edge_type")
_TOPOLOGY = ("neighbors", "compressed_ptr", "compressed_rows", "compressed_starts")


def of_graphs(graphs: Sequence[ShardedGraph]) -> dict[str, str]:
    """Digests of the arrays of graphs, by name; all processes call it."""
    own: Counter[str] = Counter()
    types: dict[str, str] = {}
    for number, graph in enumerate(graphs):
        for part in _parts(graph):
            for of_set, arrays in part.items():
                for name, kind, value in _hashed(arrays):
                    name = f"{of_set}: {name}" if of_set else name
                    name = f"graph {number}: {name}" if number else name
                    own[name] += value
                    types[name] = kind
    of_all = from_all(own)
    totals = {name: sum(each[name] for each in of_all) % 2**64 for name in own}
    return {name: definition((types[name], str(n))) for name, n in totals.items() if n}


def _parts(graph: ShardedGraph) -> Iterator[dict[str, dict[str, Any]]]:
    """The arrays of each part of this process, on the host; with it, columns that it holds."""
    if graph.is_streamed:
        host: Any = graph.parts  # pyright: ignore[reportAttributeAccessIssue]
        numbered = _arrays(jax.tree.structure(host.like).unflatten(range(len(host.keys))))
        for part in host.own:
            yield jax.tree.map(lambda number, part=part: host.leaf(number, part), numbered)
        return
    arrays = _arrays(graph.shards)
    for held in jax.tree.leaves(arrays)[0].addressable_shards:
        device = held.index[0].start or 0
        on_host = jax.tree.map(lambda leaf, device=device: _held_by(leaf, device), arrays)
        for of_set in on_host.values():
            features = of_set["features"]
            if features is not None and not features_of(features).is_digested_on(device):
                of_set["features"] = None
        yield on_host


def _held_by(leaf: jax.Array, device: int) -> np.ndarray:
    shards = leaf.addressable_shards
    return np.asarray(next(s for s in shards if (s.index[0].start or 0) == device).data)[0]


def _arrays(shard: Any) -> dict[str, dict[str, Any]]:
    """The fields that are hashed, as they are; of several sets, those of each by its name."""
    if shard.is_typed:
        nodes = {f"nodes {name}": _of_table(shard.table(name)) for name in shard.given("table")}
        return nodes | {
            f"edges {name}": _of_relation(shard.relation(name)) for name in shard.given("relation")
        }
    columns = shard.columns
    of_columns = columns and (columns.nodes.node_ids, columns.nodes.node_mask)
    return {"": _of_relation(shard) | _of_table(shard) | {"column_nodes": of_columns}}


def _of_table(table: Any) -> dict[str, Any]:
    named = {f"node_data[{name!r}]": value for name, value in table.node_data.items()}
    return {
        "ids": table.node_ids,
        "mask": table.node_mask,
        "features": plain_features(table.nodes),
        "column_nodes": None,
        "of_nodes": {name: getattr(table, name) for name in _OF_NODES} | named,
    }


def _of_relation(relation: Any) -> dict[str, Any]:
    incoming, nodes = relation.incoming, relation.receivers
    named = {f"edge_data[{name!r}]": value for name, value in relation.edge_data.items()}
    return {
        "ids": nodes.node_ids,
        "mask": nodes.node_mask,
        "features": None,
        "of_nodes": {},
        "of_edges": {name: getattr(relation, name) for name in _OF_EDGES} | named,
        "topology": {name: getattr(incoming.by_receiver, name) for name in _TOPOLOGY}
        | {"sender_ids": incoming.sender_ids, "sender_ptr": incoming.sender_ptr},
    }


def _hashed(part: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Name, type and sum of each array of a part."""
    of_nodes = np.where(part["mask"], _random(part["ids"]), np.uint64(0))
    pairs = [(of_nodes, part["of_nodes"])]
    if "topology" in part:
        of_edges = _of_edges(part["topology"], part["ids"])
        pairs.append((of_edges, part["of_edges"]))
        yield "senders, receivers", "", int(of_edges.sum())
    if part["features"] is not None:
        yield from _of_features(part["features"], part["column_nodes"], of_nodes)
    for numbers, arrays in pairs:
        for name, values in arrays.items():
            if values is not None:
                values = np.asarray(values)[: len(numbers)]
                found = features_of(values).digest(numbers, _random)
                yield name, f"{values.dtype}{values.shape[1:]}", found


def _of_edges(topology: dict[str, Any], ids: np.ndarray) -> np.ndarray:
    """A random number of both ends of each edge, uint64 [edges], in the order of slots."""
    pointers = topology["compressed_ptr"]
    count = pointers[-1]
    lengths = np.diff(topology["compressed_starts"][: count + 1])
    receivers = np.repeat(ids[topology["compressed_rows"][:count]], lengths)
    senders = topology["neighbors"][: len(receivers)]
    if topology["sender_ptr"] is not None:
        groups = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))
        senders = senders + np.repeat(topology["sender_ptr"][groups], lengths)
    return _random(_random(topology["sender_ids"][senders]) + receivers.astype(np.uint64))


def _of_features(
    features: Any, column_nodes: Any, of_nodes: np.ndarray
) -> Iterator[tuple[str, str, int]]:
    """As `_hashed`, of features, or of a device's columns of all nodes."""
    features = features_of(features)
    if features.is_split:
        ids, mask = column_nodes
        of_nodes = np.where(mask, _random(ids), np.uint64(0))
    yield "nodes", f"{features.dtype}{[features.width]}", features.digest(of_nodes, _random)


def _random(numbers: Any) -> np.ndarray:
    """Odd numbers of 64 bits that look random: an even one would lose the highest bit."""
    return mix(np.asarray(numbers).astype(np.uint64)) | np.uint64(1)
