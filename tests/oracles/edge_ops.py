"""The ops of one shard on an edge list: values, and gradients by hand. Arrays are float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.oracles.edges import Edges
from tests.oracles.functions import dropout, leaky_relu

Gradients = Callable[[np.ndarray], tuple[np.ndarray, ...]]


def _spread(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    """[edges, ...] with as many trailing axes as `like` has."""
    return values.reshape(values.shape + (1,) * (like.ndim - values.ndim))


def aggregate(
    edges: Edges, x: np.ndarray, weight: np.ndarray, reduce: str
) -> tuple[np.ndarray, Gradients]:
    """y_i = reduce_j w_ij x_j, 0 without edges; equal winners share the gradient evenly.

    Args:
        edges: the edges.
        x: [num_nodes, ...].
        weight: of the leading axes of x[senders].
        reduce: sum, mean, max or min.
    """
    at_senders = x[edges.senders]
    factors = _spread(weight, at_senders)
    messages = factors * at_senders
    if reduce in ("sum", "mean"):
        counts = np.maximum(edges.in_degrees(), 1) if reduce == "mean" else np.ones(len(x))
        y = edges.sum_by_receiver(messages) / _spread(counts, x)
        share = np.ones(messages.shape) / _spread(counts[edges.receivers], messages)
    else:
        y, share = _extremum(edges, messages, 1.0 if reduce == "max" else -1.0)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, ...]:
        per_edge = share * grad[edges.receivers]
        surplus = tuple(range(weight.ndim, messages.ndim))
        return edges.sum_by_sender(factors * per_edge), (per_edge * at_senders).sum(surplus)

    return y, backward


def _extremum(edges: Edges, messages: np.ndarray, sign: float) -> tuple[np.ndarray, np.ndarray]:
    """The largest or smallest per receiver, and the share of each message in the gradient."""
    best = np.full((edges.num_nodes, *messages.shape[1:]), -np.inf)
    np.maximum.at(best, edges.receivers, sign * messages)
    best[edges.in_degrees() == 0] = 0
    wins = sign * messages == best[edges.receivers]
    counts = edges.sum_by_receiver(wins.astype(np.float64))
    return sign * best, wins / np.maximum(counts, 1)[edges.receivers]


def sddmm(edges: Edges, sender: np.ndarray, receiver: np.ndarray) -> tuple[np.ndarray, Gradients]:
    """y_e = <s_j, r_i>, [num_edges] or [num_edges, heads]."""
    left, right = sender[edges.senders], receiver[edges.receivers]

    def backward(grad: np.ndarray) -> tuple[np.ndarray, ...]:
        spread = grad[..., None]
        return edges.sum_by_sender(spread * right), edges.sum_by_receiver(spread * left)

    return (left * right).sum(-1), backward


def sum_of_ends(
    edges: Edges, sender: np.ndarray, receiver: np.ndarray
) -> tuple[np.ndarray, Gradients]:
    """y_e = s_j + r_i, [num_edges, ...]."""

    def backward(grad: np.ndarray) -> tuple[np.ndarray, ...]:
        return edges.sum_by_sender(grad), edges.sum_by_receiver(grad)

    return sender[edges.senders] + receiver[edges.receivers], backward


def edge_softmax(edges: Edges, logits: np.ndarray) -> tuple[np.ndarray, Gradients]:
    """alpha_e = exp(l_e) / sum over the edges of the same receiver; 0 where all are at -inf."""
    largest = np.full((edges.num_nodes, logits.shape[1]), -np.inf)
    np.maximum.at(largest, edges.receivers, logits)
    largest[np.isneginf(largest)] = 0
    powers = np.exp(logits - largest[edges.receivers])
    totals = edges.sum_by_receiver(powers)
    alpha = powers / np.where(totals > 0, totals, 1)[edges.receivers]

    def backward(grad: np.ndarray) -> tuple[np.ndarray, ...]:
        inner = edges.sum_by_receiver(alpha * grad)
        return (alpha * (grad - inner[edges.receivers]),)

    return alpha, backward


def attend(
    edges: Edges, logits: np.ndarray, values: np.ndarray, keep: np.ndarray | None, rate: float
) -> tuple[np.ndarray, Gradients]:
    """y_i = sum_j dropout(softmax_j(l_ij)) v_j; backward returns those of logits and values.

    Args:
        edges: the edges.
        logits: [num_edges, heads].
        values: [num_nodes, heads, features].
        keep: bool [num_edges, heads], or None.
        rate: dropout rate.
    """
    alpha, backward_softmax = edge_softmax(edges, logits)
    mask = np.ones(alpha.shape, bool) if keep is None else keep
    dropped, backward_dropout = dropout(alpha, mask, rate)
    y, backward_sum = aggregate(edges, values, dropped, "sum")

    def backward(grad: np.ndarray) -> tuple[np.ndarray, ...]:
        grad_values, grad_dropped = backward_sum(grad)
        return *backward_softmax(backward_dropout(grad_dropped)), grad_values

    return y, backward


def gat_attention(
    edges: Edges,
    values: np.ndarray,
    sender_logits: np.ndarray,
    receiver_logits: np.ndarray,
    *,
    slope: float = 0.2,
    keep: np.ndarray | None = None,
    rate: float = 0.0,
) -> tuple[np.ndarray, Gradients]:
    """y_i = sum_j dropout(softmax_j(leaky_relu(l_j + r_i))) v_j."""
    scores = sender_logits[edges.senders] + receiver_logits[edges.receivers]
    logits, backward_leaky = leaky_relu(scores, slope)
    y, backward_attend = attend(edges, logits, values, keep, rate)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, ...]:
        grad_logits, grad_values = backward_attend(grad)
        grad_scores = backward_leaky(grad_logits)
        by_sender, by_receiver = (
            edges.sum_by_sender(grad_scores),
            edges.sum_by_receiver(grad_scores),
        )
        return grad_values, by_sender, by_receiver

    return y, backward


def gatv2_attention(
    edges: Edges,
    sender: np.ndarray,
    receiver: np.ndarray,
    attention: np.ndarray,
    *,
    slope: float = 0.2,
    keep: np.ndarray | None = None,
    rate: float = 0.0,
) -> tuple[np.ndarray, Gradients]:
    """y_i = sum_j dropout(softmax_j(<a, leaky_relu(s_j + r_i)>)) s_j."""
    hidden, backward_leaky = leaky_relu(sender[edges.senders] + receiver[edges.receivers], slope)
    y, backward_attend = attend(edges, (hidden * attention).sum(-1), sender, keep, rate)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, ...]:
        grad_logits, grad_values = backward_attend(grad)
        grad_sum = backward_leaky(grad_logits[..., None] * attention)
        grad_attention = (grad_logits[..., None] * hidden).sum(0)
        grad_sender = grad_values + edges.sum_by_sender(grad_sum)
        return grad_sender, edges.sum_by_receiver(grad_sum), grad_attention

    return y, backward


def dot_attention(
    edges: Edges,
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    *,
    scale: float,
    keep: np.ndarray | None = None,
    rate: float = 0.0,
) -> tuple[np.ndarray, Gradients]:
    """y_i = sum_j dropout(softmax_j(scale <q_i, k_j>)) v_j."""
    at_receiver, at_sender = queries[edges.receivers], keys[edges.senders]
    logits = scale * (at_receiver * at_sender).sum(-1)
    y, backward_attend = attend(edges, logits, values, keep, rate)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, ...]:
        grad_logits, grad_values = backward_attend(grad)
        spread = scale * grad_logits[..., None]
        grad_keys = edges.sum_by_sender(spread * at_receiver)
        return edges.sum_by_receiver(spread * at_sender), grad_keys, grad_values

    return y, backward
