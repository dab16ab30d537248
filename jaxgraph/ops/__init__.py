"""Differentiable ops on the edges of one shard: no collectives, no scatter."""

from jaxgraph.ops.aggregation import aggregate
from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.dot import dot_attention
from jaxgraph.ops.edge_normalization import edge_softmax
from jaxgraph.ops.edge_products import sddmm
from jaxgraph.ops.gat import gat_attention
from jaxgraph.ops.gatv2 import gatv2_attention
from jaxgraph.ops.registry import implementations
from jaxgraph.ops.usable import chosen

__all__ = [
    "Block",
    "aggregate",
    "chosen",
    "dot_attention",
    "edge_softmax",
    "gat_attention",
    "gatv2_attention",
    "implementations",
    "sddmm",
]


def __dir__() -> list[str]:
    return sorted(__all__)
