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


def gram(p, s):
    x = s.mask_rows(jnp.tanh(s.nodes @ p["w"] + p["bias"]))
    return jnp.linalg.norm(s.sum(x.T @ x))


def cross_entropy(p, s):
    logits = s.nodes @ p["w"] + p["bias"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, s.labels)
    loss, count = s.sum((jnp.where(s.train_mask, losses, 0).sum(), s.train_mask.sum()))
    right = s.sum(jnp.sum((logits.argmax(-1) == s.labels) & s.val_mask))
    return loss / jnp.maximum(count, 1) + 0 * right + 0.1 * jnp.sum(p["w"] ** 2)


def in_a_loop(p, s):
    y = lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ p["w"]), s.nodes)
    y, _ = lax.scan(lambda y, w: (y + w, None), y, p["w"])
    return total(s, jax.checkpoint(lambda y: jnp.sin(y) + p["bias"])(y))


def by_node(p, s):
    draw = jax.vmap(lambda node: jax.random.normal(jax.random.fold_in(jax.random.key(0), node)))
    return total(s, (draw(s.node_ids) * p["table"][s.node_ids, 1])[:, None] + p["bias"])


def one_node(p, s):
    return s.sum(jnp.sum(jnp.where(s.node_ids[:, None] == 3, jnp.exp(s.nodes @ p["w"]), 0)))


def picked(p, s):
    y = s.nodes @ p["w"]
    mine = jnp.take_along_axis(y, s.labels[:, None] % F, axis=1)[:, 0]
    other = y[jnp.arange(s.num_rows), s.labels % F]
    hot = (jax.nn.one_hot(s.labels, F) * y).sum(-1)
    return total(s, jnp.stack([mine, other, hot], 1) ** 2)


def shaped(p, s):
    y = (s.nodes @ p["w"]).reshape(s.num_rows, 1, F)
    y = jnp.concatenate([y, jnp.zeros_like(y), y * 2], 1).transpose(1, 0, 2)
    y = jnp.pad(y, ((0, 1), (0, 0), (0, 0)))[1:, :, ::-1].swapaxes(0, 1).reshape(-1, 3 * F)
    return total(s, jax.nn.softmax(y) * jnp.linspace(0, 1, 3 * F))


def counted(p, s):
    ones = s.sum(jnp.sum(s.mask_rows(jnp.ones(s.num_rows))))
    classes = s.sum(jax.nn.one_hot(s.labels, 3)[:, :].T @ s.mask_rows(s.nodes @ p["w"]))
    biggest = lax.pmax(jnp.max(s.nodes, 0, where=column(s), initial=-jnp.inf), s.axis)
    anything = lax.pmax(jnp.any(s.train_mask).astype(jnp.int32), s.axis)
    return jnp.sum(classes**2) / ones + biggest.sum() * anything


def weighted_sums(p, s):
    scale = 1 / (1 + s.in_degree)
    sums = jnp.stack([(s.nodes * scale[:, None]).sum(0), s.nodes.sum(0)]) * 0.5
    halves = s.sum(sums - 2 * sums.at[0].set(0.0)) @ p["w"]
    halves += s.sum((s.nodes @ p["w"]).sum(0) * (1 / (NODES + 0.3)))  # no mean
    return jnp.sum(halves**2) + s.sum(jnp.vdot(s.nodes @ p["w"], s.mask_rows(s.nodes)))


def penalised_gradient(p, s):
    x = s.nodes
    slope = jax.grad(lambda x: jnp.sum(s.mask_rows(jnp.tanh(x @ p["w"] + p["bias"]))))(x)
    return total(s, slope**2)


def through_layers(p, s):
    y: Any = jg.parallel.propagate(
        s, lambda a, b, _: a * jax.nn.sigmoid(b), s.nodes @ p["w"], s.nodes
    )
    y = jg.nn.dropout(s, y + p["bias"], jax.random.key(1), rate=0.3)
    return total(s, y**2)


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


def largest_of_what_is_not_negative(p, s):
    degree = s.in_degree / lax.pmax(s.in_degree.max(), s.axis)
    largest = lax.pmax(jnp.max(jnp.abs(s.mask_rows(s.nodes))), s.axis)
    return total(s, degree[:, None] * (s.nodes @ p["w"]) / largest)


def a_loop_for_every_row(p, s):
    halve = jax.vmap(lambda x: lax.while_loop(lambda y: jnp.sum(y * y) > 1, lambda y: y / 2, x))
    return total(s, lax.stop_gradient(halve(s.nodes)) @ p["w"])


def stretched(p, s):
    y = jnp.stack([s.nodes, s.nodes @ p["w"]])
    weights = jax.nn.softmax(y @ p["bias"], axis=0)
    slopes = jax.hessian(lambda b: total(s, jnp.tanh(s.nodes + b)))(p["bias"])
    return total(s, (weights[..., None] * y).sum(0) ** 2) + jnp.sum(slopes**2)


