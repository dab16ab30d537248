"""NNX objects among the arguments of `spmd` are updated as under `nnx.jit`."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.core import Tracer

import jaxgraph as jg


@functools.cache
def sharded(parts):
    graph = jg.datasets.load("karate")
    graph = jg.transforms.degree_features(graph, max_degree=16)
    partition = jg.partition.partition(graph, parts, method="hash")
    return jg.parallel.shard(graph, partition, jg.parallel.make_mesh(parts))


class Net(nnx.Module):
    def __init__(self, seed=0, embedding=False):
        rngs = nnx.Rngs(seed)
        self.first = jg.nn.SAGEConv(17, 8, rngs=rngs)
        self.norm = jg.nn.BatchNorm(8)
        self.second = jg.nn.GCNConv(8, 2, rngs=rngs)
        self.calls = nnx.Variable(jnp.int32(0))
        self.table: Any = jg.nn.NodeEmbedding(34, 8, rngs=rngs) if embedding else None

    def __call__(self, shard, x, key=None, train=False):
        self.calls.set_value(self.calls.get_value() + 1)
        h = nnx.relu(self.norm(shard, self.first(shard, x), train))
        if self.table is not None:
            h = h + self.table(shard)
        if train:
            h = jg.nn.dropout(shard, h, key, rate=0.3)
        return self.second(shard, h)


def loss_of(model, shard, key):
    logits = model(shard, shard.nodes, key, train=True)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(shard.labels, 0))
    total, count = shard.sum((jnp.where(shard.node_mask, losses, 0).sum(), shard.node_mask.sum()))
    return total / count


traces = []
# Adam would turn the rounding of a gradient that batch norm cancels into steps.
OPTIMIZER = optax.sgd(0.3, momentum=0.9)


@jg.parallel.spmd
def step(model, optimizer, shard, key):
    traces.append(1)
    loss, grads = nnx.value_and_grad(loss_of)(model, shard, key)
    optimizer.update(model, grads)
    return loss


def trained(parts, run=step, **options):
    graph, model = sharded(parts), Net(**options)
    if options.get("embedding"):
        model = jg.parallel.place_rows(model, graph)
    optimizer = nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)
    losses = [float(run(model, optimizer, graph, jax.random.key(i))) for i in range(8)]
    return model, optimizer, losses


@functools.cache
def by_hand():
    """The same training on one part, written with pure functions."""
    graph, model = sharded(1), Net()
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    optimizer = OPTIMIZER

    def pure(params, rest, moments, shard, key):
        def of_params(params):
            merged = nnx.merge(graphdef, params, rest, copy=True)
            return loss_of(merged, shard, key), nnx.split(merged, nnx.Param, ...)[2]

        (loss, new), grads = jax.value_and_grad(of_params, has_aux=True)(params)
        updates, moments = optimizer.update(grads, moments, params)
        return loss, optax.apply_updates(params, updates), new, moments

    run, moments, losses = jg.parallel.spmd(pure), optimizer.init(params), []
    for i in range(8):
        loss, params, rest, moments = run(params, rest, moments, graph, jax.random.key(i))
        losses.append(float(loss))
    return params, rest, losses


@pytest.mark.expensive
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_trains_as_a_pure_step_does(parts):
    model, optimizer, losses = trained(parts)
    params, rest, expected = by_hand()
    assert losses[-1] < 0.8 * losses[0]
    np.testing.assert_allclose(losses, expected, rtol=2e-4)
    _, mine, others = nnx.split(model, nnx.Param, ...)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), mine, params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), others, rest)
    assert int(model.calls.get_value()) == 8 == int(optimizer.step.get_value())


def test_objects_in_pytrees_that_come_back():
    @jg.parallel.spmd
    def run(things, shard):
        model, rngs = things["model"], things["rngs"]
        y = model(shard, shard.nodes, rngs.dropout(), train=True)
        return model, shard.sum(jnp.sum(shard.mask_rows(y)))

    model, rngs = Net(), nnx.Rngs(dropout=3)
    back, total = run({"model": model, "rngs": rngs}, sharded(2))
    assert back is model
    assert int(rngs.dropout.count.get_value()) == 1
    again = run({"model": model, "rngs": rngs}, sharded(2))[1]
    assert int(rngs.dropout.count.get_value()) == 2 == int(model.calls.get_value())
    assert not np.allclose(total, again)


def differs(model, shard):
    model.calls.set_value(shard.node_mask.sum())


def restructured(model, shard):
    model.other = nnx.Param(jnp.ones(2))


def switched(model, shard):
    model.width = 3


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (differs, r"Variable calls that differs between devices.*shard\.sum"),
        (restructured, "changed the structure"),
        (switched, "changed the structure"),
    ],
)
def test_refuses(wrong, words):
    with pytest.raises(ValueError, match=words):
        jg.parallel.spmd(wrong)(Net(), sharded(2))


def test_refuses_modules_that_work_by_device():
    def run(model, shard):
        return shard.sum(jnp.sum(shard.mask_rows(model(shard.nodes))))

    for module, word in (
        (nnx.BatchNorm(17, rngs=nnx.Rngs(0)), "jaxgraph.nn.BatchNorm"),
        (nnx.Sequential(nnx.Dropout(0.5, rngs=nnx.Rngs(0))), "jaxgraph.nn.dropout"),
    ):
        with pytest.raises(ValueError, match=word):
            jg.parallel.spmd(run)(module, sharded(2))
        module.eval()
        jg.parallel.spmd(run)(module, sharded(2))


def evaluated(model, shard):
    y = shard.mask_rows(nnx.relu(model.first(shard, shard.nodes)))
    return shard.sum(jnp.sum(y * y))


def test_unchanged_objects_are_placed_once(monkeypatch):
    run, graph, model = jg.parallel.spmd(evaluated), sharded(2), Net(embedding=True)
    model = jg.parallel.place_rows(model, graph)
    values = jax.tree.map(np.asarray, jax.tree.leaves(nnx.state(model)))
    lowered = run.lower(model, graph).as_text()
    first = run(model, graph)
    for leaf, value in zip(jax.tree.leaves(nnx.state(model)), values, strict=True):
        assert leaf.sharding.mesh == graph.mesh
        np.testing.assert_array_equal(leaf, value)
    assert run.lower(model, graph).as_text() == lowered  # for arrays placed as in a call
    with monkeypatch.context() as patched:
        patched.setattr(jax, "device_put", None)
        assert run(model, graph) == first
    np.testing.assert_allclose(run(Net(), sharded(1)), first, rtol=1e-5)
    for parts in (1, 2):
        model = Net()
        once = run(model, sharded(parts))
        np.testing.assert_allclose(run(model, sharded(3 - parts)), once, rtol=1e-5)


@pytest.mark.expensive
@pytest.mark.parametrize("transform", [jax.jit, jax.grad, nnx.jit, jax.checkpoint])
def test_objects_from_outside_of_a_transformation_stay_usable(transform):
    run, graph, model = jg.parallel.spmd(evaluated), sharded(2), Net()
    expected = float(run(Net(), graph))
    transform(lambda scale: scale * run(model, graph))(2.0)
    assert not any(isinstance(v, Tracer) for v in jax.tree.leaves(nnx.state(model)))
    assert float(run(model, graph)) == expected
