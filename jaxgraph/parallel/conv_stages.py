"""A convolution in stages, each of which can be compiled alone.

    rows = map(params, nodes, x)                          for a table of nodes
    state = fold(rows.sent, rows.received)                for one edge group after another
    y = update(params, receivers, rows, outputs)          for the receivers

A neighbourhood runs all of them in one program, by its schedule. A loop of the host can run each
by itself, part after part: `jaxgraph.ops.core.stages` folds and pulls, and JAX differentiates `map`
and `update`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.message_functions import edge_message
from jaxgraph.ops.core.messages import Inputs, MessageFn
from jaxgraph.ops.core.precision import accumulation_dtype
from jaxgraph.ops.core.reducers import Reducer, Sum
from jaxgraph.parallel.exchange import Call
from jaxgraph.parallel.neighborhood import Neighborhood, Nodes, two_ends
from jaxgraph.parallel.propagate import mean_over_edges
from jaxgraph.parallel.relation import Relation, propagate_all
from pallas_kernels.pytrees import pytree

Pytree = Any
Params = Mapping[str, jax.Array]
Pair = tuple[jax.Array, jax.Array]
"""Rows of the senders, and of the receivers."""


@pytree
class Rows:
    """The result of a convolution's `map` for the nodes of a table.

    Attributes:
      sent: arrays [rows, ...] that messages read at their sender.
      received: arrays [rows, ...] that messages read at their receiver.
      own: arrays [rows, ...] that only the update reads.
    """

    sent: Pytree
    received: Pytree = ()
    own: Pytree = ()


def _nothing(params: Params, sent: Pytree) -> Pytree:
    return ()


@dataclasses.dataclass(frozen=True)
class ConvStages:
    """A convolution, y_i = update(rows_i, reduce_{j -> i} message(sent_j, received_i, edge_ij)).

    Attributes:
      map: `(params, nodes, x) -> Rows`, of the nodes of one table.
      message: evaluated on chunks of edges.
      reducer: the reduction of the messages.
      update: `(params, receivers, rows, outputs) -> y`, of the receivers' rows and the reducer's
        outputs.
      message_params: `(params, sent) -> pytree`, the parameters that messages read.
      edge: the edge data that messages read: "edges", "edge_weight", "edge_type" or None.
      self_loops: whether a receiver without an edge to itself sends itself a message. Where
        messages read edge data, that message is `message.to_itself`, and messages read a pair at
        their receiver: `received`, and the mean data of the edges that enter.
    """

    map: Callable[[Params, Nodes, Any], Rows]
    message: MessageFn
    reducer: Reducer
    update: Callable[[Params, Nodes, Rows, Pytree], jax.Array]
    message_params: Callable[[Params, Pytree], Pytree] = _nothing
    edge: str | None = None
    self_loops: bool = False

    def inputs(self, params: Params, sent: Pytree, received: Pytree, edge: Pytree) -> Inputs:
        """The inputs of the messages, with the parameters that they read."""
        return Inputs(self.message_params(params, sent), sent, received, edge)


def run_stages(stages: ConvStages, params: Params, neighborhood: Neighborhood, x: Any) -> jax.Array:
    """Runs all stages of a convolution on a neighbourhood."""
    inputs, own = stage_inputs(stages, params, neighborhood, x)
    outputs = neighborhood.propagate(
        stages.message, stages.reducer, inputs, self_loops=stages.self_loops
    )
    return stages.update(params, neighborhood.receivers, own, outputs)


def stage_inputs(
    stages: ConvStages, params: Params, neighborhood: Neighborhood, x: Any
) -> tuple[Inputs, Rows]:
    """Maps the rows of a convolution."""
    of_senders, of_receivers = two_ends(x)
    rows = stages.map(params, neighborhood.senders, of_senders)
    if of_receivers is None:
        own = jax.tree.map(neighborhood.own_rows, rows)
    else:
        own = stages.map(params, neighborhood.receivers, of_receivers)
    edge, received = (), own.received
    if stages.edge is not None:
        edge = getattr(neighborhood, stages.edge)
        if stages.self_loops:
            dtype = jnp.result_type(edge, *jax.tree.leaves(rows.sent))
            mean = _mean_at_receivers(neighborhood, edge.astype(accumulation_dtype(dtype)))
            received = (received, mean.astype(dtype))
    return stages.inputs(params, rows.sent, received, edge), own


def _mean_at_receivers(neighborhood: Neighborhood, edge: jax.Array) -> jax.Array:
    """[receivers, ...], the mean of the data of the edges that enter, 0 where none does."""
    total = neighborhood.propagate(edge_message, Sum(), Inputs((), (), (), edge))
    return mean_over_edges(neighborhood.receivers, total, False)


def run_together(
    convolutions: Sequence[tuple[ConvStages, Params, Relation, Any]],
) -> list[jax.Array]:
    """Runs convolutions on several relations; an array that several of them send travels once."""
    calls, own = [], []
    for stages, params, relation, x in convolutions:
        inputs, rows = stage_inputs(stages, params, relation, x)
        own.append(rows)
        calls.append(Call(relation, stages.message, stages.reducer, inputs, stages.self_loops))
    found = zip(convolutions, own, propagate_all(calls), strict=True)
    return [
        stages.update(params, relation.receivers, rows, outputs)
        for (stages, params, relation, _), rows, outputs in found
    ]
