"""Message functions that act edge by edge are accepted, all others refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxgraph.parallel.checks.message_check import check_each_column, check_each_edge

F = 6
TABLE = jnp.asarray(np.random.default_rng(0).normal(size=(5, F)), jnp.float32)
W = jnp.asarray(np.random.default_rng(1).normal(size=(F, F)), jnp.float32)
KEY = jax.random.key(0)


def examples(edges=8) -> Any:
    """Senders and receivers [edges, F], edge features [edges, 3] and kinds [edges]."""
    rng = np.random.default_rng(2)
    rows = lambda *shape: jnp.asarray(rng.normal(size=(edges, *shape)), jnp.float32)  # noqa: E731
    return rows(F), rows(F), (rows(3), jnp.asarray(rng.integers(0, 5, edges), jnp.int32))


@jax.custom_jvp
def cube(x):
    return x**3


cube.defjvp(lambda primals, tangents: (cube(*primals), 3 * primals[0] ** 2 * tangents[0]))


@jax.custom_vjp
def clipped(x):
    return jnp.clip(x, -1, 1)


clipped.defvjp(lambda x: (clipped(x), None), lambda _, g: (g,))


def attention(s, r, e):
    heads = s.reshape(s.shape[0], 2, 3)
    return jax.nn.softmax(jnp.einsum("ehf,egf->ehg", heads, r.reshape(-1, 2, 3))).reshape(-1, 4)


def flat_mlp(s, r, e):
    h = jax.nn.gelu(s.reshape(-1, 3) @ W[:3, :3])
    h = jnp.where(h > 0, h, jnp.zeros_like(h)) + jnp.ones(h.shape[0])[:, None]
    return h.reshape(s.shape[0], 2, 3)


def layer_norm(s, r, e):
    return (s - s.mean(-1, keepdims=True)) / jnp.sqrt(s.var(-1, keepdims=True) + 1e-5)


def steps_over_features(s, r, e):
    last, every = lax.scan(lambda c, x: (c * 0.5 + x, c), jnp.zeros(s.shape[0]), s.T)
    return last[:, None] + every.T


def spd(s):
    return jnp.outer(s[:3], s[:3]) + 2 * jnp.eye(3)


def halved(x):
    return lax.while_loop(lambda c: c[0] > 0.1, lambda c: (c[0] / 2, c[1] + c[0]), (x, x))[1]


def scattered(s, r, e):
    return s.at[:, 1].set(0.0).at[jnp.arange(s.shape[0]), e[1]].add(1.0)


BY_EDGE = {
    "sender": lambda s, r, e: s,
    "ones": lambda s, r, e: s * jnp.ones(s.shape[0])[:, None],
    "mlp": lambda s, r, e: jax.nn.relu(jnp.concatenate([s, r], -1)[:, :F] @ W) @ W,
    "attention": attention,
    "flattened": flat_mlp,
    "layer norm": layer_norm,
    "one hot": lambda s, r, e: jax.nn.one_hot(e[1], 5) @ TABLE * s,
    "table": lambda s, r, e: TABLE[e[1]] + jnp.take(TABLE, e[1], axis=0),
    "position twice": lambda s, r, e: s[jnp.arange(s.shape[0]), e[1]],
    "where": lambda s, r, e: jnp.where(e[1][:, None] > 2, s, r),
    "scan over features": steps_over_features,
    "custom jvp": lambda s, r, e: cube(s) + jax.nn.silu(r) + jax.nn.relu6(s),
    "sort": lambda s, r, e: jnp.sort(s) + jnp.take_along_axis(r, jnp.argsort(r), 1),
    "cumulative": lambda s, r, e: jnp.cumsum(s, -1) + jnp.cumprod(r, 1) + lax.cummax(s, 1),
    "vmap": jax.vmap(lambda s, r, e: jnp.dot(s, r) + e[0][0] * W[e[1]].sum()),
    "vmap of cond": jax.vmap(
        lambda s, r, e: lax.cond(e[1] > 2, lambda: s.sum(), lambda: jnp.prod(r))
    ),
    "vmap of while": lambda s, r, e: jax.vmap(halved)(jnp.abs(s[:, 0])),
    "vmap of fori": jax.vmap(lambda s, r, e: lax.fori_loop(0, 3, lambda i, c: c * r + s[i], s)),
    "vmap of grad": jax.vmap(lambda s, r, e: jax.grad(lambda x: jnp.tanh(x @ W @ r))(s)),
    "vmap of lookup": lambda s, r, e: jax.vmap(lambda i: s[i] * 2)(jnp.arange(s.shape[0])),
    "map": lambda s, r, e: lax.map(lambda x: jnp.tanh(x) @ W, s),
    "argmax": lambda s, r, e: TABLE[jnp.minimum(jnp.argmax(s, 1), 4)],
    "cholesky": lambda s, r, e: jnp.linalg.cholesky(jax.vmap(spd)(s)).reshape(-1, 9),
    "solve": jax.vmap(lambda s, r, e: jnp.linalg.solve(spd(s), e[0])),
    "convolution": jax.vmap(lambda s, r, e: jnp.convolve(s, e[0], mode="same")),
    "pad": lambda s, r, e: jnp.pad(s, ((0, 0), (1, 1))),
    "scatter": scattered,
    "feature number": lambda s, r, e: s * jnp.arange(F) + jnp.eye(F)[2],
    "key by edge": jax.vmap(
        lambda s, r, e: jax.random.normal(jax.random.fold_in(KEY, e[1]), (F,)) * s
    ),
    "remat": lambda s, r, e: jax.checkpoint(lambda x: jnp.tanh(x @ W))(s),
    "jit": lambda s, r, e: jax.jit(lambda x, y: (x * y).sum(-1))(s, r),
    "tree": lambda s, r, e: {"a": s, "b": (r[:, None], e[1])},
}


@pytest.mark.parametrize("name", BY_EDGE)
def test_accepts_what_acts_edge_by_edge(name):
    check_each_edge(BY_EDGE[name], *examples())


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_EDGE)
def test_what_is_accepted_acts_edge_by_edge(name):
    """Other edges around an edge, or another place, do not change its message."""
    message, (s, r, e) = BY_EDGE[name], examples()
    order = jnp.array([5, 2, 7])
    some = jax.tree.map(lambda leaf: leaf[order], (s, r, e))
    for mine, all_of in zip(*map(jax.tree.leaves, (message(*some), message(s, r, e))), strict=True):
        np.testing.assert_allclose(mine, all_of[order], rtol=2e-5, atol=2e-5)


MIXING = {
    "mean": lambda s, r, e: s - s.mean(0),
    "random": lambda s, r, e: s * jax.random.bernoulli(KEY, 0.5, s.shape),
    "split keys": lambda s, r, e: jax.vmap(jax.random.normal)(jax.random.split(KEY, s.shape[0])),
    "first": lambda s, r, e: s - r[:1],
    "position": lambda s, r, e: s * jnp.arange(s.shape[0])[:, None],
    "sort": lambda s, r, e: jnp.sort(s, 0),
    "reversed": lambda s, r, e: s[::-1],
    "shifted": lambda s, r, e: s[jnp.arange(s.shape[0]) - 1],
    "count": lambda s, r, e: s / s.shape[0],
    "gram": lambda s, r, e: (s @ r.T) @ s,
    "matrix over edges": lambda s, r, e: s.T @ r,
    "segments": lambda s, r, e: jax.ops.segment_sum(s, e[1], 5)[e[1]],
    "groups of edges": lambda s, r, e: s.reshape(-1, 4, F).sum(1).repeat(4, 0),
    "carry": lambda s, r, e: lax.scan(lambda c, x: (c + x, c), jnp.zeros(F), s)[1],
    "loop until all": lambda s, r, e: lax.while_loop(lambda x: jnp.any(x > 0), lambda x: x - 1, s),
    "cond on all": lambda s, r, e: lax.cond(s.sum() > 0, lambda: s, lambda: r),
    "transposed": lambda s, r, e: s.T,
    "mixed in jit": lambda s, r, e: jax.jit(lambda x: x - x.max(0))(s),
}


@pytest.mark.parametrize("name", MIXING)
def test_refuses_what_looks_at_other_edges(name):
    with pytest.raises(ValueError, match=r"act on every edge|another number|leading axis") as error:
        check_each_edge(MIXING[name], *examples())
    if name == "mean":
        for word in ("test_message_check.py:", "keep_edges", "shard.sum"):
            assert word in str(error.value)


def test_columns():
    s, r, e = examples()
    check_each_column(lambda s, w, r: s * w[:, :1] + jnp.tanh(r), (s, e[0], r), (True, False, True))
    with pytest.raises(ValueError, match="column"):
        check_each_column(
            lambda s, w, r: s * s.sum(-1, keepdims=True), (s, e[0], r), (True, False, True)
        )
    with pytest.raises(ValueError, match="column"):
        check_each_column(lambda s, w, r: s @ W, (s, e[0], r), (True, False, True))
