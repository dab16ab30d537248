"""Flax NNX modules that own parameters and call `jaxgraph.layers`, and ready models."""

from jaxgraph.layers import dropout
from jaxgraph.nn.convolutions import GATConv, GATv2Conv, GCNConv, GINConv, GINEConv, SAGEConv
from jaxgraph.nn.embedding import NodeEmbedding
from jaxgraph.nn.linear import Linear
from jaxgraph.nn.models import GAT, GCN, GIN, GINE, DeepGCN, GATv2, GraphSAGE
from jaxgraph.nn.normalization import BatchNorm, LayerNorm

__all__ = [
    "GAT",
    "GCN",
    "GIN",
    "GINE",
    "SAGE",
    "BatchNorm",
    "DeepGCN",
    "GATConv",
    "GATv2",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "GINEConv",
    "GraphSAGE",
    "LayerNorm",
    "Linear",
    "NodeEmbedding",
    "SAGEConv",
    "dropout",
]

SAGE = GraphSAGE
"""Short for `GraphSAGE`."""


def __dir__() -> list[str]:
    return sorted(__all__)
