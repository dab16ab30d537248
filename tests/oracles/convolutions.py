"""Graph convolutions on one undivided graph."""

from collections.abc import Callable, Sequence

import numpy as np

from tests.oracles.edges import Edges
from tests.oracles.functions import Params, ParamsBackward, dropout, leaky_relu, linear, relu


def gcn(
    params: Params, edges: Edges, x: np.ndarray, add_self_loops: bool = True
) -> tuple[np.ndarray, ParamsBackward]:
    """y_i = sum_j w_ij (x_j W) / sqrt(d_j d_i) + b, where d_i = sum_j w_ij.

    Params: kernel [in, out], bias [out].
    """
    if add_self_loops:
        edges = edges.with_missing_self_loops()
    degrees = edges.sum_by_receiver(edges.weight)
    inverse_root = np.zeros(edges.num_nodes)
    inverse_root[degrees > 0] = degrees[degrees > 0] ** -0.5
    factors = edges.weight * inverse_root[edges.senders] * inverse_root[edges.receivers]
    z, backward_linear = linear({"kernel": params["kernel"]}, x)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, Params]:
        grad_z = edges.sum_by_sender(factors[:, None] * grad[edges.receivers])
        grad_x, grads = backward_linear(grad_z)
        return grad_x, _with_bias(grads, params, grad)

    y = edges.sum_by_receiver(factors[:, None] * z[edges.senders])
    return y + params.get("bias", 0.0), backward


def appnp(
    edges: Edges,
    x: np.ndarray,
    *,
    steps: int,
    alpha: float,
    keep: Sequence[np.ndarray] = (),
    rate: float = 0.0,
) -> tuple[np.ndarray, ParamsBackward]:
    """z = (1 - alpha) A z + alpha x, from z = x, with A of `gcn` with self-loops.

    `keep`, of each step, is bool [edges with the added self-loops]. The gradient's parameters are
    those of the weights of these edges, "weight", the degrees being fixed.
    """
    edges = edges.with_missing_self_loops()
    degrees = edges.sum_by_receiver(edges.weight)
    root = np.where(degrees > 0, degrees, 1) ** -0.5 * (degrees > 0)
    roots = root[edges.senders] * root[edges.receivers]
    kept = [each / (1 - rate) for each in keep] or [np.ones(len(roots))] * steps
    states = [x]
    for each in kept:
        messages = (each * roots * edges.weight)[:, None] * states[-1][edges.senders]
        states.append((1 - alpha) * edges.sum_by_receiver(messages) + alpha * x)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, Params]:
        total, of_weight = np.zeros(x.shape), np.zeros(len(roots))
        for each, z in zip(reversed(kept), reversed(states[:-1]), strict=True):
            total = total + alpha * grad
            of_messages = (1 - alpha) * grad[edges.receivers]
            of_weight += each * roots * (of_messages * z[edges.senders]).sum(1)
            grad = edges.sum_by_sender((each * roots * edges.weight)[:, None] * of_messages)
        return total + grad, {"weight": of_weight}

    return states[-1], backward


def gcn2(
    params: Params,
    edges: Edges,
    x: np.ndarray,
    initial: np.ndarray,
    *,
    alpha: float,
    theta: float,
    layer: int,
) -> tuple[np.ndarray, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, Params]]]:
    """y = (1 - b) h + b h W, h = (1 - alpha) A x + alpha initial, b = log(theta / layer + 1).

    With A of `gcn`. Params: kernel [in, in]. Backward: gradients of x, of `initial`, of params.
    """
    beta = np.log(theta / layer + 1)
    eye = {"kernel": np.eye(x.shape[1])}
    aggregated, backward_sum = gcn(eye, edges, x)
    h = (1 - alpha) * aggregated + alpha * initial
    mapped, backward_map = linear({"kernel": params["kernel"]}, h)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, np.ndarray, Params]:
        of_h, grads = backward_map(beta * grad)
        of_h = of_h + (1 - beta) * grad
        return (1 - alpha) * backward_sum(of_h)[0], alpha * of_h, grads

    return (1 - beta) * h + beta * mapped, backward


def sage(
    params: Params, edges: Edges, x: np.ndarray, reduce: str = "mean"
) -> tuple[np.ndarray, ParamsBackward]:
    """y_i = x_i W_self + (reduce_j w_ij x_j) W_neighbor + b, reduce: sum, mean, max or min.

    Params: self_kernel [in, out], neighbor_kernel [in, out], bias [out].
    """
    reduced, backward_reduce = _REDUCTIONS[reduce](edges, x)
    own, backward_own = linear({"kernel": params["self_kernel"]}, x)
    neighbors, backward_neighbors = linear({"kernel": params["neighbor_kernel"]}, reduced)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, Params]:
        grad_own, own_grads = backward_own(grad)
        grad_reduced, neighbor_grads = backward_neighbors(grad)
        grads = {"self_kernel": own_grads["kernel"], "neighbor_kernel": neighbor_grads["kernel"]}
        return grad_own + backward_reduce(grad_reduced), _with_bias(grads, params, grad)

    return own + neighbors + params.get("bias", 0.0), backward


