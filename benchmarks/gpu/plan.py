"""The plan of a run on a GPU: graphs of known sizes, and the checks and timed tasks of each.

Imported by the program and by its workers, which identify tasks by their index in the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from benchmarks.cpu.tasks import SpMM
from benchmarks.generated import Shape


@dataclass(frozen=True)
class Check:
    """Kernels against NumPy, or against "xla", on a small graph.

    Attributes:
      against: "numpy", values and gradients in float64, or "xla".
      op: name of the op.
      heads, features: size of a row; 0 against NumPy, which has its own.
      dtype: dtype of the numbers.
    """

    against: str
    op: str
    heads: int = 0
    features: int = 0
    dtype: str = "float32"

    @property
    def label(self) -> str:
        """The task's name in the tables."""
        size = f" {self.heads} x {self.features} {self.dtype}" if self.features else ""
        return f"{self.op}{size} as {self.against}"


@dataclass(frozen=True)
class Message:
    """An op without a fused peer, forward and backward.

    Attributes:
      op: "mean", "max", "sddmm", "gatv2" or "dot".
      heads, features: size of a row.
    """

    op: str
    heads: int
    features: int

    @property
    def label(self) -> str:
        """The task's name in the tables."""
        return f"{self.op} forward + backward {self.heads} x {self.features}"


@dataclass(frozen=True)
class Layer:
    """A graph convolution with its matrix product, float32.

    Attributes:
      kind: "gcn" or "gat".
      in_features: features of a node.
      heads, features: size of the output.
      backward: whether gradients of the features and the parameters are computed too.
    """

    kind: str
    in_features: int
    heads: int
    features: int
    backward: bool = False

    @property
    def label(self) -> str:
        """The task's name in the tables."""
        passes = "forward + backward" if self.backward else "forward"
        return f"{self.kind} {passes} {self.in_features} to {self.heads} x {self.features}"


Task = Check | SpMM | Message | Layer

CHECKS: Mapping[str, int] = MappingProxyType({"checks": 40, "checks-spread": 3})
"""Graphs of `Check` tasks, with the share of edges of their longest rows: a 40th, whose pieces a
cluster joins, and a third, which the whole chip shares."""

GRAPHS: Mapping[str, Shape] = MappingProxyType(
    {
        **dict.fromkeys(CHECKS, Shape(4_000, 60_000, 1, 2)),
        "arxiv-size": Shape(169_343, 2_484_941, 1, 40),
        "reddit-size": Shape(232_965, 114_848_857, 1, 41),
        "products-size": Shape(2_449_029, 123_718_280, 1, 47),
        "tiny": Shape(60, 400, 1, 3),
    }
)
"""Power laws of the sizes of well-known graphs, and one for a rehearsal; all with self-loops."""

OPS = ("sum", "weighted", "mean", "max", "min", "sddmm", "add", "gat", "gatv2", "dot")


def _layers(*sizes: tuple[str, int, int, int]) -> tuple[Layer, ...]:
    return tuple(Layer(*size, backward) for size in sizes for backward in (True, False))


def _checks() -> tuple[Check, ...]:
    names = ("aggregate", "sddmm", "gat_attention", "gatv2_attention")
    found = [Check("numpy", name) for name in (*names, "dot_attention")]
    found += [Check("xla", "sum", 1, features) for features in (1, 7, 41, 128, 602)]
    found += [Check("xla", op, 1, features) for op in ("max", "sddmm") for features in (7, 602)]
    found += [Check("xla", op, 4, 32) for op in OPS]
    found += [
        Check("xla", op, 4, 32, "bfloat16") for op in ("sum", "mean", "max", "sddmm", "gat", "dot")
    ]
    found += [Check("xla", op, 4, 32, "float16") for op in ("sum", "gatv2")]
    return tuple(found)


_MESSAGES = (
    Message("mean", 1, 128),
    Message("max", 1, 128),
    Message("sddmm", 1, 128),
    Message("gatv2", 4, 32),
)

TASKS: Mapping[str, tuple[Task, ...]] = MappingProxyType(
    {
        "checks": _checks(),
        "checks-spread": tuple(Check("xla", op, 4, 32) for op in OPS),
        "arxiv-size": (
            *(SpMM(width) for width in (16, 128, 256, 602)),
            SpMM(128, weighted=True),
            *_layers(("gat", 128, 4, 32), ("gcn", 128, 1, 128)),
            *_MESSAGES,
            Message("dot", 4, 32),
        ),
        "reddit-size": (
            *(SpMM(width) for width in (602, 128, 16, 41)),
            SpMM(128, weighted=True),
            *_layers(("gat", 602, 4, 16), ("gcn", 602, 1, 128)),
            *_MESSAGES,
        ),
        "products-size": (
            *(SpMM(width) for width in (100, 256, 16)),
            *_layers(("gat", 100, 4, 128), ("gcn", 100, 1, 256)),
        ),
        "tiny": (
            Check("numpy", "sddmm"),
            *(Check("xla", op, 2, 3) for op in ("mean", "gat")),
            Check("xla", "max", 1, 5, "bfloat16"),
            SpMM(4),
            SpMM(4, weighted=True),
            *_layers(("gcn", 3, 1, 4), ("gat", 3, 2, 4)),
            Message("max", 1, 4),
            Message("dot", 2, 4),
        ),
    }
)
"""The tasks of each graph, the most telling first."""
