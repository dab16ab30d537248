"""Generated graphs of the sizes and degrees of well-known ones, and models for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
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


@dataclasses.dataclass(frozen=True)
class TypedShape:
    """A generated graph of several sets, with communities and power laws of degrees.

    Attributes:
      num_nodes: nodes of each set.
      num_edges: edges of each relation, by its ends.
      target: set of nodes that has features and classes.
      num_features: features of its nodes.
      num_classes: classes, which are the communities.
    """

    num_nodes: Mapping[str, int]
    num_edges: Mapping[tuple[str, str, str], int]
    target: str
    num_features: int
    num_classes: int


OGBN_MAG = TypedShape(
    {"paper": 736_389, "author": 1_134_649, "institution": 8_740, "field_of_study": 59_965},
    {
        ("author", "affiliated_with", "institution"): 1_043_998,
        ("author", "writes", "paper"): 7_145_660,
        ("paper", "cites", "paper"): 5_416_271,
        ("paper", "has_topic", "field_of_study"): 7_505_078,
    },
    "paper",
    128,
    349,
)
"""With the published numbers, without inverses."""

_SHARES = (0.85, 0.09, 0.06)
"""Of training, validation and test, as in ogbn-mag."""
_SIGNAL = 0.25
"""Distance of the means of classes in units of the noise, per feature."""


def generate_typed(
    shape: TypedShape, *, scale: float = 1.0, inside: float = 0.7, seed: int = 0
) -> jg.TypedGraph:
    """Makes a graph of several sets, in which no edge repeats another, or is a loop.

    Nodes are in communities of equal size, which span all sets. There are as many as classes, but
    none without a node of each set, so that a small graph has fewer classes.

    Args:
      shape: shape of the graph.
      scale: nodes and edges relative to the shape, such as 0.1.
      inside: the share of edges that are drawn inside of a community.
      seed: seed of the generator.

    Returns:
      The graph; `jaxgraph.transforms.with_inverses` adds inverses.
    """
    generator = np.random.default_rng(seed)
    sizes = {name: max(round(count * scale), 1) for name, count in shape.num_nodes.items()}
    communities = min(shape.num_classes, *sizes.values())
    # Row of the node at each position; communities are ranges of positions.
    rows = {name: generator.permutation(size) for name, size in sizes.items()}
    edge_sets = {}
    for ends, count in shape.num_edges.items():
        sender, _, receiver = ends
        lines = [_Line.of(sizes[name], communities, generator) for name in (sender, receiver)]
        pairs = _distinct_pairs(lines, round(count * scale), inside, sender != receiver, generator)
        senders, receivers = rows[sender][pairs[0]], rows[receiver][pairs[1]]
        edge_sets[ends] = {"senders": senders, "receivers": receivers}
    node_sets: dict[str, Any] = {name: {"num_nodes": size} for name, size in sizes.items()}
    size = sizes[shape.target]
    labels = np.empty(size, np.int32)
    labels[rows[shape.target]] = np.arange(size) * communities // size
    means = _SIGNAL * generator.standard_normal((communities, shape.num_features), np.float32)
    features = generator.standard_normal((size, shape.num_features), np.float32)
    features += means[labels]
    part = np.digitize(generator.random(size), np.cumsum(_SHARES)[:2])
    node_sets[shape.target] = {"nodes": features, "labels": labels}
    node_sets[shape.target] |= {
        f"{name}_mask": part == k for k, name in enumerate(("train", "val", "test"))
    }
    return jg.TypedGraph(node_sets, edge_sets, "generated", shape.target)


def in_one_set(graph: jg.TypedGraph, shape: TypedShape) -> jg.TypedGraph:
    """The same nodes in one set, and the same edges with a type for each of their sets.

    Features are 0, and all nodes are for training.
    """
    one, sizes = graph.as_one(), [edges.num_edges for edges in graph.edge_sets.values()]
    nodes = {
        "nodes": np.zeros((one.num_nodes, shape.num_features), np.float32),
        "labels": np.arange(one.num_nodes) % shape.num_classes,
        "train_mask": np.ones(one.num_nodes, bool),
    }
    edges = {
        "senders": one.senders,
        "receivers": one.receivers,
        "edge_type": np.repeat(np.arange(len(sizes)), sizes),
    }
    return jg.TypedGraph({"node": nodes}, {("node", "to", "node"): edges})


@dataclasses.dataclass(frozen=True)
class _Line:
    """Positions of one end of a relation, each as long on a line as its share of the edges.

    Attributes:
      stops: where each position stops; the last at 1.
      starts: where each community starts, and 1.
      of_position: community of each position.
    """

    stops: np.ndarray
    starts: np.ndarray
    of_position: np.ndarray

    @classmethod
    def of(cls, size: int, communities: int, generator: np.random.Generator) -> _Line:
        ranks = np.arange(1, size + 1, dtype=np.float64)
        stops = np.cumsum(generator.permutation(ranks ** (-1 / (DEGREE_EXPONENT - 1))))
        stops /= stops[-1]
        of_position = np.arange(size) * communities // size
        starts = np.searchsorted(of_position, np.arange(communities + 1))
        return cls(stops, np.append(0, stops)[starts], of_position)


def _distinct_pairs(
    lines: list[_Line], count: int, inside: float, loops: bool, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draws so many different pairs of positions, sorted, with loops or without."""
    senders, receivers = lines
    size, keys = receivers.stops.size, np.zeros(0, np.int64)
    while len(keys) < count:
        wanted = 64 + (count - len(keys)) * 5 // 4
        drawn = generator.multinomial(wanted, np.diff(senders.stops, prepend=0))
        sender = np.repeat(np.arange(drawn.size), drawn)
        community = senders.of_position[sender]
        is_inside = generator.random(wanted) < inside
        low = np.where(is_inside, receivers.starts[community], 0)
        high = np.where(is_inside, receivers.starts[community + 1], 1)
        points = low + generator.random(wanted) * (high - low)
        # A point that is rounded to the end is of the last position.
        receiver = np.minimum(np.searchsorted(receivers.stops, points, side="right"), size - 1)
        new = sender * size + receiver
        keys = np.append(keys, new if loops else new[sender != receiver])
        keys.sort()
        keys = keys[np.diff(keys, prepend=-1) > 0]
    surplus = generator.choice(len(keys), len(keys) - count, replace=False, shuffle=False)
    return np.divmod(np.delete(keys, surplus), size)


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
