"""Graph convolutions on one undivided graph."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.oracles.edge_ops import aggregate, attend, reduce_messages, sddmm, sum_of_ends
from tests.oracles.edges import Edges
from tests.oracles.functions import Params, leaky_relu, linear, relu, sigmoid
from tests.oracles.tape import concatenate, plain


def symmetric(edges: Edges, weight: Any) -> Any:
    """w_ij / sqrt(d_j d_i), where d_i = sum_j w_ij, and 0 where a degree is not positive."""
    degrees = edges.sum_by_receiver(weight)
    positive = plain(degrees) > 0
    root = (degrees * positive + ~positive) ** -0.5 * positive
    return root[edges.senders] * root[edges.receivers]


def gcn(params: Params, edges: Edges, x: Any, add_self_loops: bool = True) -> Any:
    """y_i = sum_j w_ij (x_j W) / sqrt(d_j d_i) + b, where d_i = sum_j w_ij.

    Params: kernel [in, out], bias [out].
    """
    edges = edges.with_missing_self_loops() if add_self_loops else edges
    factors = edges.weight * symmetric(edges, edges.weight)
    return aggregate(edges, x @ params["kernel"], factors, "sum") + params.get("bias", 0.0)


def sgc(params: Params, edges: Edges, x: Any, steps: int = 2, add_self_loops: bool = True) -> Any:
    """y = A^steps x W + b, with A of `gcn`."""
    edges = edges.with_missing_self_loops() if add_self_loops else edges
    factors = edges.weight * symmetric(edges, edges.weight)
    for _ in range(steps):
        x = aggregate(edges, x, factors, "sum")
    return x @ params["kernel"] + params.get("bias", 0.0)


def appnp(
    edges: Edges,
    x: Any,
    *,
    steps: int,
    alpha: float,
    keep: Sequence[np.ndarray] = (),
    rate: float = 0.0,
) -> Any:
    """z = (1 - alpha) A z + alpha x, from z = x, with A of `gcn` with self-loops, of fixed degrees.

    `keep`, of each step, is bool [edges with the added self-loops].
    """
    edges = edges.with_missing_self_loops()
    factors, z = edges.weight * symmetric(edges, plain(edges.weight)), x
    for step in range(steps):
        kept = factors * (keep[step] / (1 - rate)) if len(keep) else factors
        z = (1 - alpha) * aggregate(edges, z, kept, "sum") + alpha * x
    return z


def gcn2(
    params: Params, edges: Edges, x: Any, initial: Any, *, alpha: float, theta: float, layer: int
) -> Any:
    """y = (1 - b) h + b h W, h = (1 - alpha) A x + alpha initial, b = log(theta / layer + 1).

    With A of `gcn`. Params: kernel [in, in].
    """
    beta = np.log(theta / layer + 1)
    h = (1 - alpha) * gcn({"kernel": np.eye(x.shape[1])}, edges, x) + alpha * initial
    return (1 - beta) * h + beta * (h @ params["kernel"])


def sage(params: Params, edges: Edges, x: Any, reduce: str = "mean") -> Any:
    """y_i = x_i W_self + (reduce_j w_ij x_j) W_neighbor + b, reduce: sum, mean, max or min.

    Params: self_kernel [in, out], neighbor_kernel [in, out], bias [out].
    """
    neighbors = aggregate(edges, x, edges.weight, reduce) @ params["neighbor_kernel"]
    return x @ params["self_kernel"] + neighbors + params.get("bias", 0.0)


def gat(
    params: Params,
    edges: Edges,
    x: Any,
    *,
    concat: bool = True,
    add_self_loops: bool = True,
    **dropped: Any,
) -> Any:
    """y_i = sum_j alpha_ij z_j, alpha_ij = softmax_j(leaky_relu(<a_s, z_j> + <a_r, z_i>)), z = x W.

    With edge_kernel W_e [edge features, heads * out] and attention_edge a_e [heads, out],
    <a_e, e_ij W_e> is added before the leaky ReLU.

    Params: kernel [in, heads * out], attention_sender and attention_receiver [heads, out], bias
    [heads * out] with `concat`, else [out]. `dropped` are those of `attend`, whose `keep` holds the
    added self-loops.
    """
    edges = edges.with_missing_self_loops() if add_self_loops else edges
    z = (x @ params["kernel"]).reshape(len(x), *params["attention_sender"].shape)
    y = attend(edges, gat_logits(params, edges, z), z, **dropped)
    return _joined_heads(y, concat) + params.get("bias", 0.0)


def gat_logits(params: Params, edges: Edges, z: Any) -> Any:
    """[edges, heads], of rows z [nodes, heads, out]."""
    ends = [(z * params[f"attention_{end}"]).sum(-1) for end in ("sender", "receiver")]
    scores = sum_of_ends(edges, *ends)
    if "attention_edge" in params:
        scores = scores + (_of_edges(params, edges, z) * params["attention_edge"]).sum(-1)
    return leaky_relu(scores)


def gatv2(
    params: Params,
    edges: Edges,
    x: Any,
    *,
    concat: bool = True,
    add_self_loops: bool = True,
    **dropped: Any,
) -> Any:
    """y_i = sum_j alpha_ij s_j, alpha_ij = softmax_j(<a, leaky_relu(s_j + r_i)>).

    s = x W_sender + b_sender, r = x W_receiver + b_receiver. Params: sender_kernel and
    receiver_kernel [in, heads * out], sender_bias and receiver_bias [heads * out], attention
    [heads, out], bias [heads * out] with `concat`, else [out]. With edge_kernel W_e [edge features,
    heads * out], e_ij W_e is added in the leaky ReLU.
    """
    edges = edges.with_missing_self_loops() if add_self_loops else edges
    shape = (len(x), *params["attention"].shape)
    s, r = (linear(_named(params, end), x).reshape(*shape) for end in ("sender", "receiver"))
    y = attend(edges, gatv2_logits(params, edges, s, r), s, **dropped)
    return _joined_heads(y, concat) + params.get("bias", 0.0)


def gatv2_logits(params: Params, edges: Edges, s: Any, r: Any) -> Any:
    """[edges, heads], of rows s and r [nodes, heads, out]."""
    hidden = leaky_relu(sum_of_ends(edges, s, r) + _of_edges(params, edges, s))
    return (hidden * params["attention"]).sum(-1)


def gin(params: Params, edges: Edges, x: Any) -> Any:
    """y_i = MLP((1 + eps) x_i + sum_j w_ij x_j), MLP = linear, relu, linear.

    Params: eps [], first_kernel [in, hidden], first_bias, second_kernel [hidden, out], second_bias.
    """
    mixed = (1 + params["eps"]) * x + aggregate(edges, x, edges.weight, "sum")
    return linear(_named(params, "second"), relu(linear(_named(params, "first"), mixed)))


def gine(params: Params, edges: Edges, x: Any) -> Any:
    """y_i = MLP((1 + eps) x_i + sum_j relu(x_j + e_ij W_e + b_e)), MLP as of `gin`.

    Params: those of `gin`, edge_kernel [edge features, in], edge_bias [in].
    """
    messages = relu(x[edges.senders] + linear(_named(params, "edge"), edges.features))
    mixed = (1 + params["eps"]) * x + edges.sum_by_receiver(messages)
    return linear(_named(params, "second"), relu(linear(_named(params, "first"), mixed)))


def pna(
    params: Params,
    edges: Edges,
    x: Any,
    *,
    delta: float,
    aggregators: Sequence[str] = ("mean", "max", "min", "std"),
    scalers: Sequence[str] = ("identity", "amplification", "attenuation"),
) -> Any:
    """y_i = x_i W_0 + b + sum_{s, a} scale_s(d_i) a_j(x_i W_r + x_j W_s + c) W_{s, a}.

    The messages are an array [edges, features] here, and are reduced as such.
    """
    degrees = edges.in_degrees()[:, None]
    scales = {
        "identity": np.ones(degrees.shape),
        "amplification": np.log(degrees + 1) / delta,
        "attenuation": delta / np.log(np.maximum(degrees, 1) + 1),
    }
    ends = (x @ params[f"{end}_kernel"] for end in ("sender", "receiver"))
    messages = sum_of_ends(edges, *ends) + params.get("message_bias", 0.0)
    reduced = concatenate([reduce_messages(edges, messages, each) for each in aggregators], 1)
    columns = concatenate([scales[name] * reduced for name in scalers], 1)
    return x @ params["self_kernel"] + columns @ params["kernel"] + params.get("bias", 0.0)


def transformer(
    params: Params, edges: Edges, x: Any, *, num_heads: int, concat: bool = True, **dropped: Any
) -> Any:
    """y_i = r_i + sum_j alpha_ij v_j, alpha_ij = softmax_j(<q_i, k_j> / sqrt(features)).

    Of four maps of x, "query", "key", "value" and "skip" (r). With "gate" [3, width], y = beta r +
    (1 - beta) m, beta = sigmoid(m g_1 + r g_2 + (m - r) g_3).
    """
    q, k, v = (
        linear(_named(params, name), x).reshape(len(x), num_heads, -1)
        for name in ("query", "key", "value")
    )
    m = _joined_heads(attend(edges, dot_logits(edges, q, k), v, **dropped), concat)
    r = linear(_named(params, "skip"), x) if "skip_kernel" in params else 0.0
    if "gate" not in params:
        return m + r
    gate = params["gate"]
    scores = (m * gate[0] + r * gate[1] + (m - r) * gate[2]).sum(1, keepdims=True)
    beta = sigmoid(scores)
    return beta * r + (1 - beta) * m


def dot_logits(edges: Edges, q: Any, k: Any) -> Any:
    """[edges, heads], of rows q and k [nodes, heads, out]."""
    return q.shape[2] ** -0.5 * sddmm(edges, k, q)


def _of_edges(params: Params, edges: Edges, like: Any) -> Any:
    """e W_e [edges, heads, out]; 0 where there is no W_e."""
    if "edge_kernel" not in params:
        return 0.0
    return (edges.features @ params["edge_kernel"]).reshape(-1, *like.shape[1:])


def _joined_heads(y: Any, concat: bool) -> Any:
    """[n, heads, out] to [n, heads * out], or to the mean over heads [n, out]."""
    return y.reshape(len(y), -1) if concat else y.mean(1)


def _named(params: Params, prefix: str) -> Params:
    names = {"kernel": f"{prefix}_kernel", "bias": f"{prefix}_bias"}
    return {name: params[full] for name, full in names.items() if full in params}
