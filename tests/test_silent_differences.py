"""The law: on 1, 2 and 3 parts the same numbers, or an error of ours; never other numbers.

Small layers are drawn from code that users write, right and wrong: message functions, reductions,
random drops, losses and ops on shards. Values and gradients are compared.
"""

import functools
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from jax import lax

import jaxgraph as jg
from tests.strategies import complete, random_edges
from tests.training import mode_options

PARTS = (1, 2, 3)
NODES, F, KINDS = 29, 5, 3
KEY = jax.random.key(7)
HOME = str(Path(jg.__file__).parent)


@functools.cache
def graph_of(edge_data: bool = True) -> jg.Graph:
    """Every edge occurs twice, half of them with the same data."""
    senders, receivers = np.unique(np.stack(random_edges(NODES, 110, seed=1)), axis=1)
    senders, receivers = np.repeat([senders, receivers], 2, axis=1)
    graph = complete(senders, receivers, NODES, "law", edge_data=True)
    data = {n: np.asarray(getattr(graph, n)) for n in ("edges", "edge_type", "edge_weight")}
    edges = np.arange(len(senders))
    taken = np.where(edges % 4 == 1, edges - 1, edges)
    return graph.replace(**{n: v[taken] if edge_data else None for n, v in data.items()})


@functools.cache
def sharded(parts: int, mode: str, edge_data: bool = True) -> Any:
    graph = graph_of(edge_data)
    partition = jg.partition.partition(graph, parts, method="hash")
    return jg.parallel.shard(graph, partition, jg.parallel.make_mesh(parts), **mode_options(mode))


def parameters() -> Any:
    rng = np.random.default_rng(0)
    sizes = {"w": (F, F), "v": (F, F), "gate": (F,), "edge": (2, F), "table": (KINDS, F)}
    return {k: jnp.asarray(rng.normal(size=s) / 2, jnp.float32) for k, s in sizes.items()}


Term = Callable[[Any, jax.Array, jax.Array, Any], jax.Array]


@jax.custom_vjp
def scaled(x, w):
    return jnp.clip(x, -1, 1) * w


# Twice the true derivative, which the tests would see if the rule were lost.
scaled.defvjp(lambda x, w: (scaled(x, w), (x, w)), lambda kept, g: (2 * g * kept[1], g * kept[0]))


def of_each(function):
    return lambda p, s, r, e: jax.vmap(lambda s, r, e: function(p, s, r, e))(s, r, e)


def attended(p, s, r, e):
    pairs = jnp.stack([s @ p["w"], r @ p["v"], s * r], axis=1)
    return jnp.einsum("ehf,ehg->efg", jax.nn.softmax(pairs, 1), pairs).mean(-1)


def normalised(p, s, r, e):
    return p["gate"] * (s - s.mean(-1, keepdims=True)) / (1e-2 + s.std(-1, keepdims=True))


