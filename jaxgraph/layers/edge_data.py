"""Checks that a layer uses the edge data that a graph has."""

from __future__ import annotations

from collections.abc import Collection

import jax

from jaxgraph.parallel.neighborhood import Neighborhood, check_neighborhood
from jaxgraph.parallel.ptags import EDGE_DATA

_USERS = {
    "edge_weight": "GCN, GraphSAGE and GIN use edge_weight",
    "edges": "GAT, GATv2 and GINE use edges, made with edge_features={width}",
}


def check_edge_data(shard: Neighborhood, layer: str, uses: Collection[str] = ()) -> None:
    """Raises ValueError where a graph has edge data that a layer does not use."""
    check_neighborhood(shard)
    ignored = [n for n in EDGE_DATA if n not in uses and getattr(shard, n) is not None]
    if not ignored:
        return
    nothing = ", ".join(f"{name}=None" for name in ignored)
    width = shard.edges.shape[-1] if shard.edges is not None else 0
    others = "".join("; " + _USERS[n].format(width=width) for n in ignored if n in _USERS)
    raise ValueError(
        f"{layer} does not use {' and '.join(ignored)} of the graph{others}. Drop what is not to "
        f"be used with graph.replace({nothing}) before jaxgraph.parallel.shard, by "
        "--ignore-edge-data on the command line, or for one layer of a model with "
        f"shard.replace({nothing}); or write a layer that uses it with "
        "jaxgraph.parallel.propagate"
    )


def check_edge_features(shard: Neighborhood, layer: str, kernel: jax.Array | None) -> None:
    """Raises ValueError unless a layer uses exactly the edge data that a graph has."""
    check_edge_data(shard, layer, () if kernel is None else ("edges",))
    if kernel is None:
        return
    width, edges = kernel.shape[0], shard.edges
    if edges is None:
        raise ValueError(
            f"{layer} maps {width} edge features, and the graph has none. Give it some with "
            f"graph.replace(edges=...), float [num_edges, {width}], or make the layer without "
            "edge_features"
        )
    if edges.ndim != 2 or edges.shape[1] != width:
        raise ValueError(
            f"{layer} maps {width} edge features, and the graph's edges have "
            f"{edges.shape[-1]}; make the layer with edge_features={edges.shape[-1]}"
        )
