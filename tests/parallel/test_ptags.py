"""Layers written with P-TAGS: the same on rows and on columns, and equal to the library's own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.layers import sage_conv
from jaxgraph.parallel import gather_rows, ptags, spmd
from tests.strategies import NUM_FEATURES
from tests.tolerance import assert_close
from tests.training import P3_MODES, crooked_sharded

OUT = 4
NO_FEATURES: Any = None
RNG = np.random.default_rng(4)
KERNELS: Any = {
    name: np.asarray(RNG.standard_normal((NUM_FEATURES, OUT)), np.float32)
    for name in ("self_kernel", "neighbor_kernel")
}


def fully_connected(kernels: Any, x: jax.Array, neighbors: jax.Array) -> jax.Array:
    return x @ kernels["self_kernel"] + neighbors @ kernels["neighbor_kernel"]


def graphsage(kernels: Any, of: Any, x: Any, reduce: str = "mean") -> jax.Array:
    """Listing 1 of the paper."""
    messages = ptags.scatter(of, x, lambda sender, edge, receiver: sender)
    shares = ptags.transform(x, ptags.gather(messages, reduce), kernels, fully_connected)
    return ptags.apply(jax.nn.relu, ptags.sync(shares))


def value_and_gradient(layer: Any, sharded: Any, kernels: Any = KERNELS) -> tuple[Any, Any]:
    def step(kernels: Any, of: Any) -> Any:
        def loss(kernels: Any) -> Any:
            y = layer(kernels, of, of.nodes)
            return of.sum(jnp.sum(of.mask_rows(y * jnp.sin(1.0 + of.node_ids)[:, None]))), y

        (_, y), gradients = jax.value_and_grad(loss, has_aux=True)(kernels)
        return y, gradients

    y, gradients = spmd(step, outputs=("rows", "replicated"))(kernels, sharded)
    return gather_rows(y, sharded), gradients


@pytest.mark.expensive
@pytest.mark.parametrize("mode", ["sar", *P3_MODES])
def test_listing_1_equals_graphsage(mode: str) -> None:
    sharded = crooked_sharded(3, "hash", mode)
    mine = value_and_gradient(graphsage, sharded)
    theirs = value_and_gradient(
        lambda kernels, of, x: jax.nn.relu(sage_conv(kernels, of, x)), sharded
    )
    for found, expected in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        assert_close(found, expected, reduction_length=500)


def edge_gated(kernels: Any, of: Any, x: Any) -> jax.Array:
    """A message of sender, edge and receiver, and a parameter per feature."""
    messages = ptags.scatter(
        of,
        x,
        lambda sender, edge, receiver: edge[:, None] * jnp.tanh(sender - receiver),
        edge="edge_weight",
    )

    def scaled(kernels: Any, x: jax.Array, neighbors: jax.Array) -> jax.Array:
        return (kernels["eps"] * x + kernels["scale"] * neighbors) @ kernels["self_kernel"]

    return ptags.sync(ptags.transform(x, ptags.gather(messages, "max"), kernels, scaled))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["p3-domain", "p3-sar", "p3-domain-pushed"])
def test_messages_of_edges_and_receivers(mode: str) -> None:
    kernels = {
        "self_kernel": KERNELS["self_kernel"],
        "scale": np.linspace(0.5, 2, NUM_FEATURES, dtype=np.float32),
        "eps": np.float32(0.25),
    }
    columns = value_and_gradient(edge_gated, crooked_sharded(3, "hash", mode, True), kernels)
    rows = value_and_gradient(edge_gated, crooked_sharded(2, "hash", "sar", True), kernels)
    assert np.abs(rows[0]).max() > 0.1
    for found, expected in zip(jax.tree.leaves(columns), jax.tree.leaves(rows), strict=True):
        assert_close(found, expected, reduction_length=2000)


def refused(match: str, function: Any, mode: str = "p3-sar") -> None:
    with pytest.raises(ValueError, match=match):
        spmd(function, outputs="rows")(crooked_sharded(2, "hash", mode))


def test_wrong_arguments_are_refused() -> None:
    def neighbors(of: Any, **options: Any) -> Any:
        return ptags.gather(ptags.scatter(of, of.nodes, **options))

    wide: Any = {"self_kernel": jnp.ones((NUM_FEATURES + 1, OUT))}
    refused("reduce is 'median'", lambda s: ptags.gather(ptags.scatter(s, s.nodes), "median"))
    refused("edge is 'edge_weight'", lambda s: neighbors(s, edge="edge_weight"))
    refused("x is None", lambda s: ptags.scatter(s, NO_FEATURES))
    ptags_of_columns = (lambda s, e, r: s - s.sum(-1, keepdims=True), lambda s, e, r: s @ s.T)
    for message in ptags_of_columns:
        refused("column|edge", lambda s, m=message: ptags.scatter(s, s.nodes, m))
    refused(
        "one row per feature",
        lambda s: ptags.transform(s.nodes, neighbors(s), wide, fully_connected),
    )
    refused(
        "pass the same",
        lambda s: ptags.transform(s.nodes + 0, neighbors(s), KERNELS, fully_connected),
        "sar",
    )
    refused("takes complete rows", lambda s: ptags.apply(jax.nn.relu, s.nodes))

    def unsynchronised(of: Any) -> Any:
        shares: Any = ptags.transform(of.nodes, neighbors(of), KERNELS, fully_connected)
        return ptags.apply(jax.nn.relu, shares)

    refused("was given Shares", unsynchronised)