BY_EDGE: dict[str, Term] = {
    "sender": lambda p, s, r, e: s,
    "gated": lambda p, s, r, e: jax.nn.sigmoid(s * p["gate"] + r) * s,
    "difference": lambda p, s, r, e: jnp.tanh((s - r) @ p["w"]),
    "mlp": lambda p, s, r, e: jax.nn.gelu(s @ p["w"] + r @ p["v"]) @ p["w"],
    "attention": attended,
    "layer norm": normalised,
    "table": lambda p, s, r, e: p["table"][e[1]] * s,
    "one hot": lambda p, s, r, e: (jax.nn.one_hot(e[1], KINDS) @ p["table"]) + r,
    "edge features": lambda p, s, r, e: s * (e[0] @ p["edge"]),
    "distance": lambda p, s, r, e: jnp.exp(-jnp.sum((s - r) ** 2, -1, keepdims=True)) * p["gate"],
    "where": lambda p, s, r, e: jnp.where(e[1][:, None] > 1, s @ p["w"], r),
    "vmap": lambda p, s, r, e: jax.vmap(lambda a, b: jnp.outer(a, b) @ p["gate"])(s, r),
    "flattened": lambda p, s, r, e: jax.nn.relu(s.reshape(-1) * 0.5 + r.reshape(-1)).reshape(-1, F),
    "sorted": lambda p, s, r, e: jnp.sort(s, -1) * p["gate"],
    "scan": lambda p, s, r, e: lax.scan(lambda c, x: (jnp.tanh(c + x), c), r[:, 0], s.T)[1].T,
    "ones": lambda p, s, r, e: jnp.ones(s.shape[0])[:, None] * p["gate"] + 0 * s,
    "einsum": lambda p, s, r, e: jnp.einsum("ei,ij,ej->ej", s, p["w"], r),
    "outer": lambda p, s, r, e: jnp.einsum("ei,ej->eij", s, r).mean(1),
    "cumulated features": lambda p, s, r, e: jnp.cumsum(s, axis=1) / F,
    "reversed features": lambda p, s, r, e: s[:, ::-1],
    "rotated features": lambda p, s, r, e: jnp.concatenate([s[:, 2:], s[:, :2]], 1),
    "transposed": lambda p, s, r, e: (s.T * p["gate"][:, None]).T,
    "norm": lambda p, s, r, e: s / (1 + jnp.linalg.norm(s, axis=-1, keepdims=True)),
    "matrix by type": lambda p, s, r, e: jnp.einsum(
        "ei,eij->ej", s, p["w"][None] * e[0][:, :1, None]
    ),
    "loop": lambda p, s, r, e: lax.fori_loop(0, 2, lambda _, x: jnp.tanh(x), s),
    "jitted": lambda p, s, r, e: jax.jit(jnp.sin)(s) + r,
    "top": lambda p, s, r, e: lax.top_k(s, F)[0] * p["gate"],
    "scattered": lambda p, s, r, e: s.at[jnp.arange(s.shape[0]), e[1]].set(0.0),
    "body of a scan": lambda p, s, r, e: lax.scan(
        lambda c, g: (jax.nn.relu((c * g) @ p["w"] + r), None), s, p["gate"]
    )[0],
    "first carry of zeros": lambda p, s, r, e: lax.scan(
        lambda c, x: (jnp.tanh(c + x[:, None] * p["gate"]), None), jnp.zeros_like(s), s.T
    )[0],
    "first carry of a parameter": of_each(
        lambda p, s, r, e: lax.fori_loop(0, 2, lambda i, c: jnp.tanh(c * s[i]) + r, p["gate"])
    ),
    "branch for all": lambda p, s, r, e: lax.cond(
        p["gate"][0] > 0, lambda: s @ p["w"], lambda: s * p["gate"]
    ),
    "branch by edge": of_each(
        lambda p, s, r, e: lax.cond(s[0] > r[1], lambda: s @ p["w"], lambda: r * p["gate"])
    ),
    "checkpoint": lambda p, s, r, e: jax.checkpoint(lambda x: jnp.tanh(x @ p["w"]) * p["gate"])(s),
    "vmap of columns": lambda p, s, r, e: jax.vmap(
        lambda w: jnp.tanh(s @ w), in_axes=1, out_axes=1
    )(p["w"]),
    "vjp of one's own": of_each(
        lambda p, s, r, e: lax.map(lambda k: scaled(s * k, p["gate"]), jnp.arange(2.0)).sum(0)
    ),
    "jvp of one's own": lambda p, s, r, e: jnp.logaddexp(s, p["gate"]),
}


def halved(x):
    return lax.while_loop(lambda c: c[0] > 0.1, lambda c: (c[0] / 2, c[1] + c[0]), (x, x))[1]


def positive(s):
    return jnp.outer(s[:3], s[:3]) + 2 * jnp.eye(3)


