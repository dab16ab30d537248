"""The ops of one shard on an edge list. Arrays are float64."""

from typing import Any

import numpy as np

from tests.oracles.edges import Edges
from tests.oracles.functions import dropout, leaky_relu
from tests.oracles.tape import exp, plain


def _spread(values: Any, like: Any) -> Any:
    """[edges, ...] with as many trailing axes as `like` has."""
    return values.reshape(*values.shape, *(1,) * (like.ndim - values.ndim))


def reduce_messages(edges: Edges, messages: Any, reduce: str) -> Any:
    """The reduction per receiver of [edges, ...], 0 without edges.

    Args:
        edges: the edges.
        messages: one an edge; equal winners, one an edge, share the gradient evenly.
        reduce: sum, mean, max, min, or std, which is sqrt(variance + 1e-5).
    """
    counts = _spread(np.maximum(edges.in_degrees(), 1), messages)
    if reduce == "sum":
        return edges.sum_by_receiver(messages)
    if reduce == "mean":
        return edges.sum_by_receiver(messages) / counts
    if reduce == "std":
        mean = edges.sum_by_receiver(messages) / counts
        centred = messages - mean[edges.receivers]
        variance = edges.sum_by_receiver(centred**2) / counts
        return (variance + 1e-5) ** 0.5 * _spread(edges.in_degrees() > 0, messages)
    if reduce not in ("max", "min"):
        raise ValueError(f"reduce is {reduce!r}")
    signed = plain(messages) * (1.0 if reduce == "max" else -1.0)
    best = np.full((edges.num_nodes, *messages.shape[1:]), -np.inf)
    np.maximum.at(best, edges.receivers, signed)
    wins = signed == best[edges.receivers]
    shares = wins / np.maximum(edges.sum_by_receiver(wins.astype(float)), 1)[edges.receivers]
    return edges.sum_by_receiver(messages * shares)


def aggregate(edges: Edges, x: Any, weight: Any, reduce: str) -> Any:
    """y_i = reduce_j w_ij x_j; a mean is divided by the number of edges.

    Args:
        edges: the edges.
        x: [num_nodes, ...].
        weight: of the leading axes of x[senders].
        reduce: of `reduce_messages`.
    """
    at_senders = x[edges.senders]
    return reduce_messages(edges, _spread(weight, at_senders) * at_senders, reduce)


def sddmm(edges: Edges, sender: Any, receiver: Any) -> Any:
    """y_e = <s_j, r_i>, [num_edges] or [num_edges, heads]."""
    return (sender[edges.senders] * receiver[edges.receivers]).sum(-1)


def sum_of_ends(edges: Edges, sender: Any, receiver: Any) -> Any:
    """y_e = s_j + r_i, [num_edges, ...]."""
    return sender[edges.senders] + receiver[edges.receivers]


def edge_softmax(edges: Edges, logits: Any) -> Any:
    """alpha_e = exp(l_e) / sum over the edges of the same receiver; 0 where all are at -inf."""
    largest = np.full((edges.num_nodes, logits.shape[1]), -np.inf)
    np.maximum.at(largest, edges.receivers, plain(logits))
    largest[np.isneginf(largest)] = 0
    powers = exp(logits - largest[edges.receivers])
    totals = edges.sum_by_receiver(powers)
    return powers / (totals + (plain(totals) == 0))[edges.receivers]


def attend(
    edges: Edges, logits: Any, values: Any, keep: np.ndarray | None = None, rate: float = 0.0
) -> Any:
    """y_i = sum_j dropout(softmax_j(l_ij)) v_j.

    Args:
        edges: the edges.
        logits: [num_edges, heads].
        values: [num_nodes, heads, features].
        keep: bool [num_edges, heads], or None.
        rate: dropout rate.
    """
    alpha = edge_softmax(edges, logits)
    dropped = alpha if keep is None else dropout(alpha, keep, rate)
    return aggregate(edges, values, dropped, "sum")


def gat_attention(
    edges: Edges,
    values: Any,
    sender_logits: Any,
    receiver_logits: Any,
    *,
    slope: float = 0.2,
    **dropped: Any,
) -> Any:
    """y_i = sum_j dropout(softmax_j(leaky_relu(l_j + r_i))) v_j."""
    scores = sum_of_ends(edges, sender_logits, receiver_logits)
    return attend(edges, leaky_relu(scores, slope), values, **dropped)


def gatv2_attention(
    edges: Edges,
    sender: Any,
    receiver: Any,
    attention: Any,
    *,
    slope: float = 0.2,
    **dropped: Any,
) -> Any:
    """y_i = sum_j dropout(softmax_j(<a, leaky_relu(s_j + r_i)>)) s_j."""
    hidden = leaky_relu(sum_of_ends(edges, sender, receiver), slope)
    return attend(edges, (hidden * attention).sum(-1), sender, **dropped)


def dot_attention(
    edges: Edges, queries: Any, keys: Any, values: Any, *, scale: float, **dropped: Any
) -> Any:
    """y_i = sum_j dropout(softmax_j(scale <q_i, k_j>)) v_j."""
    return attend(edges, scale * sddmm(edges, keys, queries), values, **dropped)
