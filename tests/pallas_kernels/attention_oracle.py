"""Attention in float64, edge by edge, and random arrays for it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgraph.ops.core.randomness import edge_keep_mask
from pallas_kernels import attention_gradient
from pallas_kernels.attention import Attention
from pallas_kernels.attention_dropout import Dropout, spread_seed
from pallas_kernels.attention_logits import DOT, GAT, GATV2, Logits
from tests.oracles import edge_ops
from tests.oracles.edges import Edges
from tests.oracles.tape import differentiate
from tests.pallas_kernels.graphs import Graph, schedule

THRESHOLD, SCALE = 3_000_000_000, 1 / (1 - 3_000_000_000 / 2**32)
PARAMETERS = {GAT: 0.25, GATV2: 0.25, DOT: 0.5}


def make_attention(
    over: Graph, kind: str, heads: int, width: int, dtype: str, senders: int, dropped: bool
) -> Attention:
    """Random arrays with a row of NaN after the last row in use."""
    rng = np.random.default_rng(heads + width)
    receivers = len(over.degrees)

    def table(rows: int, columns: int, dtype: str) -> Any:
        numbers = rng.standard_normal((rows + 1, columns)).astype(jnp.dtype(dtype))
        numbers[-1] = np.nan
        return numbers

    of_logits = (heads, "float32") if kind == GAT else (heads * width, dtype)
    return Attention(
        sender=table(senders, *of_logits),
        receiver=table(receivers, *of_logits),
        vector=jnp.asarray(rng.standard_normal((1, heads * width)), "float32")
        if kind == GATV2
        else None,
        values=None if kind == GATV2 else table(senders, heads * width, dtype),
        dropout=_dropout(over, senders) if dropped else None,
        heads=heads,
        logits=Logits(kind, PARAMETERS[kind]),
    )


def _dropout(over: Graph, senders: int) -> Dropout:
    receivers = len(over.degrees)
    rng = np.random.default_rng(3)
    return Dropout(
        words=spread_seed(jnp.asarray([7, 4_000_000_000], jnp.uint32)),
        firsts=jnp.asarray([2, 1], jnp.int32),
        receiver_ids=jnp.arange(receivers + 2, dtype=jnp.int32) * 5,
        sender_ids=jnp.arange(senders + 1, dtype=jnp.int32) * 3 + 2,
        repetition=jnp.asarray(rng.integers(0, 3, over.num_edges), jnp.int32),
        threshold=THRESHOLD,
        scale=SCALE,
    )


def keep_mask(attention: Attention, over: Graph, heads: int) -> np.ndarray | None:
    """bool [slots, heads]: the coefficients that the library keeps elsewhere."""
    if attention.dropout is None:
        return None
    ids = attention.dropout
    receivers, senders, _ = (np.asarray(each) for each in zip(*over.ends(), strict=True))
    words = (jnp.uint32(7), jnp.uint32(4_000_000_000))
    return np.asarray(
        edge_keep_mask(
            words,
            ids.receiver_ids[receivers + 2],
            ids.sender_ids[senders + 1],
            0 if ids.repetition is None else ids.repetition,
            heads,
            THRESHOLD / 2**32,
        )
    )


@dataclasses.dataclass(frozen=True)
class Tables:
    """The arrays of an `Attention` in float64: [rows, heads, width], or 1 for GAT's logits."""

    sender: np.ndarray
    receiver: np.ndarray
    vector: np.ndarray | None
    values: np.ndarray


def tables(attention: Attention) -> Tables:
    heads = attention.heads

    def wide(array):
        return np.asarray(array, np.float64).reshape(array.shape[0], heads, -1)

    sender, receiver = wide(attention.sender), wide(attention.receiver)
    vector = None if attention.vector is None else wide(attention.vector)[0]
    values = sender if attention.values is None else wide(attention.values)
    return Tables(sender, receiver, vector, values)


