"""The registry of all ops and their implementations, with their checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import jax

from jaxgraph.ops.aggregation import aggregate
from jaxgraph.ops.core.implementations import PREFERENCE, default_platform, unusable
from jaxgraph.ops.dot import dot_attention
from jaxgraph.ops.edge_normalization import edge_softmax
from jaxgraph.ops.edge_products import sddmm
from jaxgraph.ops.gat import gat_attention
from jaxgraph.ops.gatv2 import gatv2_attention
from jaxgraph.ops.self_check import check

OPS: Mapping[str, tuple[Callable[..., jax.Array], tuple[str, ...]]] = MappingProxyType(
    {
        "aggregate": (aggregate, PREFERENCE),
        "sddmm": (sddmm, PREFERENCE),
        "edge_softmax": (edge_softmax, ("xla",)),
        "gat_attention": (gat_attention, PREFERENCE),
        "gatv2_attention": (gatv2_attention, PREFERENCE),
        "dot_attention": (dot_attention, PREFERENCE),
    }
)


@dataclasses.dataclass(frozen=True)
class Implementation:
    """One way to compute an op.

    Attributes:
      op: name of the op.
      name: "mosaic_gpu", "cpu" or "xla".
    """

    op: str
    name: str

    @property
    def reason(self) -> str:
        """Why it cannot run here, "" where it can."""
        return unusable(self.name, default_platform())

    @property
    def available(self) -> bool:
        """True where it can run here."""
        return not self.reason

    def check(self) -> str:
        """Compares values and gradients on a graph of 100 edges with NumPy."""
        function, _ = OPS[self.op]
        return check(self.op, partial(function, implementation=self.name))


def implementations() -> tuple[Implementation, ...]:
    """Every implementation of every op, whether it can run here or not.

    Returns:
      Records with `.op`, `.name`, `.available`, `.reason` (why not) and `.check()`, a self-check on
      100 edges.
    """
    return tuple(Implementation(op, name) for op, (_, names) in OPS.items() for name in names)