TRACED: dict[str, Term] = {
    "position twice": lambda p, s, r, e: s[jnp.arange(s.shape[0]), e[1]][:, None],
    "own derivatives": lambda p, s, r, e: jax.nn.silu(r) + jax.nn.relu6(s),
    "along features": lambda p, s, r, e: jnp.cumprod(r, 1) + lax.cummax(s, 1) + jnp.argsort(r),
    "cond of each": of_each(lambda p, s, r, e: lax.cond(e[1] > 2, lambda: s, lambda: r * s)),
    "while of each": lambda p, s, r, e: jax.vmap(halved)(jnp.abs(s[:, 0]))[:, None],
    "gradient of each": of_each(
        lambda p, s, r, e: jax.grad(lambda x: jnp.tanh(x @ p["w"] @ r))(s) * e[0][0]
    ),
    "look-up of each": lambda p, s, r, e: jax.vmap(lambda i: s[i] * 2)(jnp.arange(s.shape[0])),
    "map": lambda p, s, r, e: lax.map(lambda x: jnp.tanh(x) @ p["w"], s),
    "best feature": lambda p, s, r, e: p["table"][jnp.minimum(jnp.argmax(s, 1), 2)],
    "cholesky": lambda p, s, r, e: jnp.linalg.cholesky(jax.vmap(positive)(s))[:, :1, 0],
    "solve": of_each(lambda p, s, r, e: jnp.linalg.solve(positive(s), r[:3])),
    "convolution": of_each(lambda p, s, r, e: jnp.convolve(s, e[0], mode="same")),
    "padded": lambda p, s, r, e: jnp.pad(s, ((0, 0), (1, 1))),
    "feature number": lambda p, s, r, e: s * jnp.arange(F) + jnp.eye(F)[2],
    "key by edge": of_each(
        lambda p, s, r, e: jax.random.normal(jax.random.fold_in(KEY, e[1]), (F,)) * s
    ),
}
"""Messages that act edge by edge, too, of which not all have a gradient."""
MIXING: dict[str, Term] = {
    "mean": lambda p, s, r, e: s - s.mean(0),
    "drawn": lambda p, s, r, e: s * jax.random.bernoulli(KEY, 0.5, s.shape),
    "first": lambda p, s, r, e: s - r[:1],
    "position": lambda p, s, r, e: s * jnp.sin(jnp.arange(s.shape[0]))[:, None],
    "cumulated": lambda p, s, r, e: jnp.cumsum(s, 0) * 0.1,
    "counted": lambda p, s, r, e: s * 10 / s.shape[0],
    "softmax": lambda p, s, r, e: jax.nn.softmax(s @ p["w"], axis=0) * s,
    "reversed": lambda p, s, r, e: s[::-1],
    "maximum": lambda p, s, r, e: s / (1 + jnp.abs(s).max()),
    "last": lambda p, s, r, e: s * r[-1],
    "normal": lambda p, s, r, e: s + jax.random.normal(KEY, s.shape),
    "rolled": lambda p, s, r, e: jnp.roll(s, 1, axis=0),
    "sorted edges": lambda p, s, r, e: jnp.sort(s, axis=0),
    "gram": lambda p, s, r, e: (s @ s.T) @ r,
    "batch norm": lambda p, s, r, e: (s - s.mean(0)) / jnp.sqrt(s.var(0) + 1e-3),
    "even": lambda p, s, r, e: jnp.where(jnp.arange(s.shape[0])[:, None] % 2 == 0, s, 0),
    "taken": lambda p, s, r, e: s[jnp.argsort(e[1])],
    "flat": lambda p, s, r, e: jnp.cumsum(s.reshape(-1)).reshape(s.shape),
    "looped": lambda p, s, r, e: lax.fori_loop(0, 2, lambda _, x: x - x.mean(0), s),
    "split keys": lambda p, s, r, e: jax.vmap(lambda k: jax.random.normal(k, (F,)))(
        jax.random.split(KEY, s.shape[0])
    ),
    "shifted": lambda p, s, r, e: s[jnp.arange(s.shape[0]) - 1],
    "matrix over edges": lambda p, s, r, e: s @ (s.T @ r),
    "segments": lambda p, s, r, e: jax.ops.segment_sum(s, e[1], KINDS)[e[1]],
    "groups of edges": lambda p, s, r, e: s.reshape(-1, 4, F).sum(1).repeat(4, 0),
    "carried": lambda p, s, r, e: lax.scan(lambda c, x: (c + x, c), jnp.zeros(F), s)[1],
    "until all": lambda p, s, r, e: lax.while_loop(lambda x: jnp.any(x > 0), lambda x: x - 1, s),
    "cond on all": lambda p, s, r, e: lax.cond(s.sum() > 0, lambda: s, lambda: r),
    "in a jit": lambda p, s, r, e: jax.jit(lambda x: x - x.max(0))(s),
}


def rows_of(shard, y):
    return jnp.sum(shard.mask_rows(jnp.sin(y) * (shard.node_ids[:, None] % 5 + 1)))


def weighted(shard, y):
    return shard.sum(rows_of(shard, y))


