"""Sums of messages along some of a shard's edges, the others being dropped."""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.edges import EdgeGroups
from jaxgraph.ops.core.message_functions import sum_message, weighted_message
from jaxgraph.ops.core.messages import Inputs, MessageFn
from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.ops.core.reducers import Extremum, Mean, Reducer, Softmax, Sum

Pytree = Any
OF_ATTENTION = ("attention", "pass dropout= to its layer, which drops by edge and head")


@dataclasses.dataclass(frozen=True)
class _Kept:
    """A message that is 0 along the edges that are dropped; takes `(data, keep)` as edge data."""

    function: MessageFn

    def __call__(self, params: Pytree, sender: Pytree, receiver: Pytree, edge: Pytree) -> Pytree:
        data, keep = edge

        def masked(leaf: jax.Array) -> jax.Array:
            shape = keep.shape + (1,) * (leaf.ndim - 1)
            return jnp.where(keep.reshape(shape), leaf, jnp.zeros((), leaf.dtype))

        return jax.tree.map(masked, self.function(params, sender, receiver, data))


def has_edge(edges: EdgeGroups) -> jax.Array:
    """bool [slots], the slots by receiver of a device's edges that hold an edge."""
    by_receiver = edges.by_receiver
    count = by_receiver.compressed_starts[by_receiver.compressed_ptr[-1]]
    return jnp.arange(by_receiver.neighbors.shape[0]) < count


def sum_of_kept(
    keep: jax.Array, message: MessageFn, reducer: Reducer, inputs: Inputs, *, self_loops: bool
) -> tuple[MessageFn, Reducer, Inputs]:
    """The sum of messages along the edges that are kept, as one along all edges."""
    if isinstance(reducer, Softmax):
        refuse_dropped_edges(*OF_ATTENTION)
    if isinstance(reducer, Extremum):
        refuse_dropped_edges("a maximum or minimum", "call the layer on the shard as it was")
    if isinstance(reducer, Mean) or not isinstance(reducer, Sum) or self_loops:
        refuse_dropped_edges("this reduction", "call it on the shard as it was")
    sender, edge = inputs.sender, inputs.edge
    if message is weighted_message:
        kept = jnp.where(keep.reshape(keep.shape + (1,) * (edge.ndim - 1)), edge, 0)
        return message, reducer, dataclasses.replace(inputs, edge=kept)
    if message is sum_message and isinstance(sender, jax.Array):
        weights = keep.astype(to_accumulation(sender[:0]).dtype)
        dtype = sender.dtype if reducer.dtype is None else reducer.dtype
        reducer = dataclasses.replace(reducer, dtype=dtype)
        return weighted_message, reducer, dataclasses.replace(inputs, edge=weights)
    return _Kept(message), reducer, dataclasses.replace(inputs, edge=(edge, keep))


def check_all_edges(shard: Any) -> None:
    """Raises ValueError for a shard that lacks edges, before columns of features are aggregated."""
    if shard.kept_edges is not None:
        refuse_dropped_edges(
            "an aggregation of features that are split by column",
            "map them first, x = jaxgraph.nn.Linear(...)(shard, x)",
        )


def refuse_dropped_edges(what: str, instead: str) -> NoReturn:
    """Raises ValueError for a function that runs over all edges of a shard that lacks some."""
    raise ValueError(
        f"{what} runs over all edges, and jaxgraph.layers.dropout_edge has dropped some of this "
        f"shard's; it is for layers that sum or average messages: {instead}. Or draw "
        "keep = jaxgraph.parallel.keep_edges(shard, key, rate), and use it in a message function "
        "of your own with jaxgraph.parallel.propagate"
    )
