"""The refusal of edge data that a layer would ignore."""

from __future__ import annotations

from collections.abc import Collection

from jaxgraph.parallel.neighborhood import Neighborhood, check_neighborhood
from jaxgraph.parallel.ptags import EDGE_DATA

__all__ = ["check_edge_data"]


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
    others = "; gcn_conv (GCN) uses edge_weight" if ignored == ["edge_weight"] else ""
    raise ValueError(
        f"{layer} does not use {' and '.join(ignored)} of the graph{others}. Drop what is not to "
        f"be used with graph.replace({nothing}) before jaxgraph.parallel.shard, by "
        "--ignore-edge-data on the command line, or for one layer of a model with "
        f"dataclasses.replace(shard, {nothing}); or write a layer that uses it with "
        "jaxgraph.parallel.propagate"
    )