RIGHT_LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "sum": weighted,
    "mean": lambda shard, y: weighted(shard, y) / shard.num_nodes,
    "masked": lambda shard, y: shard.sum(jnp.where(shard.train_mask[:, None], y**2, 0).sum()),
    "op": lambda shard, y: weighted(shard, jg.ops.aggregate(shard, y)),
    "attention": lambda shard, y: weighted(
        shard, jg.ops.dot_attention(shard, *(y.reshape(-1, 1, F) for _ in range(3)))[:, 0]
    ),
}
WRONG_LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "forgotten sum": rows_of,
    "summed twice": lambda shard, y: shard.sum(weighted(shard, y)),
    "nodes summed twice": lambda shard, y: weighted(shard, y) / shard.sum(shard.num_nodes),
}


def centred(shard, y):
    return y - shard.sum(jnp.sum(shard.mask_rows(y), 0)) / shard.num_nodes


BY_ROW: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": lambda shard, y: y,
    "activated": lambda shard, y: jax.nn.softmax(jax.nn.gelu(y) + 1) * y,
    "by degree": lambda shard, y: y / (1 + shard.in_degree[:, None]),
    "centred": centred,
    "selected": lambda shard, y: jnp.where(shard.labels[:, None] > 0, y, jnp.flip(y, 1)),
}
ACROSS_ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "mean": lambda shard, y: y - y.mean(0),
    "masked mean": lambda shard, y: y - y.mean(0, where=shard.node_mask[:, None]),
    "softmax": lambda shard, y: jax.nn.softmax(shard.mask_rows(y), axis=0) * y,
    "first": lambda shard, y: y * y[:1],
    "position": lambda shard, y: y * jnp.cos(jnp.arange(shard.num_rows))[:, None],
    "sum with padding": lambda shard, y: y + shard.sum(jnp.sum(y + 1, 0)),
    "mean of means": lambda shard, y: y + shard.sum(shard.mask_rows(y).sum(0) / shard.num_rows),
    "norm": lambda shard, y: y / (1 + jnp.linalg.norm(shard.mask_rows(y))),
}


def layer(names, reduce, self_loops, drop, row, params, shard):
    terms = [(BY_EDGE | TRACED | MIXING)[name] for name in names]
    x = shard.nodes @ params["w"]

    def message(s, r, e):
        data, keep = e
        total: Any = sum(term(params, s, r, data) for term in terms)
        total = total if keep is None else jnp.where(keep[:, None], total, 0)
        return (total[:, :1], total[:, None]) if reduce == "softmax" else total

    keep = jg.parallel.keep_edges(shard, KEY, 0.3) if drop else None
    edge = ((shard.edges, shard.edge_type), keep)
    y = jg.parallel.propagate(shard, message, x, x, edge, reduce=reduce)
    y = (y[:, 0] if reduce == "softmax" else y) + (x if self_loops else 0)
    return (BY_ROW | ACROSS_ROWS)[row](shard, y)


def outcome(run: Callable[[], Any]) -> Any:
    """Numbers, or the text of an error of jaxgraph; JAX's own errors are not caught."""
    with jax.debug_nans(False):
        jax.config.update("jax_traceback_filtering", "off")
        try:
            return jax.tree.map(np.asarray, run())
        except (ValueError, TypeError) as error:
            last = traceback.extract_tb(error.__traceback__)[-1].filename
            assert last.startswith(HOME), f"not an error of ours: {error!r} of {last}"
            assert "check_vma" not in str(error)
            return str(error)
        finally:
            jax.config.update("jax_traceback_filtering", "auto")


def check_equal_or_refused(runs: list[Callable[[], Any]], *, accepted: bool) -> None:
    found = [outcome(run) for run in runs]
    if accepted:
        assert not [words for words in found if isinstance(words, str)]
    numbers = [values for values in found if not isinstance(values, str)]
    for other in numbers[1:]:
        assert_alike(other, numbers[0])


def assert_alike(found: Any, expected: Any, name: str = "") -> None:
    for theirs, mine in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        limit = 2e-4 * max(np.abs(mine).max() if mine.size else 1.0, 1e-2)
        np.testing.assert_allclose(theirs, mine, rtol=2e-4, atol=limit, err_msg=name)


def total_of(names, reduce, loss="sum", self_loops=False, drop=False, row="nothing"):
    @jg.parallel.spmd
    def total(params, shard):
        y = layer(names, reduce, self_loops, drop, row, params, shard)
        return (RIGHT_LOSSES | WRONG_LOSSES)[loss](shard, y)

    return total


