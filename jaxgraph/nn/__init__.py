"""Flax NNX modules that own parameters and call `jaxgraph.layers`, and ready models."""

from jaxgraph.layers import dropout
from jaxgraph.nn.convolutions import (
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GINEConv,
    RGCNConv,
    SAGEConv,
)
from jaxgraph.nn.decoders import DistMult, InnerProduct, LinkMLP
from jaxgraph.nn.embedding import NodeEmbedding
from jaxgraph.nn.linear import Linear
from jaxgraph.nn.models import (
    GAT,
    GCN,
    GIN,
    GINE,
    RGCN,
    DeepGCN,
    GATv2,
    GraphSAGE,
    StackedModel,
)
from jaxgraph.nn.normalization import BatchNorm, LayerNorm, RestrictedBatchNorm
from jaxgraph.nn.pna import PNA, PNAConv
from jaxgraph.nn.propagation import APPNP, GCNII, SGC, GCN2Conv
from jaxgraph.nn.readout import GraphReadout, LinkReadout
from jaxgraph.nn.stack import Stack
from jaxgraph.nn.transformer import Transformer, TransformerConv
from jaxgraph.nn.typed import HeteroConv
from jaxgraph.other_names import refuse_names

__all__ = [
    "APPNP",
    "GAT",
    "GCN",
    "GCNII",
    "GIN",
    "GINE",
    "PNA",
    "RGCN",
    "SAGE",
    "SGC",
    "BatchNorm",
    "DeepGCN",
    "DistMult",
    "GATConv",
    "GATv2",
    "GATv2Conv",
    "GCN2Conv",
    "GCNConv",
    "GINConv",
    "GINEConv",
    "GraphReadout",
    "GraphSAGE",
    "HeteroConv",
    "InnerProduct",
    "LayerNorm",
    "Linear",
    "LinkMLP",
    "LinkReadout",
    "NodeEmbedding",
    "PNAConv",
    "RGCNConv",
    "RestrictedBatchNorm",
    "SAGEConv",
    "Stack",
    "StackedModel",
    "Transformer",
    "TransformerConv",
    "dropout",
]

SAGE = GraphSAGE
"""Short for `GraphSAGE`."""


def __dir__() -> list[str]:
    return sorted(__all__)


refuse_names(__name__)
