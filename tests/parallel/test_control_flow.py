"""Messages that use parameters inside loops, branches, remat and functions with own derivatives."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxgraph as jg

NODES, F = 29, 5


@jax.custom_vjp
def scaled(x, w):
    return jnp.clip(x, -1, 1) * w


# Twice the true derivative, which the tests would see if the rule were lost.
scaled.defvjp(lambda x, w: (scaled(x, w), (x, w)), lambda kept, g: (2 * g * kept[1], g * kept[0]))

MESSAGES: dict[str, Any] = {
    "body of a scan": lambda p, s, r: lax.scan(
        lambda c, g: (jax.nn.relu((c * g) @ p["w"] + r), None), s, p["gate"]
    )[0],
    "first carry of zeros": lambda p, s, r: lax.scan(
        lambda c, x: (jnp.tanh(c + x[:, None] * p["gate"]), None), jnp.zeros_like(s), s.T
    )[0],
    "first carry of a parameter": jax.vmap(
        lambda p, s, r: lax.fori_loop(0, 2, lambda i, c: jnp.tanh(c * s[i]) + r, p["gate"]),
        in_axes=(None, 0, 0),
    ),
    "branch for all": lambda p, s, r: lax.cond(
        p["gate"][0] > 0, lambda: s @ p["w"], lambda: s * p["gate"]
    ),
    "branch by edge": jax.vmap(
        lambda p, s, r: lax.cond(s[0] > r[1], lambda: s @ p["w"], lambda: r * p["gate"]),
        in_axes=(None, 0, 0),
    ),
    "checkpoint": lambda p, s, r: jax.checkpoint(lambda x: jnp.tanh(x @ p["w"]) * p["gate"])(s),
    "vmap": lambda p, s, r: jax.vmap(lambda w: jnp.tanh(s @ w), in_axes=1, out_axes=1)(p["w"]),
    "vjp of one's own": jax.vmap(
        lambda p, s, r: lax.map(lambda k: scaled(s * k, p["gate"]), jnp.arange(2.0)).sum(0),
        in_axes=(None, 0, 0),
    ),
    "jvp of one's own": lambda p, s, r: jnp.logaddexp(s, p["gate"]),
    "gradient by a parameter": jax.vmap(
        lambda p, s, r: jax.grad(lambda g: jnp.sum(jnp.tanh(s * g)))(p["gate"]),
        in_axes=(None, 0, 0),
    ),
}


@functools.cache
def edges() -> Any:
    rng = np.random.default_rng(0)
    return np.unique(rng.integers(0, NODES, (110, 2)), axis=0).T.astype(np.int32)


def features() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(NODES, F)).astype(np.float32)


def parameters() -> Any:
    """Separate parameters for every message, so that their gradients differ."""
    rng = np.random.default_rng(2)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)  # noqa: E731
    return {name: {"w": draw(F, F), "gate": draw(F)} for name in MESSAGES}


def loss(y, ids):
    return jnp.sin(y) * (ids[:, None] % 5 + 1)


def losses(parts: int, mode: str) -> Any:
    senders, receivers = edges()
    graph = jg.Graph.from_edges(senders, receivers, num_nodes=NODES, nodes=features())
    partition = jg.partition.partition(graph, parts, method="hash")
    sharded = jg.parallel.shard(graph, partition, jg.parallel.make_mesh(parts), mode)

    @jg.parallel.spmd
    def total(params, shard):
        def message(s, r, e):
            return {name: one(params[name], s, r) for name, one in MESSAGES.items()}

        rows = jg.parallel.propagate(shard, message, shard.nodes, shard.nodes)
        rows = {name: shard.mask_rows(loss(y, shard.node_ids)) for name, y in rows.items()}
        found = {name: shard.sum(jnp.sum(y)) for name, y in rows.items()}
        return sum(found.values()), found

    return jax.value_and_grad(total, has_aux=True)(parameters(), sharded)


@functools.cache
def expected() -> Any:
    """The same messages of all edges at once, without jaxgraph."""
    senders, receivers = edges()
    x = jnp.asarray(features())

    def total(params):
        def of(name):
            messages = MESSAGES[name](params[name], x[senders], x[receivers])
            return loss(jax.ops.segment_sum(messages, receivers, NODES), jnp.arange(NODES)).sum()

        found = {name: of(name) for name in MESSAGES}
        return sum(found.values()), found

    return jax.jit(jax.value_and_grad(total, has_aux=True))(parameters())


@pytest.mark.parametrize(
    ("parts", "mode"),
    [
        (2, "sar"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, "sar"), (2, "domain"))),
    ],
)
def test_parameters_inside_control_flow_get_their_gradient(parts, mode):
    actual, wanted = losses(parts, mode), expected()
    for name in MESSAGES:
        np.testing.assert_allclose(actual[0][1][name], wanted[0][1][name], rtol=1e-4, err_msg=name)
        for leaf in ("w", "gate"):
            np.testing.assert_allclose(
                actual[1][name][leaf],
                wanted[1][name][leaf],
                rtol=1e-4,
                atol=1e-4,
                err_msg=f"{name}, {leaf}",
            )


def varying_total(message: Any) -> Any:
    """Evaluates a message that closes over two parameters, the first of them varying."""
    senders, receivers = edges()
    graph = jg.Graph.from_edges(senders, receivers, num_nodes=NODES, nodes=features())
    partition = jg.partition.partition(graph, 2, method="hash")
    sharded = jg.parallel.shard(graph, partition, jg.parallel.make_mesh(2))

    @jg.parallel.spmd
    def total(gate, other, shard):
        varying = lax.pcast(gate, shard.axis, to="varying")
        y = jg.parallel.propagate(shard, lambda s, r, e: message(s, varying, other), shard.nodes)
        return shard.sum(jnp.sum(shard.mask_rows(y)))

    return jax.value_and_grad(total)(jnp.full(F, 0.5), jnp.ones(F), sharded)


MIXED = {
    "carry": lambda s, g, other: lax.fori_loop(0, 2, lambda _, c: c * g, other) * s,
    "own derivatives": jax.vmap(
        lambda s, g, other: scaled(s, g) + scaled(s, other), in_axes=(0, None, None)
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_parameters_of_which_some_were_made_to_vary_are_refused_with_advice(name):
    with pytest.raises(ValueError, match=r"jax\.lax\.pcast\(value, shard\.axis.*or none"):
        varying_total(MIXED[name])
