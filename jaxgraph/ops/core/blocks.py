"""A block of edges: all edges between one table of senders and one of receivers."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxgraph.ops.core.choice import choose_stages
from jaxgraph.ops.core.edges import AllEdges
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.core.propagation import propagate_by, pull_once
from jaxgraph.ops.core.reducers import Reducer
from pallas_kernels.pytrees import pytree

Pytree = Any


@pytree
class Block(AllEdges):
    """The edges between the rows of one table of senders and one of receivers (group 0 of `edges`).

    A neighbourhood (`jaxgraph.ops.core.propagation.Neighborhood`), and the schedule that reduces
    all of its messages at once.

    Attributes:
      edges: the edges.
      node_ids: int32 [receiver rows], global ids.
      missing_self_loop: bool [receiver rows], nodes with a message from themselves that no edge
        carries; None: no such node. The first rows of the senders are then the receivers.
    """

    def propagate(
        self, message: MessageFn, reducer: Reducer, inputs: Inputs, *, self_loops: bool = False
    ) -> Pytree:
        """See `jaxgraph.ops.core.propagation.Neighborhood`."""
        return propagate_by(self.with_loops(self_loops), message, reducer, inputs)

    def pull_sum(
        self,
        message: MessageFn,
        reducer: Reducer,
        inputs: Inputs,
        gradient: Pytree,
        wanted: Wanted,
    ) -> Inputs:
        """See `jaxgraph.ops.core.propagation.Neighborhood`."""
        block = self.with_loops(False)
        return pull_once(block, message, reducer, inputs, gradient, wanted)

    def with_loops(self, self_loops: bool) -> Block:
        """The same edges with the self-loops that `missing_self_loop` names, or without."""
        if not self_loops:
            return dataclasses.replace(self, missing_self_loop=None)
        if self.missing_self_loop is None:
            raise ValueError(
                "self_loops=True needs a block that says which nodes have no edge to themselves; "
                "missing_self_loop is None"
            )
        return self

    def reduce(self, message: MessageFn, reducer: Reducer, inputs: Inputs) -> tuple[Pytree, Pytree]:
        """See `jaxgraph.ops.core.propagation.Schedule`."""
        return choose_stages(self.edges, message, reducer, inputs).reduce(self, inputs)

    def pull(
        self,
        message: MessageFn,
        reducer: Reducer,
        inputs: Inputs,
        results: tuple[Pytree, Pytree],
        gradient: Pytree,
        wanted: Wanted,
    ) -> Inputs:
        """See `jaxgraph.ops.core.propagation.Schedule`."""
        stages = choose_stages(self.edges, message, reducer, inputs)
        adjoint = stages.adjoint(*results, gradient)
        return stages.pull(self, inputs, adjoint, wanted)
