"""All ops with all their implementations: what can be listed and asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax

from jaxgraph.ops.aggregation import AGGREGATE, aggregate
from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.kernels import usable_implementation
from jaxgraph.ops.dispatch import Implementation, check_name, first_supporting
from jaxgraph.ops.dot import DOT_ATTENTION, dot_attention
from jaxgraph.ops.edge_normalization import EDGE_SOFTMAX, edge_softmax
from jaxgraph.ops.edge_products import SDDMM, sddmm
from jaxgraph.ops.gat import GAT_ATTENTION, gat_attention
from jaxgraph.ops.gatv2 import GATV2_ATTENTION, gatv2_attention
from jaxgraph.ops.implementations import allowed_on

__all__ = ["chosen", "implementations"]


@dataclasses.dataclass(frozen=True)
class _Op:
    function: Callable[..., jax.Array]
    implementations: tuple[Implementation, ...]


_OPS: Mapping[str, _Op] = MappingProxyType(
    {
        "aggregate": _Op(aggregate, AGGREGATE),
        "sddmm": _Op(sddmm, SDDMM),
        "edge_softmax": _Op(edge_softmax, EDGE_SOFTMAX),
        "gat_attention": _Op(gat_attention, GAT_ATTENTION),
        "gatv2_attention": _Op(gatv2_attention, GATV2_ATTENTION),
        "dot_attention": _Op(dot_attention, DOT_ATTENTION),
    }
)


def _usual() -> str:
    """The implementation that a graph is placed for on this machine."""
    return usable_implementation(None, jax.devices()[0])


def implementations() -> tuple[Implementation, ...]:
    """Every implementation of every op, whether it can run here or not.

    Returns:
      Records with `.op`, `.name`, `.available`, `.reason` (why not) and `.check()`, a self-check on
      100 edges.
    """
    return tuple(each for op in _OPS.values() for each in op.implementations)


def chosen(op: str, *arguments: Any, **options: Any) -> str:
    """The implementation that an op takes by itself.

    Args:
      op: name of the op, such as "aggregate".
      arguments, options: what the op would be called with; nothing is computed. Without any, the
        answer is the first implementation that is available on this machine.

    Returns:
      Its name.

    Raises:
      ValueError: there is no such op, or the op would raise it.
      NotImplementedError: no implementation can compute this.
    """
    check_name("op", op, _OPS)

    def attempt(candidate: Implementation) -> None:
        if arguments or options:
            name = candidate.name
            call = _OPS[op].function
            jax.eval_shape(lambda: call(*arguments, **options, implementation=name))

    candidates = _OPS[op].implementations
    is_placed = bool(arguments) and isinstance(arguments[0], Block)
    placed_for = arguments[0].edges.implementation if is_placed else _usual()
    candidates = allowed_on(candidates, placed_for)
    return first_supporting(candidates, attempt)[0].name
