"""Functions of a shard that treat rows by themselves, and those that the partition would change."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax

import jaxgraph as jg
from tests.strategies import complete, random_edges

NODES, F = 29, 5


@functools.cache
def sharded(parts: int) -> Any:
    senders, receivers = np.unique(np.stack(random_edges(NODES, 110, seed=1)), axis=1)
    graph = complete(senders, receivers, NODES, "rows")
    partition = jg.partition.partition(graph, parts, method="hash")
    return jg.parallel.shard(graph, partition, jg.parallel.make_mesh(parts), "sar")


def parameters() -> Any:
    rng = np.random.default_rng(0)
    sizes = {"w": (F, F), "bias": (F,), "table": (64, F)}
    return {k: jnp.asarray(rng.normal(size=s) / 2, jnp.float32) for k, s in sizes.items()}


def total(s, y):
    return s.sum(jnp.sum(s.mask_rows(y)))


def column(s):
    return s.node_mask[:, None]


def standardised(p, s):
    n, x = s.num_nodes, s.nodes @ p["w"] + p["bias"]
    mean = s.sum(jnp.sum(x, 0, where=column(s))) / n
    var = s.sum(jnp.sum(s.mask_rows((x - mean) ** 2), 0)) / n
    return total(s, jnp.tanh((x - mean) * lax.rsqrt(var + 1e-3)) ** 2)


def softmax_over_nodes(p, s):
    x = s.nodes @ p["w"]
    seen = lax.stop_gradient(jnp.where(column(s), x, -jnp.inf).max(0))
    e = jnp.where(column(s), jnp.exp(x - lax.pmax(seen, s.axis)), 0)
    return total(s, (e / s.sum(e.sum(0))) ** 2)


def cross_entropy(p, s):
    logits = s.nodes @ p["w"] + p["bias"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, s.labels)
    loss, count = s.sum((jnp.where(s.train_mask, losses, 0).sum(), s.train_mask.sum()))
    right = s.sum(jnp.sum((logits.argmax(-1) == s.labels) & s.val_mask))
    return loss / jnp.maximum(count, 1) + 0 * right + 0.1 * jnp.sum(p["w"] ** 2)


def in_a_loop(p, s):
    y = lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ p["w"]), s.nodes)
    y, _ = lax.scan(lambda y, w: (y + w, None), y, p["w"])
    columns = lax.map(lambda b: jnp.broadcast_to(b, s.num_rows), p["bias"]).T
    return total(s, jax.checkpoint(lambda y: jnp.sin(y) + columns)(y))


def by_node(p, s):
    draw = jax.vmap(lambda node: jax.random.normal(jax.random.fold_in(jax.random.key(0), node)))
    return total(s, (draw(s.node_ids) * p["table"][s.node_ids, 1])[:, None] + p["bias"])


def picked(p, s):
    y = s.nodes @ p["w"]
    mine = jnp.take_along_axis(y, s.labels[:, None] % F, axis=1)[:, 0]
    other = y[jnp.arange(s.num_rows), s.labels % F]
    hot = (jax.nn.one_hot(s.labels, F) * y).sum(-1)
    set_hot = jnp.zeros_like(y).at[jnp.arange(s.num_rows), s.labels % F].set(1)
    return total(s, jnp.stack([mine, other, hot, (set_hot * y).sum(-1)], 1) ** 2)


def counted(p, s):
    ones = s.sum(jnp.sum(s.mask_rows(jnp.ones(s.num_rows))))
    classes = s.sum(jax.nn.one_hot(s.labels, 3)[:, :].T @ s.mask_rows(s.nodes @ p["w"]))
    biggest = lax.pmax(jnp.max(s.nodes, 0, where=column(s), initial=-jnp.inf), s.axis)
    anything = lax.pmax(jnp.any(s.train_mask).astype(jnp.int32), s.axis)
    return jnp.sum(classes**2) / ones + biggest.sum() * anything


def penalised_gradient(p, s):
    x = s.nodes
    slope = jax.grad(lambda x: jnp.sum(s.mask_rows(jnp.tanh(x @ p["w"] + p["bias"]))))(x)
    return total(s, slope**2)


def pooled_by_attention(p, s):
    x = s.nodes @ p["w"] + p["bias"]
    score = jnp.where(s.node_mask, x @ p["bias"], -jnp.inf)
    e = jnp.exp(score - lax.pmax(lax.stop_gradient(score).max(), s.axis))
    sums, scale = s.sum((e @ s.mask_rows(x), e.sum()))
    return jnp.sum((sums / scale) ** 2)


def by_class(p, s):
    z, label = s.nodes @ p["w"] + p["bias"], jnp.maximum(s.labels, 0)
    sums = s.sum(jax.ops.segment_sum(s.mask_rows(z), label, num_segments=3))
    counts = s.sum(jax.nn.one_hot(s.labels, 3).sum(0))
    top = jax.ops.segment_max(jnp.where(column(s), s.nodes, -jnp.inf), label, num_segments=3)
    predicted = z.argmax(-1)
    confusion = s.sum(jnp.zeros((3, F)).at[label, predicted].add(s.test_mask * 1.0))
    outside = jnp.where(s.node_mask, s.labels, -1)
    again = s.sum(jax.ops.segment_sum(z, outside, num_segments=3))
    shares = s.sum(jax.nn.one_hot(outside, 3).T @ jax.nn.one_hot(predicted, F))
    centres = sums / jnp.maximum(counts, 1)[:, None] + lax.pmax(top, s.axis)
    spread = total(s, (z - centres[label]) ** 2)
    return spread + jnp.sum(again * sums) + jnp.sum(confusion[0]) + jnp.sum(shares[1])


RIGHT = [
    pooled_by_attention,
    by_class,
    standardised,
    softmax_over_nodes,
    cross_entropy,
    in_a_loop,
    by_node,
    picked,
    counted,
    penalised_gradient,
]


@pytest.mark.expensive
@pytest.mark.parametrize("function", RIGHT, ids=lambda f: f.__name__)
def test_what_treats_rows_by_themselves_is_equal_on_any_number_of_parts(function):
    run = jax.value_and_grad(jg.parallel.spmd(function))
    results = [run(parameters(), sharded(parts)) for parts in (1, 2, 3)]
    assert np.abs(results[0][0]) > 1e-2
    for result in results[1:]:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-4), results[0], result
        )


def with_loss(loss):
    """A step that takes the gradient alone, and never looks at the loss."""
    return lambda p, s: jnp.sum(jax.grad(loss)(p, s)["w"] ** 2)


WRONG = {
    "padding in a product": (
        lambda p, s: s.sum((s.nodes + 1).T @ (s.nodes + 1)).sum(),
        "padding included",
    ),
    "padding in a maximum": (
        lambda p, s: lax.pmax(s.nodes.max(0), s.axis).sum(),
        "padding included",
    ),
    "summed rows": (lambda p, s: s.sum(s.nodes).sum(), "row r of every device"),
    "penalty": (
        lambda p, s: s.sum(jnp.sum(s.nodes @ p["w"]) + jnp.sum(p["w"] ** 2)),
        "counted once per part",
    ),
    "gradient of a mean": (with_loss(lambda p, s: (s.nodes @ p["w"]).mean()), "their number"),
    "an argument by row": (
        lambda p, s: total(s, s.nodes + p["table"][: s.num_rows]),
        "position of a row",
    ),
    "an argument beside rows": (
        lambda p, s: total(s, jnp.stack([s.nodes, p["table"][: s.num_rows]], 1).sum(1)),
        "position of a row",
    ),
    "an argument sorted with rows": (
        lambda p, s: total(s, lax.sort((s.nodes, p["table"][: s.num_rows]), num_keys=1)[1]),
        "position of a row",
    ),
    "an argument looked up by rows": (
        lambda p, s: total(
            s, jnp.take_along_axis(p["table"][: s.num_rows], s.labels[:, None] % F, axis=1)
        ),
        "position of a row",
    ),
    "shuffled": (lambda p, s: total(s, s.nodes[s.labels]), "rows of different nodes"),
    "attention": (
        lambda p, s: total(s, jax.nn.softmax(s.nodes @ s.nodes.T) @ s.nodes),
        "rows of different nodes",
    ),
    "branch": (
        lambda p, s: total(
            s, lax.cond(jnp.sum(s.nodes) > 0, lambda y: y, lambda y: 2 * y, s.nodes)
        ),
        "reduction",
    ),
    "in a jit": (jax.jit(lambda p, s: total(s, s.nodes - s.nodes.mean(0))), "their number"),
    "mean after the sum": (
        lambda p, s: s.sum((s.nodes @ p["w"]).sum()) / (s.num_parts * s.nodes.size),
        "their number",
    ),
    "mean over devices": (
        lambda p, s: lax.pmean(jnp.sum(s.nodes @ p["w"]), s.axis),
        "the number of parts",
    ),
    "classes of one part": (
        lambda p, s: total(
            s, jax.ops.segment_sum(s.nodes, jnp.abs(s.labels), num_segments=3)[jnp.abs(s.labels)]
        ),
        "uses a reduction",
    ),
    "padding of the other branch": (
        lambda p, s: s.sum(jnp.sum(lax.cond(p["bias"][0] > 0, jnp.cos, jnp.sin, s.nodes))),
        "padding included",
    ),
    "padding and a number that a loop counts": (
        lambda p, s: s.sum(
            jnp.sum(s.mask_rows(s.nodes) + lax.fori_loop(0, 3, lambda _, c: c - 1, 1.0))
        ),
        "padding included",
    ),
    "a loop over an argument": (
        lambda p, s: total(
            s,
            s.nodes[:, :1]
            + lax.map(lambda t: t * jnp.ones(s.num_rows), p["table"][: s.num_rows, 0]),
        ),
        "position of a row",
    ),
    "padding in a class": (
        lambda p, s: s.sum(jnp.zeros(3).at[s.labels].add(1.0)).sum(),
        "padding included",
    ),
    "started": (
        lambda p, s: s.sum(jnp.ones((3, F)).at[s.labels].add(s.nodes)).sum(),
        "counted once per part",
    ),
    "last in a class": (
        lambda p, s: s.sum(jnp.zeros((3, F)).at[s.labels].set(s.nodes)).sum(),
        "rows of different nodes",
    ),
    "rounded": (
        lambda p, s: s.sum(jnp.sum(s.nodes).astype(jnp.int32)),
        "uses a reduction",
    ),
    "batch norm": (
        lambda p, s: total(s, nnx.BatchNorm(F, rngs=nnx.Rngs(0))(s.nodes)),
        "jaxgraph.nn.BatchNorm|uses a reduction|number|padding",
    ),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("parts", [1, 2])
def test_what_the_partition_would_change_is_refused_with_the_line(name, parts):
    function, words = WRONG[name]
    if "padding" in name and parts == 1:
        assert not sharded(1).manifest.has_padding
        return
    with pytest.raises(ValueError, match=words) as raised:
        jax.eval_shape(jg.parallel.spmd(function), parameters(), sharded(parts))
    assert "another number of parts" in str(raised.value)
    assert "test_row_check.py" in str(raised.value)


def varying(s, value):
    return lax.pcast(value, s.axis, to="varying")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda s: s.nodes[::-1], "rows of different nodes"),
        (lambda s: varying(s, jnp.arange(s.num_rows)), "position of a row"),
        (lambda s: varying(s, jnp.zeros(s.num_rows).at[0].set(1)), "position of a row"),
        (lambda s: jnp.broadcast_to(jnp.sum(s.nodes), (s.num_rows,)), "uses a reduction"),
    ],
)
def test_rows_that_are_returned_are_each_of_one_node(function, words):
    with pytest.raises(ValueError, match=words):
        jax.eval_shape(jg.parallel.spmd(function, outputs="rows"), sharded(2))


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x / len(x),
        lambda x: x * x.shape[0],
        lambda x: x * (1 / len(x)),
        lambda x: x.shape[0] * jnp.tanh(x),
    ],
)
def test_rows_are_not_scaled_by_their_number(parts, function):
    nodes = 4000
    senders, receivers = random_edges(nodes, 100, seed=1)
    graph = jg.Graph(senders, receivers, nodes, nodes=np.ones((nodes, 2), np.float32))
    partition = jg.partition.partition(graph, parts, method="hash")
    placed = jg.parallel.shard(graph, partition, jg.parallel.make_mesh(parts))
    with pytest.raises(ValueError, match="number of rows"):
        jg.parallel.spmd(lambda s: total(s, function(s.nodes)))(placed)


MESSAGES = {
    "a mask": (lambda s: s.sum(s.nodes[s.nodes[:, 0] > 0].sum()), "selects rows by a mask"),
    "a scan": (
        lambda s: s.sum(lax.scan(lambda c, x: (c + x.sum(), x), 0.0, s.nodes)[0]),
        "carries a value in a loop",
    ),
    "pmean": (
        lambda s: total(s, jax.vmap(lambda x: x - lax.pmean(x, "b"), axis_name="b")(s.nodes)),
        "vmap",
    ),
    "all_gather": (
        lambda s: total(s, jax.vmap(lambda x: lax.all_gather(x, "b")[0], axis_name="b")(s.nodes)),
        "vmap",
    ),
    "python": (
        lambda s: total(s, s.nodes + jax.pure_callback(lambda v: v - v.mean(0), s.nodes, s.nodes)),
        "calls Python",
    ),
}


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("name", MESSAGES)
def test_errors_say_what_works(name, parts):
    function, text = MESSAGES[name]
    with pytest.raises(ValueError, match=text):
        jg.parallel.spmd(function)(sharded(parts))
