"""Principal neighbourhood aggregation (PNA): several reductions, scaled by degree.

A message x_i W_r + x_j W_s adds a term of the receiver, the same for all of its edges, and a term
of the sender. Kernels reduce the senders' terms alone. The receiver's term is added to the mean,
the maximum and the minimum, and does not change the deviation. Two reductions give all aggregators:
a sum of the terms and their squares, and a maximum of the terms and their negatives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxgraph.layers.dense import linear, product, rounded
from jaxgraph.layers.edge_data import check_edge_data
from jaxgraph.ops.core.message_functions import sum_message
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.ops.core.reducers import Extremum, Sum
from jaxgraph.parallel.conv_stages import Pair
from jaxgraph.parallel.feature_protocol import Features, at_use
from jaxgraph.parallel.neighborhood import Neighborhood, two_ends
from jaxgraph.parallel.propagate import mean_over_edges
from jaxgraph.parallel.whole_graph import on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph

Params = Mapping[str, jax.Array]

AGGREGATORS = ("sum", "mean", "max", "min", "std")
"""The reductions that `pna_conv` accepts."""

SCALERS = ("identity", "amplification", "attenuation")
"""The functions of the degree by which `pna_conv` scales reductions."""

_EPSILON = 1e-5
"""Added to a variance before its square root."""


def pna_conv(
    params: Params,
    neighborhood: Graph | Neighborhood,
    x: Features | Pair,
    *,
    delta: float,
    aggregators: Sequence[str] = ("mean", "max", "min", "std"),
    scalers: Sequence[str] = SCALERS,
) -> jax.Array:
    """y_i = x_i W_0 + b + sum_{s, a} scale_s(d_i) a_{j -> i}(x_i W_r + x_j W_s + c) W_{s, a}

    scale_s(d) is 1 ("identity"), log(d + 1) / delta ("amplification") or delta / log(d + 1)
    ("attenuation", with d of at least 1), where d_i is the in-degree of node i. An aggregator
    without messages is 0; "std" is sqrt(max(E[m^2] - E[m]^2, 0) + 1e-5) of messages m, in 32 bits,
    so that a deviation below 1/1000 of |E[m]| is rounding.

    Args:
      params: "sender_kernel", W_s, and "receiver_kernel", W_r, float [in_features,
        message_features]; "self_kernel", W_0, [in_features, out_features]; "kernel", the W_{s, a},
        [scalers * aggregators * message_features, out_features], ordered by scaler, then by
        aggregator; optionally "message_bias", c, and "bias", b.
      neighborhood: a graph, on one device; the shard, under `spmd`; or another neighbourhood.
      x: float [senders, in_features]; or a pair of the senders' and the receivers' rows, where
        these are different nodes; or this device's columns of all nodes.
      delta: mean of log(d + 1) over the nodes of the training graphs, as
        `jaxgraph.transforms.mean_log_degree` computes it.
      aggregators: names among "sum", "mean", "max", "min" and "std".
      scalers: names among "identity", "amplification" and "attenuation".

    Returns:
      float [receivers, out_features].

    Raises:
      ValueError: a name is unknown or repeated, delta is no positive number, "kernel" has another
        number of rows, or the graph has edge data, which would be ignored.

    References:
      Corso et al., "Principal neighbourhood aggregation for graph nets", 2020, equations 5 to 8.
    """
    neighborhood, x = on_device(neighborhood, x)
    check_edge_data(neighborhood, "pna_conv")
    check_scaling(aggregators, scalers, delta)
    messages = params["sender_kernel"].shape[1]
    rows = len(scalers) * len(aggregators) * messages
    if params["kernel"].shape[0] != rows:
        raise ValueError(
            f"kernel has shape {params['kernel'].shape}; expected {rows} rows, for {len(scalers)} "
            f"scalers of {len(aggregators)} aggregators of {messages} features"
        )
    nodes = neighborhood.receivers
    of_senders, of_receivers = two_ends(x)
    if of_receivers is None:
        of_receivers = neighborhood.own_rows(of_senders)
    sent = linear(neighborhood.senders, of_senders, params["sender_kernel"])
    received = linear(nodes, of_receivers, params["receiver_kernel"], params.get("message_bias"))
    own = linear(nodes, of_receivers, params["self_kernel"], params.get("bias"))
    found = _aggregated(neighborhood, sent, received, aggregators)
    found = jnp.concatenate([rounded(found[name], sent) for name in aggregators], 1)
    kernel = _side_by_side(at_use(params["kernel"], found), len(scalers))
    scaled = product(nodes.implementation, found, kernel)
    # Scaled after the product, which has fewer columns than its operand.
    parts = to_accumulation(scaled).reshape(-1, len(scalers), own.shape[1])
    factors = _factors(nodes.in_degree.astype(parts.dtype), scalers, delta)
    return rounded(to_accumulation(own) + jnp.sum(parts * factors[:, :, None], 1), own)


def check_scaling(aggregators: Sequence[str], scalers: Sequence[str], delta: float) -> None:
    """Checks the options of `pna_conv`."""
    for what, names, known in (
        ("aggregators", aggregators, AGGREGATORS),
        ("scalers", scalers, SCALERS),
    ):
        names = (names,) if isinstance(names, str) else tuple(names)
        if not names or not set(names) <= set(known) or len(set(names)) < len(names):
            raise ValueError(f"{what} is {names}; expected some of {', '.join(known)}, each once")
    if not isinstance(delta, Real) or isinstance(delta, bool) or not delta > 0:
        raise ValueError(
            f"delta is {delta!r}; expected a number greater than 0, such as "
            "jaxgraph.transforms.mean_log_degree(graph)"
        )


def _aggregated(
    neighborhood: Any, sent: jax.Array, received: jax.Array, aggregators: Sequence[str]
) -> dict[str, jax.Array]:
    """[receivers, message_features] by aggregator."""
    nodes = neighborhood.receivers
    count = nodes.in_degree[:, None]
    received = to_accumulation(received)
    found: dict[str, jax.Array] = {}
    if not {"sum", "mean", "std"}.isdisjoint(aggregators):
        # Squares in 16 bits would leave a variance no digits.
        wide = to_accumulation(sent)
        columns = (wide, wide * wide) if "std" in aggregators else (wide,)
        sums = _reduced(neighborhood, Sum(), columns)
        mean, *squares = (mean_over_edges(nodes, each, False) for each in sums)
        found |= {"sum": sums[0] + count * received, "mean": mean + received}
        if squares:
            found["std"] = jnp.sqrt(jax.nn.relu(squares[0] - mean * mean) + _EPSILON)
    signs = {name: sign for name, sign in (("max", 1), ("min", -1)) if name in aggregators}
    if signs:
        columns = tuple(sign * sent for sign in signs.values())
        best = _reduced(neighborhood, Extremum(), columns)
        for (name, sign), each in zip(signs.items(), best, strict=True):
            found[name] = sign * to_accumulation(each) + received
    return {name: jnp.where(count > 0, each, 0) for name, each in found.items()}


def _reduced(neighborhood: Any, reducer: Any, columns: tuple[jax.Array, ...]) -> list[jax.Array]:
    """Reduces arrays of the senders' rows side by side, so that one exchange sends all."""
    inputs = Inputs((), jnp.concatenate(columns, 1), (), ())
    return jnp.split(neighborhood.propagate(sum_message, reducer, inputs), len(columns), 1)


def _side_by_side(kernel: jax.Array, count: int) -> jax.Array:
    """Puts matrices stacked in [count * rows, features] side by side: [rows, count * features]."""
    blocks = kernel.reshape(count, -1, kernel.shape[1])
    return jnp.swapaxes(blocks, 0, 1).reshape(-1, count * kernel.shape[1])


def _factors(degree: jax.Array, scalers: Sequence[str], delta: float) -> jax.Array:
    """[rows, scalers]"""
    factors = {
        "identity": jnp.ones_like(degree),
        "amplification": jnp.log(degree + 1) / delta,
        "attenuation": delta / jnp.log(jnp.maximum(degree, 1) + 1),
    }
    return jnp.stack([factors[name] for name in scalers], 1)
