"""The mathematics of layers, as pure functions of parameters, a shard and features."""

from jaxgraph.layers.attention import gat_conv, gatv2_conv
from jaxgraph.layers.convolutions import check_reduction, gcn_conv, gin_conv, sage_conv
from jaxgraph.layers.dense import check_rate, dropout, linear, require_rows
from jaxgraph.layers.normalization import batch_statistics, layer_norm, normalize
from jaxgraph.layers.recompute import recompute

__all__ = [
    "batch_statistics",
    "check_rate",
    "check_reduction",
    "dropout",
    "gat_conv",
    "gatv2_conv",
    "gcn_conv",
    "gin_conv",
    "layer_norm",
    "linear",
    "normalize",
    "recompute",
    "require_rows",
    "sage_conv",
]
