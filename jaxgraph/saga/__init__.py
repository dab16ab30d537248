"""NeuGraph's layers: Scatter, ApplyEdge, Gather and ApplyVertex.

    m_e = apply_edge(edge_e)                 for every edge e: j -> i, edge_e = (x_j, x_i, data_e)
    a_i = accumulate_{e: j -> i} m_e
    y_i = apply_vertex(x_i, a_i)

The two functions are the user's; Scatter and Gather are the library's. Whatever `apply_edge`
computes from one end alone is computed once per node (`jaxgraph.parallel.propagate`).

References:
  Ma et al., "NeuGraph: parallel deep neural network computation on large graphs", 2019, sections
  2.3 and 3.4.
"""

from jaxgraph.saga.models import (
    GCN,
    GGNN,
    CommConv,
    CommNet,
    GatedConv,
    GatedGCN,
    GatedGraphConv,
    WeightedConv,
)
from jaxgraph.saga.stages import Concatenation, Edge, Layer, layer

__all__ = [
    "GCN",
    "GGNN",
    "CommConv",
    "CommNet",
    "Concatenation",
    "Edge",
    "GatedConv",
    "GatedGCN",
    "GatedGraphConv",
    "Layer",
    "WeightedConv",
    "layer",
]


def __dir__() -> list[str]:
    return sorted(__all__)
