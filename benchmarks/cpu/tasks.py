"""The tasks that every library is timed on.

Imported by workers of every library: it needs the standard library alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cpu.models import MODELS

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
        """The tasks with which it shares a mean: itself, on several graphs."""
        return self.label

    @property
    def label(self) -> str:
        """The task's name in the tables."""
        return f"epoch {MODELS[self.model].label}"


@dataclass(frozen=True)
class Triad:
    """a_i = b_i + s c_i on arrays of a given length, the STREAM triad: the limit of memory."""

    elements: int

    @property
    def group(self) -> str:
        """The tasks with which it shares a mean."""
        return self.label

    @property
    def label(self) -> str:
        """The task's name in the tables."""
        return "STREAM triad"


Task = SpMM | Attention | Epoch | Triad
