"""Attention in float64, edge by edge, and random arrays for it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgraph.ops.core.randomness import edge_keep_mask
from pallas_kernels.attention import Attention
from pallas_kernels.attention_dropout import Dropout, spread_seed
from pallas_kernels.attention_logits import DOT, GAT, GATV2, Logits
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


def edge_logits(attention: Attention, seen: Tables, receiver: int, sender: int) -> np.ndarray:
    """[heads]"""
    x, z, parameter = seen.sender[sender], seen.receiver[receiver], attention.logits.parameter
    if attention.logits.kind == DOT:
        return parameter * (x * z).sum(-1)
    hidden = x + z
    hidden = np.where(hidden >= 0, hidden, parameter * hidden)
    return hidden[:, 0] if attention.logits.kind == GAT else (seen.vector * hidden).sum(-1)


def kept(attention: Attention, keep: np.ndarray | None, slot: int) -> np.ndarray:
    """[heads]: the dropout factors of the coefficients of an edge."""
    return np.ones(attention.heads) if keep is None else keep[slot] * SCALE


def expected_state(attention, over: Graph, before, keep):
    """Maximum, normaliser and sums; edges by receiver, the order of `keep` [slots, heads]."""
    seen = tables(attention)
    peak, total, sums = (np.array(part, np.float64) for part in before)
    sums = sums.reshape(*total.shape, -1)
    for slot, (receiver, sender, _) in enumerate(over.ends()):
        logits = edge_logits(attention, seen, receiver, sender)
        top = np.maximum(peak[receiver], logits)
        old, new = np.exp(peak[receiver] - top), np.exp(logits - top)
        peak[receiver], total[receiver] = top, total[receiver] * old + new
        weights = kept(attention, keep, slot) * new
        message = weights[:, None] * seen.values[sender]
        sums[receiver] = sums[receiver] * old[:, None] + message
    return peak, total, sums.reshape(len(total), -1)


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
    """Gradients of the arrays of an `Attention`, in the shapes of `Tables`, and of its logits."""

    sender: np.ndarray
    receiver: np.ndarray
    vector: np.ndarray | None
    values: np.ndarray


def expected_gradients(attention, over: Graph, gradient, keep) -> Any:
    """By the derivative of a softmax, row by row, from the gradient of the output."""
    seen = tables(attention)
    gradient = np.asarray(gradient, np.float64).reshape(-1, *seen.values.shape[1:])
    dsender, dreceiver, dvalues = map(np.zeros_like, (seen.sender, seen.receiver, seen.values))
    dvector = None if seen.vector is None else np.zeros_like(seen.vector)
    ends = list(enumerate(over.ends()))
    for row in range(len(over.degrees)):
        edges = [(slot, sender) for slot, (receiver, sender, _) in ends if receiver == row]
        if not edges:
            continue
        logits = np.stack([edge_logits(attention, seen, row, sender) for _, sender in edges])
        powers = np.exp(logits - logits.max(0))
        alpha = powers / powers.sum(0)
        scales = np.stack([kept(attention, keep, slot) for slot, _ in edges])
        dalpha = scales * np.stack(
            [(gradient[row] * seen.values[sender]).sum(-1) for _, sender in edges]
        )
        dlogits = alpha * (dalpha - (alpha * dalpha).sum(0))
        for (_, sender), weight, change in zip(edges, alpha * scales, dlogits, strict=True):
            dvalues[sender] += weight[:, None] * gradient[row]
            _add_logit(attention, seen, (sender, row), change, dsender, dreceiver, dvector)
    return Gradients(dsender, dreceiver, dvector, dvalues)


def _add_logit(attention, seen: Tables, ends, change, dsender, dreceiver, dvector):
    sender, receiver = ends
    x, z, parameter = seen.sender[sender], seen.receiver[receiver], attention.logits.parameter
    change = change[:, None]
    if attention.logits.kind == DOT:
        dsender[sender] += parameter * change * z
        dreceiver[receiver] += parameter * change * x
        return
    slope = np.where(x + z >= 0, 1, parameter)
    if dvector is not None:
        dvector += change * slope * (x + z)
    hidden = change * slope * (1 if seen.vector is None else seen.vector)
    dsender[sender] += hidden
    dreceiver[receiver] += hidden
