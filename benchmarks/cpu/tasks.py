"""The tasks that every library is timed on, and their JSON form, which workers receive.

Imported by workers of every library: it needs the standard library alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from benchmarks.cpu.models import MODELS

__all__ = [
    "ATTENTION_SLOPE",
    "Attention",
    "Epoch",
    "Product",
    "SpMM",
    "Task",
    "Triad",
    "from_json",
    "to_json",
]

ATTENTION_SLOPE = 0.2
"""Slope of the leaky ReLU of attention's logits below 0."""


@dataclass(frozen=True)
class SpMM:
    """y_i = sum_{e: j -> i} w_e x_j, float32.

    Attributes:
      features: length of x_j.
      weighted: whether edges have weights; else w_e = 1.
    """

    features: int
    weighted: bool = False

    @property
    def group(self) -> str:
        """The tasks with which it shares a mean."""
        return "SpMM weighted" if self.weighted else "SpMM"

    @property
    def label(self) -> str:
        """The task's name in the tables."""
        return f"{self.group} {self.features}"


@dataclass(frozen=True)
class Attention:
    """y_i = sum_j alpha_ij z_j, alpha_ij = softmax_j(leaky_relu(l_j + r_i)), per head, float32.

    Attributes:
      heads: number of heads.
      features: length of z_j per head.
      backward: whether gradients of z, l and r are computed too, from a given one of y.
    """

    heads: int
    features: int
    backward: bool = False

    @property
    def group(self) -> str:
        """The tasks with which it shares a mean."""
        return "attention forward + backward" if self.backward else "attention forward"

    @property
    def label(self) -> str:
        """The task's name in the tables."""
        return f"{self.group} {self.heads} x {self.features}"


@dataclass(frozen=True)
class Epoch:
    """Forward, backward and a step of Adam on the whole graph.

    Attributes:
      model: one of `MODELS`.
    """

    model: str

    @property
    def group(self) -> str:
        """The tasks with which it shares a mean."""
        return f"epoch {self.label}"

    @property
    def label(self) -> str:
        """The task's name in the tables."""
        return MODELS[self.model].label


@dataclass(frozen=True)
class Triad:
    """a_i = b_i + s c_i on arrays of a given length, the STREAM triad: the limit of memory."""

    elements: int

    @property
    def group(self) -> str:
        """The tasks with which it shares a mean."""
        return "limits"

    @property
    def label(self) -> str:
        """The task's name in the tables."""
        return "STREAM triad"


@dataclass(frozen=True)
class Product:
    """C = A B of square float32 matrices of a given size: the limit of the cores."""

    size: int

    @property
    def group(self) -> str:
        """The tasks with which it shares a mean."""
        return "limits"

    @property
    def label(self) -> str:
        """The task's name in the tables."""
        return f"matrix product {self.size}"


Task = SpMM | Attention | Epoch | Triad | Product

_KINDS: Mapping[str, type[Any]] = MappingProxyType(
    {"spmm": SpMM, "attention": Attention, "epoch": Epoch, "triad": Triad, "product": Product}
)


def to_json(task: Task) -> dict[str, Any]:
    """The task as a JSON object."""
    kind = next(name for name, kind in _KINDS.items() if isinstance(task, kind))
    return {"kind": kind, **dataclasses.asdict(task)}


def from_json(value: Mapping[str, Any]) -> Task:
    """The task of a JSON object of `to_json`.

    Raises:
      ValueError: the kind is unknown.
    """
    options = dict(value)
    kind = options.pop("kind", None)
    if kind not in _KINDS:
        raise ValueError(f"kind is {kind!r}; expected one of {', '.join(_KINDS)}")
    return _KINDS[kind](**options)
