"""Generated graphs of the sizes and degrees of well-known ones, and models for them."""

from __future__ import annotations

import dataclasses
from typing import Any

from flax import nnx

import jaxgraph as jg

DEGREE_EXPONENT = 2.5
"""Exponent of the power law of degrees."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """A generated graph: block model, power law of degrees, both directions of every edge.

    Attributes:
      num_nodes: number of nodes.
      num_edges: directed edges, up to one.
      num_features: features of a node.
      num_classes: classes, which are the blocks.
    """

    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int


OGBN_ARXIV = Shape(169_343, 2_484_941, 128, 40)
"""With both directions of its edges and a loop at every node."""

OGBN_PRODUCTS = Shape(2_449_029, 123_718_280, 100, 47)
"""With the published numbers."""


def generate(shape: Shape, *, scale: int = 1, seed: int = 0) -> jg.Graph:
    """Makes a graph.

    Args:
      shape: shape of the graph.
      scale: factor by which it has fewer nodes, at the same degree.
      seed: seed of the generator.

    Returns:
      The graph.
    """
    return jg.datasets.load(
        "sbm",
        num_nodes=shape.num_nodes // scale,
        degree=shape.num_edges / shape.num_nodes,
        num_features=shape.num_features,
        num_classes=shape.num_classes,
        degree_exponent=DEGREE_EXPONENT,
        seed=seed,
    )


def make_model(name: str, features: int, width: int, classes: int, layers: int = 3) -> nnx.Module:
    """A model with batch norm and dropout; attention has 4 heads of a quarter of the width."""
    kinds: dict[str, Any] = {
        "gcn": jg.nn.GCN,
        "sage": jg.nn.GraphSAGE,
        "gat": jg.nn.GAT,
        "gatv2": jg.nn.GATv2,
    }
    options: dict[str, Any] = {"num_layers": layers, "norm": "batch", "dropout": 0.5}
    if name.startswith("gat"):
        options["num_heads"], width = 4, width // 4
    return kinds[name](features, width, classes, **options, rngs=nnx.Rngs(0))