def _ends(over: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Receivers and senders of the edges, in the order of `keep`."""
    receivers, senders, _ = (np.asarray(each) for each in zip(*over.ends(), strict=True))
    return receivers, senders


def _edge_logits(attention: Attention, x: np.ndarray, z: np.ndarray, vector: Any) -> np.ndarray:
    """[edges, heads], of the senders' and the receivers' rows."""
    parameter = attention.logits.parameter
    if attention.logits.kind == DOT:
        return parameter * (x * z).sum(-1)
    hidden = np.where(x + z >= 0, x + z, parameter * (x + z))
    return hidden[..., 0] if attention.logits.kind == GAT else (vector * hidden).sum(-1)


def _sum_at(rows: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    total = np.zeros((count, *values.shape[1:]))
    np.add.at(total, rows, values)
    return total


def expected_state(attention, over: Graph, before, keep):
    """Maximum, normaliser and sums; edges by receiver, the order of `keep` [slots, heads]."""
    seen, (receivers, senders), rows = tables(attention), _ends(over), len(before[0])
    start, total, sums = (np.array(part, np.float64) for part in before)
    logits = _edge_logits(attention, seen.sender[senders], seen.receiver[receivers], seen.vector)
    peak = start.copy()
    np.maximum.at(peak, receivers, logits)
    old = np.exp(start - np.where(np.isneginf(peak), 0, peak))
    powers = np.exp(logits - peak[receivers])
    weights = powers if keep is None else powers * keep * SCALE
    sums = sums.reshape(*total.shape, -1) * old[..., None]
    sums += _sum_at(receivers, weights[..., None] * seen.values[senders], rows)
    return peak, total * old + _sum_at(receivers, powers, rows), sums.reshape(rows, -1)


def transposed(over: Graph, senders: int, longest: int) -> Graph:
    """The same edges by sender, with `slots` those by receiver."""
    ends = sorted(
        (sender, slot, receiver) for slot, (receiver, sender, _) in enumerate(over.ends())
    )
    owners, slots, neighbors = (np.asarray(each, np.int32) for each in zip(*ends, strict=True))
    degrees = np.bincount(owners, minlength=senders)
    return Graph(degrees, neighbors, slots, schedule(degrees, longest))


@dataclasses.dataclass(frozen=True)
class Gradients:
    """Gradients of the arrays of an `Attention`; of GATv2, `sender` has those of the values too."""

    sender: np.ndarray
    receiver: np.ndarray
    vector: np.ndarray | None
    values: np.ndarray | None


def start_of_gradients(attention: Attention, rows: int, senders: int, draw: Any) -> Any:
    """What kernels add gradients to, drawn by `draw(rows, columns)`."""
    narrow, is_gatv2 = attention.sender.shape[1], attention.logits.kind == GATV2
    values = attention.sender if attention.values is None else attention.values
    return attention_gradient.Gradients(
        None if is_gatv2 else draw(senders, values.shape[1]),
        draw(senders, narrow),
        draw(rows, narrow),
        draw(1, narrow)[0] if is_gatv2 else None,
    )


def expected_gradients(attention, over: Graph, gradient, keep) -> Any:
    """From the gradient of the output."""
    seen, (receivers, senders) = tables(attention), _ends(over)
    rows, heads = max(len(seen.sender), len(seen.receiver)), attention.heads

    def padded(values: np.ndarray) -> np.ndarray:
        values = np.nan_to_num(np.asarray(values, np.float64)).reshape(len(values), heads, -1)
        return np.pad(values, ((0, rows - len(values)), (0, 0), (0, 0)))

    edges: Any = Edges.of(senders, receivers, rows)
    kind, parameter = attention.logits.kind, attention.logits.parameter
    dropped: Any = {} if keep is None else {"keep": keep, "rate": THRESHOLD / 2**32}

    def output(sender: Any, receiver: Any, vector: Any, values: Any) -> Any:
        if kind == DOT:
            rows = receiver, sender, values
            return edge_ops.dot_attention(edges, *rows, scale=parameter, **dropped)
        if kind == GAT:
            rows = values, sender[..., 0], receiver[..., 0]
            return edge_ops.gat_attention(edges, *rows, slope=parameter, **dropped)
        return edge_ops.gatv2_attention(edges, sender, receiver, vector, slope=parameter, **dropped)

    ends = padded(seen.sender), padded(seen.receiver)
    _, backward = differentiate(output, *ends, seen.vector, padded(seen.values))
    return Gradients(*backward(padded(gradient)))
