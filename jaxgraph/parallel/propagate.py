"""Message passing on a shard, under whichever schedule the graph was sharded for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.graph import Graph
from jaxgraph.kinds import kind_of
from jaxgraph.ops.core.derived import propagate_derived
from jaxgraph.ops.core.edge_outputs import edge_outputs
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.messages import Inputs, MessageFn, chunk_examples, message_shapes
from jaxgraph.ops.core.randomness import seed_words
from jaxgraph.ops.core.reducers import Mean, Reducer, Softmax, Sum
from jaxgraph.ops.core.reductions import REDUCTIONS, check_reduction
from jaxgraph.ops.core.rewriting.hoist import hoist
from jaxgraph.ops.core.rewriting.rewrite import Rewritten, rewritten
from jaxgraph.ops.core.rewriting.steps import ENDS
from jaxgraph.parallel.checks.message_check import check_each_edge
from jaxgraph.parallel.checks.message_errors import with_notes
from jaxgraph.parallel.feature_protocol import is_kind, plain_of
from jaxgraph.parallel.kept_edges import OF_ATTENTION, refuse_dropped_edges
from jaxgraph.parallel.neighborhood import Neighborhood, Nodes, check_neighborhood
from jaxgraph.parallel.relation import Relation
from jaxgraph.parallel.rewriting_report import RewritingReport, report_of
from jaxgraph.parallel.shard import Shard
from jaxgraph.parallel.whole_graph import edges_of_slots, on_device, slots_on_device

Pytree = Any


def propagate(
    neighborhood: Graph | Neighborhood,
    message_fn: Callable[[Pytree, Pytree, Pytree], Pytree],
    sender: Pytree = None,
    receiver: Pytree = None,
    edge: Pytree = None,
    *,
    reduce: str = "sum",
    self_loops: bool = False,
    dropout: float = 0.0,
    key: jax.Array | None = None,
    rewrite: bool = True,
) -> Pytree:
    """Computes messages along all edges and reduces them at their receivers.

    y_i = reduce_{e: j -> i} message_fn(sender_j, receiver_i, edge_e)

    `message_fn` sees a bounded chunk of edges at a time, never all; its leading axis counts the
    edges of the chunk. Parameters that it closes over get their gradient. It must act on every
    edge of the chunk separately, which is checked when it is traced; code that is opaque to JAX
    (`jax.pure_callback`, `jax.ffi`, a Pallas kernel) is trusted.

    The gradient of max and min goes to the winning edge. Edges of a receiver whose messages read
    the same bits of sender and edge data share it equally. Of different edges with equal messages
    one gets all of it, which is a subgradient. Messages that copy numbers of their inputs, or are
    one sum or product of two, are compared by value: all that equal the best one share it.

    Args:
      neighborhood: a graph, on one device; the shard, under `spmd`; or another neighbourhood.
      message_fn: `(sender, receiver, edge) -> messages`, pytrees of arrays [edges of a chunk, ...].
        For reduce="softmax" the messages are `(logits [edges, heads], values [edges, heads, ...])`.
      sender: pytree of arrays [senders, ...], looked up at the edge's sender.
      receiver: pytree of arrays [receivers, ...], looked up at the edge's receiver; on a shard both
        are its own nodes.
      edge: pytree of arrays [slots, ...], such as `shard.edge_weight`.
      reduce: "sum", "mean", "max", "min" or "softmax". Sums are of the type of the messages, and
        those of integers wrap around as in `jax.ops.segment_sum`; means of integers and truth
        values are of JAX's default floating type (float32); messages of max and min are any real
        numbers or truth values, and NaN wins.
      self_loops: whether every node without an edge to itself sends itself a message; not with
        `edge`, since such an edge has no data.
      dropout: probability with which a message of "softmax" is dropped after normalisation.
      key: random key for the dropout.
      rewrite: whether what `message_fn` computes from one end alone is computed once per node,
        and not once per edge, where that is cheaper; see `explain`. It changes results by rounding
        only, and which of equal messages of max and min gets the gradient.

    Returns:
      Pytree of arrays [receivers, ...], 0 where no edge enters.

    Raises:
      ValueError: an unknown reduction, arguments that do not go together, wrong leading axes, or a
        message function that combines edges, or depends on their number or order.
      TypeError: sparse features, or some split by column, were passed where rows are needed, or the
        reduction does not take messages of this type (complex numbers; sums of truth values).

    References:
      Gilmer et al., "Neural message passing for quantum chemistry", 2017; SAR, equation 1.
    """
    edge = slots_on_device(neighborhood, edge)
    given = neighborhood
    neighborhood, (sender, receiver) = on_device(given, (sender, receiver))
    _check(neighborhood, message_fn, sender, receiver, edge, reduce, self_loops, dropout, key)
    message_fn = with_notes(message_fn, _all_rows(given, neighborhood))
    sent = match_variation(Inputs((), sender, receiver, edge), neighborhood.receivers)
    message, inputs = _hoisted(neighborhood, message_fn, sent, rewrite, self_loops)
    chunk = neighborhood.edge_chunk
    if reduce != "softmax":
        return reduce_messages(neighborhood, message, inputs, reduce, chunk, self_loops=self_loops)
    reducer = _softmax(message_shapes(message, inputs, chunk), dropout, key)
    return neighborhood.propagate(message, reducer, inputs, self_loops=self_loops)


def _hoisted(
    neighborhood: Neighborhood,
    message_fn: Callable[..., Pytree],
    inputs: Inputs,
    rewrite: bool,
    self_loops: bool = False,
) -> tuple[MessageFn, Inputs]:
    """Makes the arrays that a function closes over an input; checks that it acts edge by edge."""
    if rewrite:
        found = _rewritten(neighborhood, message_fn, inputs, self_loops)
        if found.known is not None:
            return found.known, Inputs((), **found.inputs)
        message_fn, inputs = found.message_fn, Inputs((), **found.inputs)
    else:
        check_each_edge(message_fn, *_ends(chunk_examples(inputs, neighborhood.edge_chunk)))
    examples = chunk_examples(inputs, neighborhood.edge_chunk)
    message, params = hoist(message_fn, *_ends(examples))
    return message, dataclasses.replace(inputs, params=params)


def _ends(inputs: Inputs) -> tuple[Pytree, Pytree, Pytree]:
    return inputs.sender, inputs.receiver, inputs.edge


def edge_messages(
    neighborhood: Graph | Neighborhood,
    message_fn: Callable[[Pytree, Pytree, Pytree], Pytree],
    sender: Pytree = None,
    receiver: Pytree = None,
    edge: Pytree = None,
    *,
    rewrite: bool = True,
) -> Pytree:
    """Computes one value for every edge, from its ends and its data.

    y_e = message_fn(sender_j, receiver_i, edge_e) for e: j -> i

    Differentiable by all arguments and by parameters that `message_fn` closes over. To
    reduce the values at once, use `propagate`: it needs no array of all edges.

    Args:
      neighborhood: a graph, on one device; the shard, under `spmd`; or another neighbourhood.
      message_fn: `(sender, receiver, edge) -> values`, as for `propagate`: pytrees of floating
        arrays [edges of a chunk, ...], each edge separately.
      sender, receiver, edge, rewrite: as for `propagate`.

    Returns:
      Pytree of arrays [slots, ...], 0 in slots without an edge; the `edge` of `propagate`.

    Raises:
      ValueError: wrong leading axes, or a function that combines edges, or depends on their number
        or order.
      TypeError: sparse features, or some split by column, were passed where rows are needed, or the
        values are not floating numbers.

    References:
      Battaglia et al., "Relational inductive biases, deep learning, and graph networks", 2018,
      equation 1.
    """
    given, edge = neighborhood, slots_on_device(neighborhood, edge)
    neighborhood, (sender, receiver) = on_device(given, (sender, receiver))
    _check(neighborhood, message_fn, sender, receiver, edge, "sum", False, 0.0, None)
    message_fn = with_notes(message_fn, _all_rows(given, neighborhood))
    sent = match_variation(Inputs((), sender, receiver, edge), neighborhood.receivers)
    message, inputs = _hoisted(neighborhood, message_fn, sent, rewrite)
    for leaf in jax.tree.leaves(message_shapes(message, inputs, neighborhood.edge_chunk)):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"message_fn returned {leaf.dtype}; expected floating numbers, such as "
                "m.astype(jnp.float32)"
            )
    slots = edge_outputs(neighborhood, message, inputs, neighborhood.edge_chunk)
    return edges_of_slots(given, slots)


def explain(
    neighborhood: Graph | Neighborhood,
    message_fn: Callable[[Pytree, Pytree, Pytree], Pytree],
    sender: Pytree = None,
    receiver: Pytree = None,
    edge: Pytree = None,
) -> RewritingReport:
    """Says what `propagate` computes once per node, what it fuses, and what it could not.

    Args:
      neighborhood, message_fn, sender, receiver, edge: as for `propagate`.

    Returns:
      The report, which prints as text.

    Raises:
      ValueError, TypeError: as `propagate`.
    """
    edge = slots_on_device(neighborhood, edge)
    neighborhood, (sender, receiver) = on_device(neighborhood, (sender, receiver))
    _check(neighborhood, message_fn, sender, receiver, edge, "sum", False, 0.0, None)
    inputs = match_variation(Inputs((), sender, receiver, edge), neighborhood.receivers)
    return report_of(_rewritten(neighborhood, message_fn, inputs))


def _rewritten(
    neighborhood: Neighborhood,
    message_fn: Callable[..., Pytree],
    inputs: Inputs,
    self_loops: bool = False,
) -> Rewritten:
    check_each_edge(message_fn, *_ends(chunk_examples(inputs, neighborhood.edge_chunk)))
    ends: dict[str, Pytree] = dict(zip(ENDS, _ends(inputs), strict=True))
    nodes = {"sender": neighborhood.senders, "receiver": neighborhood.receivers}
    has_edges = None if self_loops else getattr(neighborhood, "has_edges", None)

    def real(end: str, leaf: jax.Array) -> jax.Array:
        if has_edges is None:
            return nodes[end].mask_rows(leaf)
        # A row that no edge reads may be infinite: times a gradient of 0 it would be NaN.
        is_read = has_edges(end).reshape(-1, *(1,) * (leaf.ndim - 1))
        return jnp.where(is_read, leaf, jnp.zeros((), leaf.dtype))

    return rewritten(message_fn, ends, neighborhood.edge_slots, neighborhood.edge_chunk, real)


def reduce_messages(
    neighborhood: Neighborhood,
    message: Callable[[Pytree, Pytree, Pytree, Pytree], Pytree],
    inputs: Inputs,
    reduce: str,
    chunk: int,
    *,
    self_loops: bool = False,
) -> Pytree:
    """Reduces `message(params, sender, receiver, edge)` at the receivers by a named reduction."""
    reduction = REDUCTIONS[reduce]
    reduction.check_types(message_shapes(message, inputs, chunk))
    message, reducer, inputs = reduction.of(message, inputs, chunk)
    if not isinstance(reducer, Mean):
        return neighborhood.propagate(message, reducer, inputs, self_loops=self_loops)
    # The degrees are known: no edge needs counting.
    shapes = message_shapes(message, inputs, chunk)
    wide = Sum(wide=tuple(leaf.dtype for leaf in jax.tree.leaves(shapes)))
    sums = neighborhood.propagate(message, wide, inputs, self_loops=self_loops)
    means = mean_over_edges(neighborhood.receivers, sums, self_loops)
    return jax.tree.map(lambda mean, like: mean.astype(like.dtype), means, shapes)


def aggregate_derived(
    neighborhood: Shard | Relation,
    message: Callable[[Pytree, Pytree, Pytree, Pytree], Pytree],
    reducer: Reducer,
    make: Callable[[Pytree, Pytree], Inputs],
    given: Pytree,
    late: Pytree,
    *,
    keep: bool,
    self_loops: bool = False,
) -> Pytree:
    """Reduces messages made from `make(given, late)`, which the backward recomputes."""
    relation = neighborhood.relation() if isinstance(neighborhood, Shard) else neighborhood
    if not relation.exchange.reads_own_rows:
        raise ValueError(
            "DerivedFeatures hold own rows only, and in mode 'domain' with "
            f"{relation.exchange.num_parts} parts a layer reads halos too; pass it the features"
        )
    late = match_variation(late, relation.incoming)
    if relation.kept_edges is not None:
        refuse_dropped_edges(*OF_ATTENTION)
    schedule = relation.exchange.schedule(relation, self_loops)
    return propagate_derived(schedule, message, reducer, make, given, late, keep=keep)


def mean_over_edges(nodes: Nodes, sums: Pytree, self_loops: bool) -> Pytree:
    """Divides sums [rows, ...], in their accumulation type, by each node's entering edges, or 1."""
    count = nodes.in_degree
    if self_loops:
        count = count + nodes.missing_self_loop
    count = jnp.maximum(count, 1)

    return jax.tree.map(lambda leaf: leaf / count.reshape(-1, *(1,) * (leaf.ndim - 1)), sums)