def clipped_for_every_node(p, s):
    def loss(w, x, label):
        return optax.softmax_cross_entropy_with_integer_labels(x @ w, label)

    w = lax.pcast(p["w"], s.axis, to="varying")
    slopes = jax.vmap(jax.grad(loss), (None, 0, 0))(w, s.nodes, jnp.maximum(s.labels, 0))
    slopes /= jnp.sqrt(1 + jnp.sum(slopes**2, (1, 2), keepdims=True))
    return jnp.sum(s.sum(jnp.sum(s.mask_rows(slopes), 0)) ** 2)


def shares_with_zeros(p, s):
    x = s.mask_rows(s.nodes @ p["w"])
    jax.debug.callback(lambda share: None, x.sum())
    highest = jnp.where(column(s), s.nodes, jnp.finfo(jnp.float16).min).astype(jnp.float16)
    top = lax.pmax(highest.max(0), s.axis).astype(x.dtype)
    return jnp.sum(s.sum(jnp.array([x.sum(), (x**2).sum(), 0.0]))) + jnp.sum(top)


def whitened(p, s):
    x = s.mask_rows(jnp.insert(s.nodes @ p["w"], 1, 0.5, axis=1)[:, :F])
    factor = jnp.linalg.cholesky(s.sum(x.T @ x) / s.num_nodes + jnp.eye(F))
    return total(s, jnp.tanh(jax.scipy.linalg.solve_triangular(factor, x.T, lower=True).T))


