"""The models whose epochs are timed, as layers and named parameters that every library can make.

Imported by workers of every library: it needs NumPy alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

LEARNING_RATE = 0.01
"""Learning rate of Adam, in every library."""

LOSSES = 3
"""First losses of training by which libraries are compared."""


@dataclass(frozen=True)
class Layer:
    """One convolution.

    Attributes:
      in_features: features of its input.
      out_features: features of the output, per head where there are heads.
      is_last: whether it is the last: no norm and no activation follow, and heads are averaged.
    """

    in_features: int
    out_features: int
    is_last: bool


@dataclass(frozen=True)
class Model:
    """A stack of one kind of convolution, without dropout.

    Attributes:
      name: "gcn" (self-loops, both sides normalised), "sage" (mean) or "gat" (self-loops; heads
        joined, averaged in the last layer).
      num_layers: number of convolutions.
      hidden: width of hidden layers, per head.
      heads: heads of every layer.
      batch_norm: whether every layer but the last is followed by batch normalisation.
    """

    name: str
    num_layers: int
    hidden: int
    heads: int = 1
    batch_norm: bool = False

    @property
    def label(self) -> str:
        """The model's name in the tables."""
        width = f"({self.heads} x {self.hidden})" if self.heads > 1 else str(self.hidden)
        norm = ", BatchNorm" if self.batch_norm else ""
        return f"{self.name.upper()} {self.num_layers} x {width}{norm}"

    @property
    def needs_loops(self) -> bool:
        """True where every node sends to itself."""
        return self.name != "sage"

    def layers(self, in_features: int, out_features: int) -> tuple[Layer, ...]:
        """The convolutions, in order, for a graph of so many features and classes."""
        last = self.num_layers - 1
        return tuple(
            Layer(
                in_features if index == 0 else self.heads * self.hidden,
                out_features if index == last else self.hidden,
                index == last,
            )
            for index in range(self.num_layers)
        )

    def initial_parameters(self, in_features: int, out_features: int) -> dict[str, np.ndarray]:
        """The initial parameters of every library: Glorot uniform, scales 1 and biases 0.

        They are float32, by "layer/name" with jaxgraph's names; matrices are
        [in_features, out_features].
        """
        generator = np.random.default_rng(0)
        parameters = {}
        for name, shape in self._shapes(in_features, out_features).items():
            if len(shape) == 1:
                start = np.ones if name.endswith("scale") else np.zeros
                parameters[name] = start(shape, np.float32)
            else:
                limit = np.sqrt(6 / sum(shape))
                parameters[name] = generator.uniform(-limit, limit, shape).astype(np.float32)
        return parameters

    def _shapes(self, in_features: int, out_features: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for index, layer in enumerate(self.layers(in_features, out_features)):
            matrix = (layer.in_features, self.heads * layer.out_features)
            if self.name == "sage":
                shapes[f"{index}/self_kernel"] = shapes[f"{index}/neighbor_kernel"] = matrix
            else:
                shapes[f"{index}/kernel"] = matrix
            if self.name == "gat":
                vector = (self.heads, layer.out_features)
                shapes[f"{index}/attention_sender"] = vector
                shapes[f"{index}/attention_receiver"] = vector
            if self.batch_norm and not layer.is_last:
                # It takes the place of a bias.
                shapes[f"{index}/norm/scale"] = (layer.out_features,)
                shapes[f"{index}/norm/bias"] = (layer.out_features,)
            else:
                width = layer.out_features if layer.is_last else self.heads * layer.out_features
                shapes[f"{index}/bias"] = (width,)
        return shapes


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "gcn": Model("gcn", num_layers=2, hidden=128),
        "sage": Model("sage", num_layers=3, hidden=256, batch_norm=True),
        "gat": Model("gat", num_layers=3, hidden=32, heads=4),
    }
)
"""The models by name."""
