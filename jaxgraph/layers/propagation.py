"""Propagation without parameters: of predictions (APPNP) and labels; initial residuals (GCNII)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.kinds import check_positive
from jaxgraph.layers.aggregations import SymmetricSum
from jaxgraph.layers.dense import check_rate, check_width, product, require_rows, rounded
from jaxgraph.layers.edge_data import check_edge_data
from jaxgraph.ops.core.derivatives import custom_vjp
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.messages import Inputs, Wanted
from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.ops.core.propagation import primal_values
from jaxgraph.ops.core.randomness import edge_keep_mask, seed_words
from jaxgraph.parallel import Shard, keep_edges
from jaxgraph.parallel.conv_stages import Pair
from jaxgraph.parallel.feature_protocol import Features, at_use
from jaxgraph.parallel.neighborhood import Neighborhood, two_ends
from jaxgraph.parallel.whole_graph import on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph


def appnp_propagate(
    shard: Graph | Shard,
    x: Features,
    *,
    steps: int = 10,
    alpha: float = 0.1,
    add_self_loops: bool = True,
    dropout: float = 0.0,
    key: jax.Array | None = None,
) -> jax.Array:
    """z_0 = x,  z_{k+1} = (1 - alpha) A z_k + alpha x,  y = z_steps

    where A is the aggregation of `gcn_conv` (`SymmetricSum`). The map is linear, so that forward
    and backward hold the rows of one step. A gradient of `edge_weight` needs the rows of all steps.

    Args:
      shard: a graph, on one device; or the shard, under `spmd`.
      x: float [rows, features].
      steps: number of steps.
      alpha: probability of a jump back to x, in [0, 1].
      add_self_loops: whether a node without a self-loop counts as having one, of weight 1.
      dropout: probability of dropping an entry of A, drawn for each step; those kept are divided by
        1 - dropout.
      key: scalar random key, needed where `dropout` is not 0.

    Returns:
      float [rows, features].

    Raises:
      ValueError: an argument is out of range, dropout has no key, senders and receivers are
        different nodes, or the graph has `edges` or `edge_type`, which would be ignored.
      TypeError: x is split by column.

    References:
      Gasteiger et al., "Predict then propagate: graph neural networks meet personalized PageRank",
      2019, equation 4.
    """
    shard, x = on_device(shard, x)
    aggregation = SymmetricSum(add_self_loops)
    check_edge_data(shard, "appnp_propagate", aggregation.edge_data)
    check_steps(shard, "appnp_propagate", steps)
    check_alpha(alpha)
    check_rate(dropout)
    if dropout and key is None:
        raise ValueError("dropout needs a random key: pass key=jax.random.key(...)")
    x = shard.mask_rows(require_rows(x, "appnp_propagate"))
    words = None
    if dropout and key is not None:
        of_steps = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(steps))
        words = jax.vmap(seed_words)(of_steps)
    settings = _Settings(aggregation, steps, float(alpha), float(dropout))
    x = match_variation(x, (x, shard.incoming))
    return _propagated(settings, shard, words, shard.edge_weight, x)


def propagate_values(
    shard: Shard,
    values: jax.Array,
    start: jax.Array,
    *,
    steps: int,
    alpha: Any,
    post_step: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """z = post_step(alpha A z + (1 - alpha) start), `steps` times from `values`; A adds no loop."""
    settings = _Settings(SymmetricSum(add_self_loops=False), steps, 1 - alpha, 0.0)
    return _loop(settings, shard, None, shard.edge_weight, values, start, post_step)


def check_steps(shard: Any, layer: str, steps: Any) -> None:
    """Checks that a layer can take some steps over a neighbourhood."""
    if not isinstance(shard, Shard):
        raise ValueError(
            f"{layer} was given a {type(shard).__name__}; expected a graph or the shard of "
            "a device: it aggregates what it has aggregated, over the same nodes"
        )
    check_positive("steps", steps)


def check_alpha(alpha: float) -> None:
    """Raises ValueError unless `alpha` is a number in [0, 1]."""
    if not isinstance(alpha, Real) or isinstance(alpha, bool) or not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha is {alpha!r}; expected a number in [0, 1]")


def gcn2_conv(
    params: Mapping[str, jax.Array],
    neighborhood: Graph | Neighborhood,
    x: jax.Array | Pair,
    initial: jax.Array,
    *,
    alpha: float = 0.1,
    theta: float = 0.5,
    layer: int = 1,
    add_self_loops: bool = True,
) -> jax.Array:
    """y = (1 - beta) h + beta h W,  h = (1 - alpha) A x + alpha x_0,  beta = log(theta / layer + 1)

    where A is the aggregation of `gcn_conv` (`SymmetricSum`).

    Args:
      params: "kernel" float [features, features], W.
      neighborhood: a graph, on one device; the shard, under `spmd`; or another neighbourhood.
      x: float [senders, features]; or a pair of the senders' and the receivers' rows, where these
        are different nodes.
      initial: float [receivers, features], x_0, the first layer's output.
      alpha: share of the initial rows, in [0, 1].
      theta: strength of W, greater than 0.
      layer: number of the layer, from 1; the deeper, the closer to the identity.
      add_self_loops: whether a node without a self-loop counts as having one, of weight 1.

    Returns:
      float [receivers, features].

    Raises:
      ValueError: a number is out of range, `initial` has another shape than the output, or the
        graph has `edges` or `edge_type`, which would be ignored.
      TypeError: x is split by column.

    References:
      Chen et al., "Simple and deep graph convolutional networks", 2020, equation 5.
    """
    neighborhood, (x, initial) = on_device(neighborhood, (x, initial))
    aggregation = SymmetricSum(add_self_loops)
    check_edge_data(neighborhood, "gcn2_conv", aggregation.edge_data)
    check_alpha(alpha)
    check_identity(theta, layer)
    senders, receivers = two_ends(x)
    senders = require_rows(senders, "gcn2_conv")
    check_width(neighborhood.senders, senders, params["kernel"])
    nodes = neighborhood.receivers
    if initial.shape != (nodes.num_rows, senders.shape[1]):
        raise ValueError(
            f"initial has shape {initial.shape}; expected the first layer's output, "
            f"[{nodes.num_rows}, {senders.shape[1]}], one row per receiver"
        )
    sent = aggregation.send(neighborhood.senders, senders)
    own = neighborhood.own_rows(sent) if receivers is None else aggregation.send(nodes, receivers)
    aggregated = to_accumulation(aggregation.receive(neighborhood, sent, own))
    mixed = (1 - alpha) * aggregated + alpha * to_accumulation(nodes.mask_rows(initial))
    hidden, beta = rounded(mixed, senders), math.log(theta / layer + 1)
    mapped = product(nodes.implementation, hidden, at_use(params["kernel"], hidden))
    return rounded((1 - beta) * to_accumulation(hidden) + beta * to_accumulation(mapped), hidden)


def check_identity(theta: float, layer: int) -> None:
    """Raises ValueError unless `theta` is positive, and `layer` counts from 1."""
    if not isinstance(theta, Real) or isinstance(theta, bool) or not theta > 0:
        raise ValueError(f"theta is {theta!r}; expected a number greater than 0")
    if not isinstance(layer, int) or isinstance(layer, bool) or layer < 1:
        raise ValueError(f"layer is {layer!r}; expected a positive integer")


@dataclasses.dataclass(frozen=True)
class _Settings:
    """The options of a propagation; `alpha` is the share of the first values."""

    aggregation: SymmetricSum
    steps: int
    alpha: Any
    rate: float


def _step(
    settings: _Settings,
    shard: Shard,
    words: Any,
    weights: jax.Array | None,
    z: jax.Array,
    *,
    transposed: bool = False,
) -> jax.Array:
    """(1 - alpha) A z, or (1 - alpha) A^T z; `words` are those of the step."""
    aggregation = settings.aggregation
    sent = aggregation.send(shard, z)
    own = sent
    if words is not None:
        scale = 1.0 / (1.0 - settings.rate)
        keep = jnp.where(keep_edges(shard, words, settings.rate), scale, 0.0)
        weights = keep if weights is None else keep * weights
        ids = shard.node_ids
        loops = edge_keep_mask(words, ids, ids, jnp.zeros_like(ids), 1, settings.rate)
        own = rounded(jnp.where(loops, to_accumulation(sent) * scale, 0), sent)
    message, reducer = aggregation.fold(sent.dtype, is_weighted=weights is not None)
    inputs = Inputs((), sent, (), () if weights is None else weights)
    if transposed:
        wanted = Wanted(params=False, sender=True, receiver=False, edge=False)
        (total,) = shard.pull_sum(message, reducer, inputs, sent, wanted).sender
    else:
        total = shard.propagate(message, reducer, inputs)
    return rounded((1 - settings.alpha) * aggregation.finish(shard, own, total), z)


def _loop(
    settings: _Settings,
    shard: Shard,
    words: Any,
    weights: jax.Array | None,
    z: jax.Array,
    x: jax.Array,
    post_step: Callable[[jax.Array], jax.Array] = lambda z: z,
) -> jax.Array:
    """z = post_step((1 - alpha) A z + alpha x), `steps` times."""

    def body(step: jax.Array, z: jax.Array) -> jax.Array:
        moved = _step(settings, shard, _at(words, step), weights, z)
        return post_step(moved + settings.alpha * x)

    return lax.fori_loop(0, settings.steps, body, z)


def _at(words: Any, step: jax.Array) -> Any:
    return jax.tree.map(lambda of_steps: of_steps[step], words)


@partial(custom_vjp, nondiff_argnums=(0,))
def _propagated(settings, shard, words, weights, x):
    return _loop(settings, shard, words, weights, x, x)


def _forward(settings, shard, words, weights, x):
    # The degrees of a shard follow its weights.
    learned = jax.tree.leaves((shard, weights), is_leaf=_is_primal)
    is_learned = any(leaf.perturbed for leaf in learned)
    shard, words, weights, x = (primal_values(part) for part in (shard, words, weights, x))
    if is_learned:
        loop = lambda shard, weights, x: _loop(settings, shard, words, weights, x, x)  # noqa: E731
        y, pull = jax.vjp(loop, shard, weights, x)
        return y, (None, pull)
    return _loop(settings, shard, words, weights, x, x), ((shard, words, weights), None)


def _is_primal(leaf: Any) -> bool:
    return hasattr(leaf, "perturbed")


def _backward(settings, residuals, gradient):
    fixed, pull = residuals
    if pull is not None:
        of_shard, of_weights, of_x = pull(gradient)
        return of_shard, None, of_weights, of_x
    shard, words, weights = fixed

    def body(count: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        of_z, total = carry
        step = _at(words, settings.steps - 1 - count)
        total = total + settings.alpha * to_accumulation(of_z)
        return _step(settings, shard, step, weights, of_z, transposed=True), total

    start = gradient, jnp.zeros_like(to_accumulation(gradient))
    of_z, total = lax.fori_loop(0, settings.steps, body, start)
    return None, None, None, (total + to_accumulation(of_z)).astype(gradient.dtype)


_propagated.defvjp(_forward, _backward, symbolic_zeros=True)