RIGHT = [
    shares_with_zeros,
    whitened,
    pooled_by_attention,
    by_class,
    largest_of_what_is_not_negative,
    a_loop_for_every_row,
    stretched,
    clipped_for_every_node,
    standardised,
    softmax_over_nodes,
    gram,
    cross_entropy,
    in_a_loop,
    by_node,
    picked,
    shaped,
    counted,
    weighted_sums,
    penalised_gradient,
    through_layers,
    one_node,
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
    "mean": (lambda p, s: total(s, s.nodes - s.nodes.mean(0)), "their number"),
    "masked mean": (
        lambda p, s: total(s, s.nodes - s.nodes.mean(0, where=column(s))),
        "uses a reduction",
    ),
    "softmax": (lambda p, s: total(s, jax.nn.softmax(s.nodes, axis=0)), "uses a|padding"),
    "masked softmax": (
        lambda p, s: total(s, jax.nn.softmax(s.nodes, axis=0, where=column(s))),
        "uses a reduction",
    ),
    "padding in a sum": (lambda p, s: s.sum(jnp.sum(s.nodes + p["bias"])), "padding included"),
    "padding in the rows of node 0": (
        lambda p, s: s.sum(jnp.sum(jnp.where(s.node_ids[:, None] == 0, s.nodes + 1, 0))),
        "padding included",
    ),
    "padding in a product": (
        lambda p, s: s.sum((s.nodes + 1).T @ (s.nodes + 1)).sum(),
        "padding included",
    ),
    "padding in a maximum": (
        lambda p, s: lax.pmax(s.nodes.max(0), s.axis).sum(),
        "padding included",
    ),
    "mean of means": (
        lambda p, s: s.sum(jnp.where(s.train_mask, s.nodes[:, 0], 0).sum() / s.train_mask.sum()),
        "uses a reduction",
    ),
    "norm of a part": (lambda p, s: s.sum(jnp.linalg.norm(s.nodes)), "uses a reduction"),
    "clipped": (lambda p, s: s.sum(jnp.minimum(jnp.sum(s.nodes), 3.0)), "uses a reduction"),
    "summed rows": (lambda p, s: s.sum(s.nodes).sum(), "row r of every device"),
    "penalty": (
        lambda p, s: s.sum(jnp.sum(s.nodes @ p["w"]) + jnp.sum(p["w"] ** 2)),
        "counted once per part",
    ),
    "penalty of a gradient": (
        with_loss(lambda p, s: jnp.sum((s.nodes @ p["w"]) ** 2) + jnp.sum(p["w"] ** 2)),
        "counted once per part",
    ),
    "gradient of a mean": (with_loss(lambda p, s: (s.nodes @ p["w"]).mean()), "their number"),
    "stacked": (
        lambda p, s: s.sum(jnp.stack([jnp.sum(s.nodes), 1.0])).sum(),
        "counted once per part",
    ),
    "any": (lambda p, s: s.sum(jnp.any(s.train_mask).astype(jnp.int32)), "uses a reduction"),
    "maxima added": (
        lambda p, s: s.sum(jnp.where(column(s), s.nodes, -jnp.inf).max(0)).sum(),
        "uses a reduction",
    ),
    "position": (
        lambda p, s: total(s, s.nodes * jnp.arange(s.num_rows)[:, None]),
        "position of a row",
    ),
    "even rows": (
        lambda p, s: total(s, jnp.where(jnp.arange(s.num_rows)[:, None] % 2 == 0, s.nodes, 0)),
        "position of a row",
    ),
    "weights of rows": (
        lambda p, s: s.sum(jnp.linspace(0, 1, s.num_rows) @ s.nodes).sum(),
        "position of a row",
    ),
    "an argument by row": (
        lambda p, s: total(s, s.nodes + p["table"][: s.num_rows]),
        "position of a row",
    ),
    "first": (lambda p, s: total(s, s.nodes - s.nodes[:1]), "rows of different nodes"),
    "written": (lambda p, s: total(s, s.nodes.at[0].set(0.0)), "rows of different nodes"),
    "sorted": (lambda p, s: total(s, jnp.sort(s.nodes, axis=0) * s.in_degree[:, None]), "rows of"),
    "cumulated": (lambda p, s: total(s, jnp.cumsum(s.nodes, axis=0)), "rows of different nodes"),
    "biggest": (lambda p, s: total(s, s.nodes + s.nodes.argmax(0)), "rows of different nodes"),
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
    "until": (
        lambda p, s: total(
            s, lax.while_loop(lambda y: jnp.sum(y) > 1, lambda y: y * 0.5, jnp.abs(s.nodes))
        ),
        "reduction",
    ),
    "in a jit": (jax.jit(lambda p, s: total(s, s.nodes - s.nodes.mean(0))), "their number"),
    "mean by a factor": (
        lambda p, s: s.sum((s.nodes @ p["w"]).sum(0) * (1 / s.num_rows)).sum(),
        "their number",
    ),
    "mean of means of features": (
        lambda p, s: s.sum((s.nodes @ p["w"]).sum(0).mean() / s.num_rows),
        "their number",
    ),
    "mean after the sum": (
        lambda p, s: s.sum((s.nodes @ p["w"]).sum()) / (s.num_parts * s.nodes.size),
        "their number",
    ),
    "covariance": (
        lambda p, s: jnp.sum((s.sum(s.nodes.T @ s.nodes) / s.num_rows) ** 2),
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
    "padding of one branch": (
        lambda p, s: s.sum(jnp.sum(lax.cond(p["bias"][0] > 0, jnp.sin, jnp.cos, s.nodes))),
        "padding included",
    ),
    "padding of the other branch": (
        lambda p, s: s.sum(jnp.sum(lax.cond(p["bias"][0] > 0, jnp.cos, jnp.sin, s.nodes))),
        "padding included",
    ),
    "padding in a class": (
        lambda p, s: s.sum(jnp.zeros(3).at[s.labels].add(1.0)).sum(),
        "padding included",
    ),
    "padding in a maximum of logarithms": (
        lambda p, s: lax.pmax(s.mask_rows(jnp.log(jnp.abs(s.nodes))).max(), s.axis),
        "padding included",
    ),
    "started": (
        lambda p, s: s.sum(jnp.ones((3, F)).at[s.labels].add(s.nodes)).sum(),
        "counted once per part",
    ),
    "by position": (
        lambda p, s: s.sum(
            jax.ops.segment_sum(s.nodes, jnp.arange(s.num_rows) % 3, num_segments=3)
        ).sum(),
        "rows of different nodes",
    ),
    "last in a class": (
        lambda p, s: s.sum(jnp.zeros((3, F)).at[s.labels].set(s.nodes)).sum(),
        "rows of different nodes",
    ),
    "rounded": (
        lambda p, s: s.sum(jnp.sum(s.nodes).astype(jnp.int32)),
        "uses a reduction",
    ),
    "halves": (lambda p, s: s.sum(lax.div(jnp.sum(s.train_mask), 2)), "uses a reduction"),
    "one or a sum": (
        lambda p, s: s.sum(
            lax.cond(p["bias"][0] > 9, lambda x: x * 0 + x, jnp.ones_like, jnp.sum(s.nodes))
        ),
        "counted once per part",
    ),
    "in Fortran's order": (
        lambda p, s: total(s, s.nodes.reshape(F, -1, order="F").T * s.in_degree[:, None]),
        "rows of different nodes",
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


def test_rows_that_are_returned_may_be_constant():
    run = jg.parallel.spmd(lambda s: varying(s, jnp.ones((s.num_rows, 2))), outputs="rows")
    assert np.all(jg.parallel.gather_rows(run(sharded(2)), sharded(2)) == np.ones((NODES, 2)))


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


def test_an_assertion_of_the_function_stays() -> None:
    def function(s):
        assert s.num_parts == 2

    with pytest.raises(AssertionError):
        jg.parallel.spmd(function)(sharded(1))
