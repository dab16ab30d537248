"""The refusal of edge data that a layer would ignore, and of half of it."""

from __future__ import annotations

from collections.abc import Collection

from jaxgraph.parallel.neighborhood import Neighborhood, check_neighborhood
from jaxgraph.parallel.ptags import EDGE_DATA
from jaxgraph.parallel.shard import Shard

__all__ = ["check_edge_data", "check_weights_kept"]


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


def check_weights_kept(shard: Neighborhood, layer: str) -> None:
    """Raises ValueError if a shard has lost the weights of its edges, but nothing else of them.

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