def _softmax(messages: Pytree, dropout: float, key: jax.Array | None) -> Softmax:
    if not (isinstance(messages, tuple) and len(messages) == 2):
        raise ValueError(
            "with reduce='softmax' message_fn must return (logits [edges, heads], "
            "values [edges, heads, features])"
        )
    logits, values = messages
    if logits.ndim != 2 or values.ndim != 3 or logits.shape != values.shape[:2]:
        raise ValueError(
            f"with reduce='softmax' message_fn must return logits [edges, heads] and values "
            f"[edges, heads, features]; it returned {logits.shape} and {values.shape}"
        )
    REDUCTIONS["softmax"].check_types(messages)
    seed = seed_words(key) if dropout and key is not None else None
    return Softmax(seed, dropout, logits.shape[1])


def _all_rows(given: Graph | Neighborhood, neighborhood: Neighborhood) -> dict[str, set[int]]:
    """The numbers of rows of whole arrays, by argument of a message function; see `with_notes`."""
    edges = {neighborhood.edge_slots}
    if isinstance(given, Graph):
        edges.add(given.num_edges)
    return {
        "sender": {neighborhood.senders.num_rows},
        "receiver": {neighborhood.receivers.num_rows},
        "edge": edges,
    }


def _check(
    neighborhood, message_fn, sender, receiver, edge, reduce, self_loops, dropout, key
) -> None:
    check_neighborhood(neighborhood)
    if not callable(message_fn):
        raise ValueError(
            f"message_fn: got {kind_of(message_fn)}; expected a function of sender, receiver and "
            "edge. The order is propagate(neighborhood, message_fn, sender, receiver, edge)"
        )
    check_reduction(reduce, REDUCTIONS)
    rows = {"sender": neighborhood.senders.num_rows, "receiver": neighborhood.receivers.num_rows}
    for name, tree in (("sender", sender), ("receiver", receiver)):
        for leaf in jax.tree.leaves(tree, is_leaf=is_kind):
            leaf = plain_of(leaf).rows(f"propagate: {name}")
            if leaf.ndim < 1 or leaf.shape[0] != rows[name]:
                what, advice = f"has shape {leaf.shape}", ""
                if isinstance(tree, list | tuple) and not leaf.ndim:
                    what = f"is a {type(tree).__name__} of numbers"
                    advice = f"; pass jnp.asarray({name})"
                raise ValueError(
                    f"{name} {what}; expected one row per node among the {name}s, "
                    f"[{rows[name]}, ...]{advice}"
                )
    if self_loops and jax.tree.leaves(edge):
        raise ValueError(
            "self_loops=True does not go with edge data, which added edges lack; add the loops to "
            "the graph with jaxgraph.transforms.add_self_loops"
        )
    if dropout and reduce != "softmax":
        raise ValueError("dropout of messages is defined for reduce='softmax' only")
    if dropout and key is None:
        raise ValueError("dropout needs a random key: pass key=jax.random.key(...)")