def gat(
    params: Params,
    edges: Edges,
    x: np.ndarray,
    *,
    concat: bool = True,
    add_self_loops: bool = True,
    attention_keep: np.ndarray | None = None,
    attention_rate: float = 0.0,
) -> tuple[np.ndarray, ParamsBackward]:
    """y_i = sum_j alpha_ij z_j, alpha_ij = softmax_j(leaky_relu(<a_s, z_j> + <a_r, z_i>)), z = x W.

    With edge_kernel W_e [edge features, heads * out] and attention_edge a_e [heads, out],
    <a_e, e_ij W_e> is added before the leaky ReLU.

    Params: kernel [in, heads * out], attention_sender and attention_receiver [heads, out], bias
    [heads * out] with `concat`, else [out]. `attention_keep` is bool [edges with the added
    self-loops, heads].
    """
    if add_self_loops:
        edges = edges.with_missing_self_loops()
    a_sender, a_receiver = params["attention_sender"], params["attention_receiver"]
    flat, backward_linear = linear({"kernel": params["kernel"]}, x)
    z = flat.reshape(len(x), *a_sender.shape)
    scores = (z * a_sender).sum(-1)[edges.senders] + (z * a_receiver).sum(-1)[edges.receivers]
    of_edges, backward_edges = _edge_map(params, edges, a_sender.shape)
    if "attention_edge" in params:
        scores = scores + (of_edges * params["attention_edge"]).sum(-1)
    logits, backward_leaky = leaky_relu(scores)
    y, backward_attend = _attend(edges, logits, z, attention_keep, attention_rate)
    out, backward_heads = _join_heads(y, concat)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, Params]:
        grad_logits, grad_z = backward_attend(backward_heads(grad))
        grad_scores = backward_leaky(grad_logits)
        grad_sender = edges.sum_by_sender(grad_scores)[..., None]
        grad_receiver = edges.sum_by_receiver(grad_scores)[..., None]
        grad_z = grad_z + grad_sender * a_sender + grad_receiver * a_receiver
        grad_x, grads = backward_linear(grad_z.reshape(flat.shape))
        grads["attention_sender"] = (grad_sender * z).sum(0)
        grads["attention_receiver"] = (grad_receiver * z).sum(0)
        if "attention_edge" in params:
            grads["attention_edge"] = (grad_scores[..., None] * of_edges).sum(0)
            grads |= backward_edges(grad_scores[..., None] * params["attention_edge"])
        return grad_x, _with_bias(grads, params, grad)

    return out + params.get("bias", 0.0), backward


def gatv2(
    params: Params,
    edges: Edges,
    x: np.ndarray,
    *,
    concat: bool = True,
    add_self_loops: bool = True,
    attention_keep: np.ndarray | None = None,
    attention_rate: float = 0.0,
) -> tuple[np.ndarray, ParamsBackward]:
    """y_i = sum_j alpha_ij s_j, alpha_ij = softmax_j(<a, leaky_relu(s_j + r_i)>).

    s = x W_sender + b_sender, r = x W_receiver + b_receiver. Params: sender_kernel and
    receiver_kernel [in, heads * out], sender_bias and receiver_bias [heads * out], attention
    [heads, out], bias [heads * out] with `concat`, else [out]. With edge_kernel W_e [edge features,
    heads * out], e_ij W_e is added in the leaky ReLU.
    """
    if add_self_loops:
        edges = edges.with_missing_self_loops()
    attention = params["attention"]
    shape = (len(x), *attention.shape)
    flat_s, backward_s = linear(_named(params, "sender"), x)
    flat_r, backward_r = linear(_named(params, "receiver"), x)
    s, r = flat_s.reshape(shape), flat_r.reshape(shape)
    of_edges, backward_edges = _edge_map(params, edges, attention.shape)
    hidden, backward_leaky = leaky_relu(s[edges.senders] + r[edges.receivers] + of_edges)
    y, backward_attend = _attend(
        edges, (hidden * attention).sum(-1), s, attention_keep, attention_rate
    )
    out, backward_heads = _join_heads(y, concat)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, Params]:
        grad_logits, grad_s = backward_attend(backward_heads(grad))
        grad_sum = backward_leaky(grad_logits[..., None] * attention)
        grad_s = grad_s + edges.sum_by_sender(grad_sum)
        grad_r = edges.sum_by_receiver(grad_sum)
        grad_x_s, sender_grads = backward_s(grad_s.reshape(flat_s.shape))
        grad_x_r, receiver_grads = backward_r(grad_r.reshape(flat_r.shape))
        grads = {f"sender_{name}": value for name, value in sender_grads.items()}
        grads |= {f"receiver_{name}": value for name, value in receiver_grads.items()}
        grads["attention"] = (grad_logits[..., None] * hidden).sum(0)
        grads |= backward_edges(grad_sum)
        return grad_x_s + grad_x_r, _with_bias(grads, params, grad)

    return out + params.get("bias", 0.0), backward


