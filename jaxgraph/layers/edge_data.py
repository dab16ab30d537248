"""Checks that a layer uses the edge data that a graph has."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax

from jaxgraph.layers.aggregated import AggregatedFeatures
from jaxgraph.parallel.features import FeatureColumns
from jaxgraph.parallel.neighborhood import Neighborhood, check_neighborhood
from jaxgraph.parallel.ptags import EDGE_DATA
from jaxgraph.parallel.shard import Shard

__all__ = [
    "check_edge_data",
    "check_edge_features",
    "check_edge_types",
    "check_weighted",
    "check_weights_kept",
]

_USERS = {
    "edge_weight": "GCN, GraphSAGE and GIN use edge_weight",
    "edges": "GAT, GATv2 and GINE use edges, made with edge_features={width}",
}


def check_edge_data(shard: Neighborhood, layer: str, uses: Collection[str] = ()) -> None:
    """Raises ValueError where a graph has edge data that a layer does not use.

    Args:
      shard: a shard, or the shards of a sharded graph.
      layer: name of the layer, for the message.
      uses: the names among "edges", "edge_weight" and "edge_type" that it uses.

    Raises:
      ValueError: the graph has others, or the argument is no shard.
    """
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
    """Raises ValueError unless a layer uses exactly the edge data that a graph has.

    Args:
      shard: a shard, or another neighbourhood.
      layer: name of the layer, for the message.
      kernel: float [edge_features, ...], the layer's map of edge features, or None: it has none.

    Raises:
      ValueError: only one of graph and layer has edge features, or their widths differ; the graph
        has other edge data; or the argument is no shard.
    """
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


def check_edge_types(shard: Neighborhood, layer: str, num_types: int) -> None:
    """Raises ValueError where the graph's edges are known to have types that a layer has not.

    Args:
      shard: a shard, or another neighbourhood.
      layer: name of the layer, for the message.
      num_types: its number of types.
    """
    manifest = getattr(shard.receivers, "manifest", None)
    if manifest is not None and manifest.num_edge_types > num_types:
        found = manifest.num_edge_types
        raise ValueError(
            f"{layer} has num_edge_types={num_types}, types 0 to {num_types - 1}, and edges of the "
            f"graph have types up to {found - 1}. Make it with num_edge_types={found}, or number "
            "the types that there are from 0: types, edge_type = numpy.unique(graph.edge_type, "
            "return_inverse=True); graph.replace(edge_type=edge_type)"
        )


def check_weighted(shard: Neighborhood, layer: str, x: Any) -> None:
    """Raises ValueError if a graph has other edge data than weights, or lost weights of x.

    Args:
      shard: a shard, or another neighbourhood.
      layer: name of the layer, for the message.
      x: its features.
    """
    check_edge_data(shard, layer, ("edge_weight",))
    if isinstance(x, FeatureColumns | AggregatedFeatures):
        # Their edges or sums have the weights of the placed graph.
        check_weights_kept(shard, layer)


def check_weights_kept(shard: Neighborhood, layer: str) -> None:
    """Raises ValueError if a shard has lost its edge weights, but still has weighted degrees.

    Args:
      shard: a shard, or another neighbourhood.
      layer: name of the layer, for the message.
    """
    is_weighted = isinstance(shard, Shard) and shard.weighted_in_degree is not None
    if is_weighted and shard.edge_weight is None:
        raise ValueError(
            f"{layer} got a shard without edge_weight, but with weighted_in_degree; drop the "
            "weights with graph.replace(edge_weight=None) before jaxgraph.parallel.shard"
        )
