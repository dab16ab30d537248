"""The kernels of attention as functions of the inputs of messages and the edges of a group.

None is differentiable. Self-messages are no edges: the initial results hold them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.attention import GATV2, Attention
from jaxgraph.ops.core.edges import EdgeGroup
from jaxgraph.ops.core.randomness import keep_threshold
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.mosaic_gpu.calls import has_every_row, match_operands, row_schedule
from pallas_kernels import attention as kernels
from pallas_kernels.attention_dropout import Dropout, spread_seed
from pallas_kernels.attention_gradient import Edges, Gradients, make_adjoint
from pallas_kernels.attention_gradient import attention_gradients as kernel_gradients
from pallas_kernels.attention_logits import Logits

State = tuple[jax.Array, jax.Array, jax.Array]


def attention_state(
    over: EdgeGroup,
    attention: Attention,
    before: State,
    *,
    fresh: bool = False,
) -> State:
    """The state of `Softmax` after the edges of a group."""
    peak, total, sums = before
    edges = over.edges.by_receiver
    if not sums.size or not edges.neighbors.size:
        return before
    operands = (
        _operands(over, attention),
        row_schedule(over, "receiver"),
        edges.neighbors,
        (peak, total, _table(sums)),
    )
    peak, total, found = kernels.attention_state(*match_operands(operands), fresh=fresh)
    return peak, total, found.reshape(sums.shape)


def attention_output(
    over: EdgeGroup,
    attention: Attention,
    before: State | None,
) -> tuple[jax.Array, Any]:
    """The result of `attention_state` and the reducer's `finish`, in one pass where possible."""
    edges, values = over.edges.by_receiver, attention.values
    reducer, receiver = attention.reducer, attention.receiver
    rows, shape = len(receiver), (len(receiver), *values.shape[1:])
    every = has_every_row(over, "receiver", rows)
    if before is not None and not (every and edges.neighbors.size):
        state = attention_state(over, attention, before)
        return reducer.finish(state, (None, values))
    numbers = jnp.zeros((rows, reducer.heads))
    results = (numbers, numbers + 1, _table(jnp.zeros(shape, values.dtype)))
    if not values.size or not edges.neighbors.size:
        return reducer.joined(results[2].reshape(shape), results[:2])
    if every:
        results = tuple(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in results)
    operands = (
        _operands(over, attention),
        row_schedule(over, "receiver", every=every),
        edges.neighbors,
        results,
        None if before is None else (*before[:2], _table(before[2])),
    )
    peak, total, y = kernels.attention_output(*match_operands(operands))
    return reducer.joined(y.reshape(shape), (peak, total))


def attention_gradients(
    over: EdgeGroup,
    attention: Attention,
    adjoint: tuple[jax.Array, ...],
    before: Gradients,
    *,
    fresh: bool = False,
) -> Gradients:
    """The gradients after the edges of a group."""
    sides = (over.edges.by_sender, over.edges.by_receiver)
    if not adjoint[0].size or not all(side.neighbors.size for side in sides):
        return before
    gradient, peak, inner = adjoint[:3]
    inverse = adjoint[3] if len(adjoint) > 3 else jnp.ones_like(peak)
    operands = _operands(over, attention)
    rows = (len(attention.values), len(attention.receiver))
    every = fresh and all(map(has_every_row, (over, over), ("sender", "receiver"), rows))
    by_sender, by_receiver = (
        Edges(row_schedule(over, name, every=every), side.neighbors, side.edge_ids)
        for name, side in zip(("sender", "receiver"), sides, strict=True)
    )

    def started(part: Any) -> Any:
        if part is None or not every:
            return None if part is None else _table(part)
        return jax.ShapeDtypeStruct(_table(part).shape, jnp.float32)

    start = Gradients(
        values=started(before.values),
        sender=started(before.sender),
        receiver=started(before.receiver),
        vector=None if before.vector is None else before.vector.reshape(-1),
    )
    numbers = make_adjoint(operands, _table(gradient), peak, inverse, inner)
    given = match_operands((operands, numbers, by_sender, by_receiver, start))
    found = kernel_gradients(*given, fresh=fresh)
    return jax.tree.map(lambda new, old: new.reshape(old.shape), found, before)


def _operands(over: EdgeGroup, attention: Attention) -> kernels.Attention:
    vector, is_gatv2 = attention.vector, attention.kind == GATV2
    return kernels.Attention(
        sender=_table(attention.sender),
        receiver=_table(attention.receiver),
        vector=None if vector is None else vector.reshape(1, -1),
        # GATv2's rows are the values, too.
        values=None if is_gatv2 else _table(attention.values),
        dropout=_dropout(over, attention.reducer),
        heads=attention.reducer.heads,
        logits=Logits(attention.kind, attention.parameter),
    )


def _dropout(over: EdgeGroup, reducer: Softmax) -> Dropout | None:
    if reducer.seed is None or reducer.rate == 0:
        return None
    edges = over.edges
    firsts = [
        jnp.int32(0) if pointer is None else pointer[over.group]
        for pointer in (edges.receiver_ptr, edges.sender_ptr)
    ]
    return Dropout(
        words=spread_seed(jnp.stack(reducer.seed)),
        firsts=jnp.stack(firsts),
        receiver_ids=edges.receiver_ids,
        sender_ids=edges.sender_ids,
        repetition=edges.repetition,
        threshold=keep_threshold(reducer.rate),
        scale=1.0 / (1.0 - reducer.rate),
    )


def _table(x: jax.Array) -> jax.Array:
    return x.reshape(x.shape[0], -1)
