"""Pure functions that compute layers from parameters, a neighbourhood and features."""

from jaxgraph.layers.activations import elu, keeping_output
from jaxgraph.layers.aggregated import (
    AggregatedFeatures,
    Aggregation,
    Features,
    FirstAggregation,
    aggregate_by_columns,
    plain_features,
)
from jaxgraph.layers.aggregations import NeighborReduction, SymmetricSum, first_aggregation
from jaxgraph.layers.attention import gat_conv, gat_stages, gatv2_conv, gatv2_stages
from jaxgraph.layers.attention_weights import attention_weights
from jaxgraph.layers.convolutions import (
    check_reduction,
    gcn_conv,
    gcn_stages,
    gin_conv,
    gin_stages,
    sage_conv,
    sage_stages,
)
from jaxgraph.layers.dense import MAPPED, check_rate, dropout, linear, require_rows
from jaxgraph.layers.derived import DerivedFeatures
from jaxgraph.layers.edge_data import check_edge_data
from jaxgraph.layers.edge_dropout import dropout_edge
from jaxgraph.layers.gine import gine_conv, gine_stages
from jaxgraph.layers.normalization import (
    STATISTICS,
    batch_norm,
    batch_statistics,
    layer_norm,
    normalize,
)
from jaxgraph.layers.pna import AGGREGATORS, SCALERS, check_scaling, pna_conv
from jaxgraph.layers.propagation import (
    appnp_propagate,
    check_alpha,
    check_identity,
    gcn2_conv,
)
from jaxgraph.layers.recompute import recompute
from jaxgraph.layers.remat import ACTIVATED, INPUT, LAYER_INPUT, RematPolicy
from jaxgraph.layers.transformer import transformer_conv, transformer_stages

__all__ = [
    "ACTIVATED",
    "AGGREGATORS",
    "INPUT",
    "LAYER_INPUT",
    "MAPPED",
    "SCALERS",
    "STATISTICS",
    "AggregatedFeatures",
    "Aggregation",
    "DerivedFeatures",
    "Features",
    "FirstAggregation",
    "NeighborReduction",
    "RematPolicy",
    "SymmetricSum",
    "aggregate_by_columns",
    "appnp_propagate",
    "attention_weights",
    "batch_norm",
    "batch_statistics",
    "check_alpha",
    "check_edge_data",
    "check_identity",
    "check_rate",
    "check_reduction",
    "check_scaling",
    "dropout",
    "dropout_edge",
    "elu",
    "first_aggregation",
    "gat_conv",
    "gat_stages",
    "gatv2_conv",
    "gatv2_stages",
    "gcn2_conv",
    "gcn_conv",
    "gcn_stages",
    "gin_conv",
    "gin_stages",
    "gine_conv",
    "gine_stages",
    "keeping_output",
    "layer_norm",
    "linear",
    "normalize",
    "plain_features",
    "pna_conv",
    "recompute",
    "require_rows",
    "sage_conv",
    "sage_stages",
    "transformer_conv",
    "transformer_stages",
]


def __dir__() -> list[str]:
    return sorted(__all__)