def check_layer(names, reduce, loss, self_loops, drop, row, mode) -> None:
    total = total_of(names, reduce, loss, self_loops, drop, row)

    def run(parts):
        return jax.value_and_grad(total)(parameters(), sharded(parts, mode))

    accepted = loss in RIGHT_LOSSES and row in BY_ROW and not set(names) & set(MIXING)
    check_equal_or_refused([functools.partial(run, parts) for parts in PARTS], accepted=accepted)
    if set(names) & set(MIXING):
        assert isinstance(outcome(functools.partial(run, 1)), str)


LAYERS = st.tuples(
    st.lists(st.sampled_from([*BY_EDGE, *BY_EDGE, *MIXING]), min_size=1, max_size=3),
    st.sampled_from(["sum", "mean", "max", "min", "softmax"]),
    st.sampled_from([*RIGHT_LOSSES, *RIGHT_LOSSES, *WRONG_LOSSES]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([*BY_ROW, *BY_ROW, *ACROSS_ROWS]),
    st.sampled_from(["sar", "domain"]),
)


@pytest.mark.expensive
@pytest.mark.parametrize("name", BY_EDGE)
def test_no_message_that_acts_edge_by_edge_is_refused(name):
    jax.eval_shape(jax.value_and_grad(total_of([name], "mean")), parameters(), sharded(2, "sar"))


@pytest.mark.parametrize("parts", [1, 2])
def test_a_message_that_waits_for_other_devices_is_refused(parts):
    def total_by(gate_of):
        @jg.parallel.spmd
        def total(params, shard):
            gate = gate_of(params["gate"], shard)
            of_edge = jax.grad(lambda gate, sender: jnp.sum(jnp.tanh(sender * gate)))

            def message(sender, receiver, edge):
                return jax.vmap(of_edge, (None, 0))(gate, sender)

            return weighted(shard, jg.parallel.propagate(shard, message, shard.nodes))

        return total

    with pytest.raises(ValueError, match=r"waits for other devices .*jax\.lax\.pcast"):
        jax.eval_shape(total_by(lambda gate, shard: gate), parameters(), sharded(parts, "sar"))
    own = total_by(lambda gate, shard: lax.pcast(gate, shard.axis, to="varying"))
    found, alone = (own(parameters(), sharded(count, "sar")) for count in (parts, 1))
    np.testing.assert_allclose(found, alone, rtol=1e-4)


def test_a_message_without_an_axis_of_edges_is_refused():
    graph = graph_of()
    with pytest.raises(ValueError, match="leading axis of edges"):
        jg.parallel.propagate(graph, lambda s, r, e: s.T, graph.nodes)


def reduced(messages, receivers, reduce):
    """The reduction of messages of all edges, by plain JAX."""
    total = functools.partial(jax.ops.segment_sum, segment_ids=receivers, num_segments=NODES)
    count = total(jnp.ones_like(messages[:, :1]))
    if reduce in ("sum", "mean"):
        return total(messages) / (1 if reduce == "sum" else jnp.maximum(count, 1))
    if reduce == "softmax":
        logits = messages[:, :1]
        shares = jnp.exp(logits - jax.ops.segment_max(logits, receivers, NODES)[receivers])
        return total(shares / total(shares)[receivers] * messages)
    sign = 1 if reduce == "max" else -1
    best = sign * jax.ops.segment_max(sign * messages, receivers, NODES)
    return jnp.where(count > 0, best, 0)


PLACES = [("sum", 2, "sar"), ("softmax", 2, "domain")]
MORE_PLACES = [
    ("max", 3, "sar"),
    ("sum", 1, "sar"),
    ("mean", 3, "sar"),
    ("max", 2, "domain"),
    ("min", 3, "prefetch"),
]
MORE_PLACES += [("softmax", 3, "sar"), ("softmax", 1, "sar"), ("sum", 4, "p3-sar")]


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("reduce", "parts", "mode"),
    [*PLACES, *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE_PLACES)],
)
def test_messages_and_their_gradients_are_those_of_all_edges_at_once(reduce, parts, mode):
    """Of plain JAX; each message has parameters of its own, so that their gradients differ.

    Where messages of different inputs are equal, any may win. A clipped one is left out of extrema;
    of "table", two edges into node 18 have the same minimum.
    """
    equal = {"max": ("vjp of one's own",), "min": ("vjp of one's own", "table")}
    left_out = equal.get(reduce, ())
    terms = {name: term for name, term in BY_EDGE.items() if name not in left_out}
    graph, params = graph_of(), dict.fromkeys(terms, parameters())
    x, data = jnp.asarray(graph.nodes), (jnp.asarray(graph.edges), jnp.asarray(graph.edge_type))

    def weighed(y, ids):
        return jnp.sin(y) * (ids[:, None] % 5 + 1)

    @jg.parallel.spmd
    def total(params, shard):
        def message(s, r, e):
            each = [term(params[name], s, r, e) for name, term in terms.items()]
            if reduce != "softmax":
                return each
            return jnp.concatenate([m[:, :1] for m in each], 1), jnp.stack(each, 1)

        rows, edge = shard.to_nodes(shard.nodes), (shard.edges, shard.edge_type)
        found = jg.parallel.propagate(shard, message, rows, rows, edge, reduce=reduce)
        found = found if isinstance(found, list) else jnp.unstack(found, axis=1)
        losses = {n: weighed(y, shard.node_ids) for n, y in zip(terms, found, strict=True)}
        sums = shard.sum(jax.tree.map(lambda y: jnp.sum(shard.mask_rows(y)), losses))
        return sum(sums.values()), sums

    def plain(params):
        def of(name):
            ends = x[graph.senders], x[graph.receivers]
            messages = terms[name](params[name], *ends, data)
            return weighed(reduced(messages, graph.receivers, reduce), jnp.arange(NODES)).sum()

        sums = {name: of(name) for name in terms}
        return sum(sums.values()), sums

    (_, expected), exact = jax.jit(jax.value_and_grad(plain, has_aux=True))(params)
    (_, found), gradients = jax.value_and_grad(total, has_aux=True)(params, sharded(parts, mode))
    for name in terms:
        assert_alike((found[name], gradients[name]), (expected[name], exact[name]), name)