def gin(params: Params, edges: Edges, x: np.ndarray) -> tuple[np.ndarray, ParamsBackward]:
    """y_i = MLP((1 + eps) x_i + sum_j w_ij x_j), MLP = linear, relu, linear.

    Params: eps [], first_kernel [in, hidden], first_bias, second_kernel [hidden, out], second_bias.
    """
    eps = params["eps"]
    total, backward_sum = _sum(edges, x)
    hidden, backward_first = linear(_named(params, "first"), (1 + eps) * x + total)
    active, backward_relu = relu(hidden)
    y, backward_second = linear(_named(params, "second"), active)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, Params]:
        grad_active, second_grads = backward_second(grad)
        grad_mixed, first_grads = backward_first(backward_relu(grad_active))
        grads = {f"first_{name}": value for name, value in first_grads.items()}
        grads |= {f"second_{name}": value for name, value in second_grads.items()}
        grads["eps"] = np.asarray((grad_mixed * x).sum())
        return (1 + eps) * grad_mixed + backward_sum(grad_mixed), grads

    return y, backward


def gine(params: Params, edges: Edges, x: np.ndarray) -> tuple[np.ndarray, ParamsBackward]:
    """y_i = MLP((1 + eps) x_i + sum_j relu(x_j + e_ij W_e + b_e)), MLP as of `gin`.

    Params: those of `gin`, edge_kernel [edge features, in], edge_bias [in].
    """
    eps = params["eps"]
    of_edges, backward_edges = linear(_named(params, "edge"), edges.features)
    messages, backward_messages = relu(x[edges.senders] + of_edges)
    mixed = (1 + eps) * x + edges.sum_by_receiver(messages)
    hidden, backward_first = linear(_named(params, "first"), mixed)
    active, backward_relu = relu(hidden)
    y, backward_second = linear(_named(params, "second"), active)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, Params]:
        grad_active, second_grads = backward_second(grad)
        grad_mixed, first_grads = backward_first(backward_relu(grad_active))
        grad_messages = backward_messages(grad_mixed[edges.receivers])
        _, edge_grads = backward_edges(grad_messages)
        grads = {f"first_{name}": value for name, value in first_grads.items()}
        grads |= {f"second_{name}": value for name, value in second_grads.items()}
        grads |= {f"edge_{name}": value for name, value in edge_grads.items()}
        grads["eps"] = np.asarray((grad_mixed * x).sum())
        return (1 + eps) * grad_mixed + edges.sum_by_sender(grad_messages), grads

    return y, backward


def _edge_map(
    params: Params, edges: Edges, shape: tuple[int, ...]
) -> tuple[np.ndarray, Callable[[np.ndarray], Params]]:
    """e W_e [edges, heads, out], and the gradient of W_e; 0 and none where there is no W_e."""
    if "edge_kernel" not in params:
        return np.zeros((1, *shape)), lambda grad: {}
    flat, backward = linear({"kernel": params["edge_kernel"]}, edges.features)

    def of_kernel(grad: np.ndarray) -> Params:
        return {"edge_kernel": backward(grad.reshape(flat.shape))[1]["kernel"]}

    return flat.reshape(-1, *shape), of_kernel


