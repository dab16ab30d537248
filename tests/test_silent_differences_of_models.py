"""The law of `test_silent_differences`, for models that users write with NNX, right and wrong."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from jax import lax

import jaxgraph as jg
from tests.test_silent_differences import (
    KEY,
    PARTS,
    F,
    check_equal_or_refused,
    outcome,
    sharded,
)


class Net(nnx.Module):
    """A model of jaxgraph's and Flax's modules."""

    def __init__(self, norm: str, dropout: str):
        rngs = nnx.Rngs(0)
        self.first = jg.nn.SAGEConv(F, 6, rngs=rngs)
        self.kind, self.dropout = norm, dropout
        made: dict[str, Callable[[], Any]] = {
            "none": lambda: None,
            "jaxgraph": lambda: jg.nn.BatchNorm(6),
            "flax": lambda: nnx.BatchNorm(6, rngs=rngs),
            "flax layer norm": lambda: nnx.LayerNorm(6, rngs=rngs),
        }
        self.norm: Any = nnx.data(made[norm]())
        self.drop: Any = nnx.data(nnx.Dropout(0.5, rngs=rngs) if dropout == "flax" else None)
        self.last = nnx.Linear(6, 3, rngs=rngs)
        self.seen = nnx.Variable(jnp.zeros(()))

    def __call__(self, shard: Any, x: Any, key: Any) -> Any:
        h = nnx.relu(self.first(shard, x))
        if self.norm is not None:
            h = self.norm(shard, h, True) if self.kind == "jaxgraph" else self.norm(h)
        if self.dropout == "jaxgraph":
            h = jg.nn.dropout(shard, h, key, rate=0.4)
        return self.last(self.drop(h) if self.drop is not None else h)


IDIOMS = ("updated", "counted", "counted by device", "gradient summed twice", "switched")


def check_idiom(norm: str, dropout: str, idiom: str) -> None:
    def loss_of(model, shard, key):
        logits = model(shard, shard.nodes, key)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, shard.labels)
        chosen = shard.train_mask
        total, count = shard.sum((jnp.where(chosen, losses, 0).sum(), chosen.sum()))
        return total / count

    @jg.parallel.spmd
    def step(model, optimizer, shard, key):
        loss, grads = nnx.value_and_grad(loss_of)(model, shard, key)
        if idiom == "gradient summed twice":
            grads = shard.sum(grads)
        elif idiom == "counted":
            model.seen.set_value(model.seen.get_value() + shard.num_nodes)
        elif idiom == "counted by device":
            model.seen.set_value(shard.node_mask.sum() + model.seen.get_value())
        elif idiom == "switched":
            model.kind = "switched"
        optimizer.update(model, grads)
        return loss

    def run(parts):
        model = Net(norm, dropout)
        optimizer = nnx.Optimizer(model, optax.sgd(0.2, momentum=0.9), wrt=nnx.Param)
        graph = sharded(parts, "sar", edge_data=False)
        losses = [step(model, optimizer, graph, jax.random.key(i)) for i in range(3)]
        return losses, nnx.state(model)

    accepted = idiom in ("updated", "counted") and norm != "flax" and dropout != "flax"
    runs = [functools.partial(run, parts) for parts in PARTS]
    check_equal_or_refused(runs, accepted=accepted)
    if accepted:
        losses, _ = outcome(runs[1])
        assert losses[2] < losses[0] or dropout != "none"
    else:
        assert isinstance(outcome(runs[1]), str)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("norm", "dropout", "idiom"),
    [
        ("jaxgraph", "jaxgraph", "counted"),
        ("flax", "none", "updated"),
        ("flax layer norm", "none", "counted by device"),
        ("none", "none", "gradient summed twice"),
    ],
)
def test_some_idioms(norm, dropout, idiom):
    check_idiom(norm, dropout, idiom)


@pytest.mark.slow
@pytest.mark.parametrize("idiom", IDIOMS)
@pytest.mark.parametrize("dropout", ["none", "jaxgraph", "flax"])
@pytest.mark.parametrize("norm", ["none", "jaxgraph", "flax", "flax layer norm"])
def test_every_idiom(norm, dropout, idiom):
    check_idiom(norm, dropout, idiom)


def test_random_numbers_by_the_place_of_a_row_are_refused():
    """Drawn like `nnx.Dropout` does, in a model that is no argument of the function."""
    graphdef, state = nnx.split(Net("none", "flax"))

    @jg.parallel.spmd
    def loss(state, shard):
        y = nnx.merge(graphdef, state)(shard, shard.nodes, KEY)
        return shard.sum(jnp.sum(shard.mask_rows(y)))

    @jg.parallel.spmd
    def by_node(shard):
        draw = jax.vmap(lambda node: jax.random.normal(jax.random.fold_in(KEY, node), (3,)))
        return shard.sum(jnp.sum(shard.mask_rows(draw(shard.node_ids) ** 2)))

    @jg.parallel.spmd
    def by_device(shard):
        key = jax.random.fold_in(KEY, lax.axis_index(shard.axis))
        return shard.sum(jnp.sum(jax.random.normal(key, (shard.num_rows,))))

    for parts in PARTS:
        graph = sharded(parts, "sar", edge_data=False)
        assert isinstance(outcome(functools.partial(by_device, graph)), str)
        words = outcome(functools.partial(loss, state, graph))
        assert isinstance(words, str) and "jaxgraph.nn.dropout" in words
    runs = [functools.partial(by_node, sharded(parts, "sar")) for parts in PARTS]
    check_equal_or_refused(runs, accepted=True)