MIXED: dict[str, Any] = {
    "carry": lambda s, g, other: lax.fori_loop(0, 2, lambda _, c: c * g, other) * s,
    "own derivatives": jax.vmap(
        lambda s, g, other: scaled(s, g) + scaled(s, other), in_axes=(0, None, None)
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_parameters_of_which_some_were_made_to_vary_are_refused_with_advice(name):
    @jg.parallel.spmd
    def total(gate, other, shard):
        varying = lax.pcast(gate, shard.axis, to="varying")
        message = lambda s, r, e: MIXED[name](s, varying, other)  # noqa: E731
        return weighted(shard, jg.parallel.propagate(shard, message, shard.nodes))

    with pytest.raises(ValueError, match=r"jax\.lax\.pcast\(value, shard\.axis.*or none"):
        jax.value_and_grad(total)(jnp.full(F, 0.5), jnp.ones(F), sharded(2, "sar"))


@pytest.mark.parametrize("name", TRACED)
def test_messages_without_a_gradient_are_not_refused(name):
    jax.eval_shape(total_of([name], "mean"), parameters(), sharded(2, "sar"))


@pytest.mark.parametrize("name", MIXING)
def test_every_message_that_mixes_edges_is_refused(name):
    for parts, reduce in ((1, "sum"), (2, "softmax")):
        traced = functools.partial(jax.eval_shape, total_of([name], reduce))
        words = outcome(lambda t=traced, p=parts: t(parameters(), sharded(p, "sar")))
        assert isinstance(words, str)
        if name == "mean":
            advice = ("test_silent_differences.py:", "keep_edges", "shard.sum")
            assert all(each in words for each in advice)


@pytest.mark.parametrize("name", ACROSS_ROWS)
def test_what_combines_rows_of_a_device_is_refused(name):
    traced = functools.partial(jax.eval_shape, total_of(["sender"], "sum", row=name))
    assert isinstance(outcome(lambda: traced(parameters(), sharded(2, "sar"))), str)


@pytest.mark.expensive
@pytest.mark.parametrize(
    "layer",
    [
        (["gated", "table", "scan"], "sum", "mean", True, True, "centred", "sar"),
        (["attention", "flattened"], "softmax", "sum", False, False, "selected", "domain"),
        (["mlp", "drawn"], "mean", "sum", False, False, "nothing", "sar"),
        (["sender"], "sum", "op", False, False, "nothing", "sar"),
        (["sender"], "sum", "summed twice", False, False, "nothing", "sar"),
    ],
)
def test_some_layers(layer):
    check_layer(*layer)


# A time limit for each part.
@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))
def test_any_layer(part):
    @seed(part)
    @settings(max_examples=6)
    @given(LAYERS)
    def any_layer(layer):
        check_layer(*layer)

    any_layer()