def pna(
    params: Params,
    edges: Edges,
    x: np.ndarray,
    *,
    delta: float,
    aggregators: Sequence[str] = ("mean", "max", "min", "std"),
    scalers: Sequence[str] = ("identity", "amplification", "attenuation"),
) -> tuple[np.ndarray, ParamsBackward]:
    """y_i = x_i W_0 + b + sum_{s, a} scale_s(d_i) a_j(x_i W_r + x_j W_s + c) W_{s, a}.

    The messages are an array [edges, features] here, and are reduced as such.
    """
    degrees = edges.in_degrees()
    scales = {
        "identity": np.ones(len(x)),
        "amplification": np.log(degrees + 1) / delta,
        "attenuation": delta / np.log(np.maximum(degrees, 1) + 1),
    }
    s, backward_s = linear({"kernel": params["sender_kernel"]}, x)
    r, backward_r = linear({"kernel": params["receiver_kernel"]}, x)
    messages = s[edges.senders] + r[edges.receivers] + params.get("message_bias", 0.0)
    # Every edge is a node of its own that sends to the receiver.
    count = len(messages)
    per_edge = Edges.of(np.arange(count), edges.receivers, max(count, len(x)))
    padded = np.zeros((per_edge.num_nodes, messages.shape[1]))
    padded[:count] = messages
    reduced = [_REDUCTIONS[name](per_edge, padded) for name in aggregators]
    cut = np.concatenate([value[: len(x)] for value, _ in reduced], 1)
    columns = np.concatenate([scales[name][:, None] * cut for name in scalers], 1)
    own, backward_own = linear({"kernel": params["self_kernel"]}, x)
    y, backward_map = linear({"kernel": params["kernel"]}, columns)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, Params]:
        of_columns, grads = backward_map(grad)
        parts = np.split(of_columns, len(scalers), 1)
        of_cut = sum(scales[n][:, None] * part for n, part in zip(scalers, parts, strict=True))
        of_messages = np.zeros(messages.shape)
        for (_, pull), part in zip(reduced, np.split(of_cut, len(aggregators), 1), strict=True):
            full = np.zeros(padded.shape)
            full[: len(x)] = part
            of_messages += pull(full)[:count]
        of_x, of_own = backward_own(grad)
        more, of_s = backward_s(edges.sum_by_sender(of_messages))
        rest, of_r = backward_r(edges.sum_by_receiver(of_messages))
        grads |= {"self_kernel": of_own["kernel"], "sender_kernel": of_s["kernel"]}
        grads["receiver_kernel"] = of_r["kernel"]
        if "message_bias" in params:
            grads["message_bias"] = of_messages.sum(0)
        return of_x + more + rest, _with_bias(grads, params, grad)

    return own + y + params.get("bias", 0.0), backward


def transformer(
    params: Params,
    edges: Edges,
    x: np.ndarray,
    *,
    num_heads: int,
    concat: bool = True,
    attention_keep: np.ndarray | None = None,
    attention_rate: float = 0.0,
) -> tuple[np.ndarray, ParamsBackward]:
    """y_i = r_i + sum_j alpha_ij v_j, alpha_ij = softmax_j(<q_i, k_j> / sqrt(features)).

    Of four maps of x, "query", "key", "value" and "skip" (r). With "gate" [3, width], y = beta r +
    (1 - beta) m, beta = sigmoid(m g_1 + r g_2 + (m - r) g_3).
    """
    shape = (len(x), num_heads, -1)
    names = [name for name in ("query", "key", "value", "skip") if f"{name}_kernel" in params]
    maps = {name: linear(_named(params, name), x) for name in names}
    q, k, v = (maps[name][0].reshape(shape) for name in ("query", "key", "value"))
    scale = q.shape[2] ** -0.5
    logits = scale * (q[edges.receivers] * k[edges.senders]).sum(-1)
    attended, backward_attend = _attend(edges, logits, v, attention_keep, attention_rate)
    m, backward_heads = _join_heads(attended, concat)
    r = maps["skip"][0] if "skip" in maps else np.zeros(m.shape)
    gate = params.get("gate")
    beta = np.full((len(x), 1), 0.5)
    if gate is not None:
        scores = m @ gate[0] + r @ gate[1] + (m - r) @ gate[2]
        beta = 1 / (1 + np.exp(-scores[:, None]))

    def backward(grad: np.ndarray) -> tuple[np.ndarray, Params]:
        grads: Params = {}
        grad_m, grad_r = grad, grad
        if gate is not None:
            of_score = (grad * (r - m)).sum(1, keepdims=True) * beta * (1 - beta)
            grad_m = (1 - beta) * grad + of_score * (gate[0] + gate[2])
            grad_r = beta * grad + of_score * (gate[1] - gate[2])
            grads["gate"] = np.stack([(of_score * each).sum(0) for each in (m, r, m - r)])
        grad_logits, grad_v = backward_attend(backward_heads(grad_m))
        weights = scale * grad_logits[..., None]
        of_maps = {
            "query": edges.sum_by_receiver(weights * k[edges.senders]),
            "key": edges.sum_by_sender(weights * q[edges.receivers]),
            "value": grad_v,
            "skip": grad_r,
        }
        grad_x = np.zeros(x.shape)
        for name, (value, backward_map) in maps.items():
            more, of_map = backward_map(of_maps[name].reshape(value.shape))
            grad_x = grad_x + more
            grads |= {f"{name}_{part}": gradient for part, gradient in of_map.items()}
        return grad_x, grads

    return (m + r if gate is None else beta * r + (1 - beta) * m), backward


