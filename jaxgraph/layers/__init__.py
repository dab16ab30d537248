"""Pure functions that compute layers from parameters, a neighbourhood and features."""

from jaxgraph.layers.activations import elu
from jaxgraph.layers.attention import gat_conv, gatv2_conv
from jaxgraph.layers.attention_weights import attention_weights
from jaxgraph.layers.convolutions import gcn_conv, gin_conv, sage_conv, sgc_conv
from jaxgraph.layers.dense import MAPPED, dropout, linear
from jaxgraph.layers.edge_dropout import dropout_edge
from jaxgraph.layers.gine import gine_conv
from jaxgraph.layers.normalization import STATISTICS, batch_norm, layer_norm, normalize
from jaxgraph.layers.pna import AGGREGATORS, SCALERS, pna_conv
from jaxgraph.layers.propagation import appnp_propagate, gcn2_conv
from jaxgraph.layers.readout import readout
from jaxgraph.layers.relational import rgcn_conv
from jaxgraph.layers.remat import ACTIVATED, INPUT, LAYER_INPUT, RematPolicy
from jaxgraph.layers.transformer import transformer_conv

__all__ = [
    "ACTIVATED",
    "AGGREGATORS",
    "INPUT",
    "LAYER_INPUT",
    "MAPPED",
    "SCALERS",
    "STATISTICS",
    "RematPolicy",
    "appnp_propagate",
    "attention_weights",
    "batch_norm",
    "dropout",
    "dropout_edge",
    "elu",
    "gat_conv",
    "gatv2_conv",
    "gcn2_conv",
    "gcn_conv",
    "gin_conv",
    "gine_conv",
    "layer_norm",
    "linear",
    "normalize",
    "pna_conv",
    "readout",
    "rgcn_conv",
    "sage_conv",
    "sgc_conv",
    "transformer_conv",
]


def __dir__() -> list[str]:
    return sorted(__all__)
