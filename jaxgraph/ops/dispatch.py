"""Dispatch: the one way from an op to an implementation.

An op makes a message and a reducer and passes them to a neighbourhood. Its schedule folds one group
of edges after another by the stages that `jaxgraph.ops.core.choice` chooses: a kernel of the
implementation that the graph was placed for, or XLA where that has no kernel for these messages. A
named implementation is used, or the call is refused before anything is computed.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, TypeVar

import jax

from jaxgraph.ops.core.choice import has_kernel
from jaxgraph.ops.core.edges import with_implementation
from jaxgraph.ops.core.implementations import PREFERENCE, check_name, default_platform, unusable
from jaxgraph.ops.core.messages import Inputs, MessageFn
from jaxgraph.ops.core.propagation import Neighborhood
from jaxgraph.ops.core.reducers import Reducer

Pytree = Any
N = TypeVar("N", bound=Neighborhood)

logger = logging.getLogger(__name__)


def reduce_by(
    implementation: str | None,
    op: str,
    neighborhood: Neighborhood,
    message: MessageFn,
    reducer: Reducer,
    inputs: Inputs,
    *,
    self_loops: bool = False,
) -> Pytree:
    """Computes an op that is one reduction of messages."""
    neighborhood = placed_for(implementation, op, neighborhood, message, reducer, inputs)
    return neighborhood.propagate(message, reducer, inputs, self_loops=self_loops)


def placed_for(
    implementation: str | None,
    op: str,
    neighborhood: N,
    message: MessageFn,
    reducer: Reducer,
    inputs: Inputs,
) -> N:
    """The neighbourhood, placed for the implementation that will reduce its messages."""
    if implementation is not None:
        check_name("implementation", implementation, PREFERENCE)
        if reason := unusable(implementation, default_platform()):
            raise NotImplementedError(
                f"implementation {implementation!r} of {op} cannot run: {reason}; "
                "implementation=None chooses one that can"
            )
        neighborhood = with_implementation(neighborhood, implementation)
    name = neighborhood.implementation
    if has_kernel(name, message, reducer, inputs):
        _log_once(f"{op}: {name}")
        return neighborhood
    types = sorted({str(leaf.dtype) for leaf in jax.tree.leaves((inputs.sender, inputs.edge))})
    refusal = f"no kernel of {name!r} reduces these messages of {', '.join(types)}"
    if implementation is not None:
        raise NotImplementedError(f"{op}: {refusal}; implementation=None leaves them to XLA")
    _log_once(f"{op}: xla ({refusal})")
    return neighborhood


@functools.cache
def _log_once(text: str) -> None:
    logger.info(text)