def _sum(edges: Edges, x: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    weight = edges.weight[:, None]
    total = edges.sum_by_receiver(weight * x[edges.senders])
    return total, lambda grad: edges.sum_by_sender(weight * grad[edges.receivers])


def _mean(edges: Edges, x: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """The sum of the weighted rows over the number of edges, not over the sum of the weights."""
    counts = np.maximum(edges.in_degrees(), 1)[:, None]
    total, backward_sum = _sum(edges, x)
    return total / counts, lambda grad: backward_sum(grad / counts)


def _max(edges: Edges, x: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """The largest in each column; equal winners, one an edge, share the gradient evenly."""
    largest, messages = np.full(x.shape, -np.inf), edges.weight[:, None] * x[edges.senders]
    np.maximum.at(largest, edges.receivers, messages)
    largest[edges.in_degrees() == 0] = 0
    wins = messages == largest[edges.receivers]
    num_winners = np.maximum(edges.sum_by_receiver(wins.astype(np.float64)), 1)
    share = wins * edges.weight[:, None]
    return largest, lambda grad: edges.sum_by_sender(share * (grad / num_winners)[edges.receivers])


def _min(edges: Edges, x: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    largest, backward = _max(edges, -x)
    return -largest, backward


def _std(edges: Edges, x: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """sqrt(variance + 1e-5), 0 of nothing."""
    counts = edges.in_degrees()[:, None]
    mean, _ = _mean(edges, x)
    centred = x[edges.senders] - mean[edges.receivers]
    variance = edges.sum_by_receiver(centred**2) / np.maximum(counts, 1)
    y = np.sqrt(variance + 1e-5) * (counts > 0)

    def backward(grad: np.ndarray) -> np.ndarray:
        scaled = np.where(counts > 0, grad / np.maximum(counts * y, 1e-300), 0)
        return edges.sum_by_sender(scaled[edges.receivers] * centred)

    return y, backward


_REDUCTIONS = {"sum": _sum, "mean": _mean, "max": _max, "min": _min, "std": _std}


def _attend(
    edges: Edges, logits: np.ndarray, z: np.ndarray, keep: np.ndarray | None, rate: float
) -> tuple[np.ndarray, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]]:
    """y_i = sum_j dropout(softmax_j(logits_ij)) z_j; backward returns those of logits and z.

    Args:
        edges: the edges, self-loops included.
        logits: float64 [num_edges, heads].
        z: float64 [num_nodes, heads, features].
        keep: bool [num_edges, heads], or None.
        rate: dropout rate.
    """
    alpha = _softmax_by_receiver(edges, logits)
    kept_mask = np.ones(alpha.shape, bool) if keep is None else keep
    kept, backward_dropout = dropout(alpha, kept_mask, rate)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        grad_alpha = backward_dropout((grad[edges.receivers] * z[edges.senders]).sum(-1))
        row_sums = edges.sum_by_receiver(alpha * grad_alpha)
        grad_logits = alpha * (grad_alpha - row_sums[edges.receivers])
        return grad_logits, edges.sum_by_sender(kept[..., None] * grad[edges.receivers])

    return edges.sum_by_receiver(kept[..., None] * z[edges.senders]), backward


def _softmax_by_receiver(edges: Edges, logits: np.ndarray) -> np.ndarray:
    largest = np.full((edges.num_nodes, logits.shape[1]), -np.inf)
    np.maximum.at(largest, edges.receivers, logits)
    powers = np.exp(logits - largest[edges.receivers])
    return powers / edges.sum_by_receiver(powers)[edges.receivers]


def _join_heads(
    y: np.ndarray, concat: bool
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """[n, heads, out] to [n, heads * out], or to the mean over heads [n, out]."""
    if concat:
        return y.reshape(len(y), -1), lambda grad: grad.reshape(y.shape)
    return y.mean(1), lambda grad: np.broadcast_to(grad[:, None] / y.shape[1], y.shape)


def _with_bias(grads: Params, params: Params, grad: np.ndarray) -> Params:
    return {**grads, "bias": grad.sum(0)} if "bias" in params else grads


def _named(params: Params, prefix: str) -> Params:
    names = {"kernel": f"{prefix}_kernel", "bias": f"{prefix}_bias"}
    return {name: params[full] for name, full in names.items() if full in params}
