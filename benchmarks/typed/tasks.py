"""The typed graphs and the tasks of every library.

Imported by workers of every library: it needs NumPy alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.cpu.inputs import Data, node_features
from benchmarks.cpu.models import Model

Arrays = dict[str, np.ndarray]
Ends = tuple[str, str, str]


@dataclass(frozen=True)
class TypedData(Data):
    """A graph of one set of nodes, whose edges are in the order of their types.

    Attributes:
      edge_type: int32 [edges].
      num_types: number of types.
    """

    edge_type: np.ndarray
    num_types: int


ONE: Ends = ("entity", "related", "entity")
"""The ends and the name of the edges of a `TypedData`."""
SETS = {"author": 31, "paper": 53}
ENDS: tuple[Ends, ...] = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "by", "author"),
)
"""The sets, and the relations, of a small graph of several."""


@dataclass(frozen=True)
class Layer:
    """A layer: y, and gradients of x and of the parameters, for a given one of y.

    Attributes:
      kind: R-GCN with a "kernel" for each type, 4 "bases" or 4 "blocks"; or "sage", means, or
        "gatv2", two heads, for each relation of a small graph, summed at each set of nodes.
      reduce: "sum" or "mean" of R-GCN.
      features: length of x and of y.
    """

    kind: str
    reduce: str
    features: int

    @property
    def label(self) -> str:
        """The task's name in the tables."""
        return f"{self.kind}, {self.reduce}, {self.features} to {self.features}"

    @property
    def ends(self) -> tuple[Ends, ...]:
        """The relations."""
        return ENDS if self.kind in ("sage", "gatv2") else (ONE,)

    def parameters(self, num_types: int) -> Arrays:
        """Normal numbers, by "relation/name" with jaxgraph's names."""
        size = self.features
        square, row = (size, size), (size,)
        shapes: dict[str, tuple[int, ...]] = {
            "kernel": {"kernel": (num_types, *square)},
            "bases": {"bases": (4, *square), "coefficients": (num_types, 4)},
            "blocks": {"blocks": (num_types, 4, size // 4, size // 4)},
            "sage": {"neighbor_kernel": square},
            "gatv2": {"sender_kernel": square, "receiver_kernel": square, "sender_bias": row}
            | {"receiver_bias": row, "attention": (2, size // 2)},
        }[self.kind]
        shapes |= {"bias": row} | ({} if self.kind == "gatv2" else {"self_kernel": square})
        named = {f"{name}/{own}": shapes[own] for _, name, _ in self.ends for own in shapes}
        return _normal(named, size**-0.5)

    def arrays(self, data: TypedData) -> tuple[Arrays, Arrays, dict[Ends, Arrays]]:
        """x and the gradient of y by set of nodes, and the arrays of the edges by relation."""
        names = ("senders", "receivers", "edge_type")
        if self.ends == (ONE,):
            gradient = node_features(*data.nodes.shape)
            edges = {name: getattr(data, name) for name in names}
            return {ONE[0]: data.nodes}, {ONE[0]: gradient}, {ONE: edges}
        rows = {name: (count, self.features) for name, count in SETS.items()}
        generator, edges = np.random.default_rng(2), {}
        for sender, name, receiver in ENDS:
            sizes = ((SETS[sender],), (SETS[receiver],))
            ends = generator.integers(0, sizes, (2, 200))
            edges[sender, name, receiver] = dict(zip(names, ends, strict=False))
        return _normal(rows), _normal(rows, seed=1), edges


@dataclass(frozen=True)
class Epoch:
    """Forward, backward and a step of Adam on the whole graph, of a model."""

    model: RGCN

    @property
    def label(self) -> str:
        """The task's name in the tables."""
        return f"epoch {self.model.label}"


@dataclass(frozen=True)
class RGCN(Model):
    """R-GCN layers with a free matrix for each type, and means.

    Attributes:
      num_types: number of types.
      rows: learned rows that the first layer reads, one for each node; 0: it reads the features.
    """

    num_types: int = 0
    rows: int = 0

    def _shapes(self, in_features: int, out_features: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        if self.rows:
            shapes["0/rows"] = (self.rows, in_features)
        for index, layer in enumerate(self.layers(in_features, out_features)):
            matrix = (layer.in_features, layer.out_features)
            shapes[f"{index}/kernel"] = (self.num_types, *matrix)
            shapes[f"{index}/self_kernel"] = matrix
            shapes[f"{index}/bias"] = (layer.out_features,)
        return shapes


def typed_data(
    edges: np.ndarray,
    nodes: np.ndarray,
    labels: np.ndarray | None = None,
    train_mask: np.ndarray | None = None,
) -> TypedData:
    """A graph of edges int [3, edges]: senders, receivers and types."""
    senders, receivers, types = edges[:, np.lexsort(edges[1:])].astype(np.int32)
    if labels is None or train_mask is None:
        labels, train_mask = np.zeros(len(nodes), np.int32), np.ones(len(nodes), bool)
    counts = int(labels.max()) + 1, types, int(types.max()) + 1
    weight = np.ones(len(types), np.float32)
    return TypedData(senders, receivers, weight, nodes, labels, train_mask, *counts)


def small() -> TypedData:
    """100 nodes and 2,000 edges of 7 types."""
    sizes = np.array([[100], [100], [7]])
    return typed_data(
        np.random.default_rng(0).integers(0, sizes, (3, 2000)), node_features(100, 16)
    )


def of_equal_pairs(num_types: int) -> TypedData:
    """FB15k-237's nodes and edges, and 8 types at each node, whatever the number of types."""
    generator, nodes, each = np.random.default_rng(0), 14_541, 8
    own = generator.random((nodes, num_types)).argpartition(each - 1)[:, :each]
    receivers, chosen = np.arange(544_230) % nodes, np.arange(544_230) // nodes % each
    types = own[receivers, chosen]
    # A sender is one of the nodes that have the type.
    order, counts = own.ravel().argsort(), np.bincount(own.ravel(), minlength=num_types)
    draws = (generator.random(len(types)) * counts[types]).astype(int)
    senders = order[(np.cumsum(counts) - counts)[types] + draws] // each
    return typed_data(np.stack([senders, receivers, types]), node_features(nodes, 64))


def _normal(shapes: Mapping[str, tuple[int, ...]], scale: float = 1.0, seed: int = 0) -> Arrays:
    generator = np.random.default_rng(seed)
    draws = {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    return {name: np.float32(scale) * draw for name, draw in draws.items()}
