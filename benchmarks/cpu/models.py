"""The models whose epochs are timed, as layers and named parameters that every library can make.

Imported by workers of every library: it needs the standard library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["LEARNING_RATE", "MODELS", "Layer", "Model"]

LEARNING_RATE = 0.01
"""Learning rate of Adam, in every library."""


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
      hidden: features between layers, per head where there are heads.
      heads: attention heads; 1 for the others.
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
    def aggregates_once(self) -> bool:
        """True where the first layer's aggregation has no parameter: it is equal in every epoch."""
        return self.name != "gat"

    def layers(self, in_features: int, out_features: int) -> tuple[Layer, ...]:
        """The convolutions for a graph.

        Args:
          in_features: features of a node.
          out_features: classes.

        Returns:
          The layers in order.
        """
        last = self.num_layers - 1
        return tuple(
            Layer(
                in_features if index == 0 else self.heads * self.hidden,
                out_features if index == last else self.hidden,
                index == last,
            )
            for index in range(self.num_layers)
        )

    def parameter_shapes(self, in_features: int, out_features: int) -> dict[str, tuple[int, ...]]:
        """The shapes of all parameters.

        Args:
          in_features: features of a node.
          out_features: classes.

        Returns:
          Shapes by "layer/name", with jaxgraph's names; matrices are
          [in_features, out_features].
        """
        shapes: dict[str, tuple[int, ...]] = {}
        for index, layer in enumerate(self.layers(in_features, out_features)):
            for name, shape in self._convolution(layer).items():
                shapes[f"{index}/{name}"] = shape
            if self.batch_norm and not layer.is_last:
                shapes[f"{index}/norm/scale"] = (layer.out_features,)
                shapes[f"{index}/norm/bias"] = (layer.out_features,)
        return shapes

    def has_effect(self, name: str) -> bool:
        """True where a parameter changes the output of the model.

        A bias before batch normalisation does not: its gradient is 0 but for rounding.
        """
        index, _, parameter = name.partition("/")
        return not (self.batch_norm and parameter == "bias" and int(index) < self.num_layers - 1)

    def _convolution(self, layer: Layer) -> dict[str, tuple[int, ...]]:
        matrix = (layer.in_features, self.heads * layer.out_features)
        width = layer.out_features if layer.is_last else self.heads * layer.out_features
        if self.name == "gcn":
            return {"kernel": matrix, "bias": (width,)}
        if self.name == "sage":
            return {"self_kernel": matrix, "neighbor_kernel": matrix, "bias": (width,)}
        vector = (self.heads, layer.out_features)
        return {
            "kernel": matrix,
            "attention_sender": vector,
            "attention_receiver": vector,
            "bias": (width,),
        }


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "gcn": Model("gcn", num_layers=2, hidden=128),
        "sage": Model("sage", num_layers=3, hidden=256, batch_norm=True),
        "gat": Model("gat", num_layers=3, hidden=32, heads=4),
    }
)
"""The models by name."""
