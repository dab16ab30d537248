"""Law 5 of graphs of several sets: loss, gradients and runs are those of one device.

Rows of nodes and coefficients of attention are dropped, and a set of nodes has learned rows.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph import nn, train
from jaxgraph.parallel import ShardedGraph, make_mesh, shard
from jaxgraph.typed_graph import TypedGraph
from tests.law.passes import TOLERANCE
from tests.parallel.typed_shards import scattered
from tests.strategies import NUM_CLASSES
from tests.tolerance import relative_error
from tests.training import HIDDEN, mode_options

USERS, ITEMS, FEATURES, HEADS = 61, 43, 5, 2
ENDS = {"rates": ("user", "item"), "rated by": ("item", "user"), "knows": ("user", "user")}


@cache
def graph_of_sets() -> TypedGraph:
    """Users with features and labels, and items without."""
    rng, sizes = np.random.default_rng(0), {"user": USERS, "item": ITEMS}
    train_mask = np.arange(USERS) % 2 == 0
    users = {
        "nodes": rng.normal(size=(USERS, FEATURES)),
        "labels": rng.integers(0, NUM_CLASSES, USERS),
        "train_mask": train_mask,
        "val_mask": ~train_mask,
    }
    edges = {}
    for name, (sender, receiver) in ENDS.items():
        senders, receivers = (rng.integers(0, sizes[end], 240) for end in (sender, receiver))
        receivers[:40] = 3  # A hub, and equal edges.
        edges[sender, name, receiver] = {"senders": senders, "receivers": receivers}
    return TypedGraph({"item": {"num_nodes": ITEMS}, "user": users}, edges)


class OfSets(nnx.Module):
    """Rounds of a convolution along every relation; the last one has an output for each class."""

    def __init__(self, convolution: Any, *hidden: int) -> None:
        rngs = nnx.Rngs(0)
        self.rows = nn.NodeEmbedding(ITEMS, HIDDEN, table="item", rngs=rngs)
        self.map = nn.Linear(FEATURES, HIDDEN, rngs=rngs)
        self.layers = nnx.List(
            nn.HeteroConv({name: convolution(HIDDEN, width, rngs=rngs) for name in ENDS})
            for width in (*hidden, NUM_CLASSES)
        )

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
        x = {"user": self.map(shard.tables["user"], x["user"]), "item": self.rows(shard)}
        for number, layer in enumerate(self.layers):
            own = None if key is None else jax.random.fold_in(key, number)
            if train:
                x = {n: nn.dropout(shard.tables[n], y, own, rate=0.4) for n, y in x.items()}
            x = jax.tree.map(jax.nn.elu, layer(shard, x, key=own, train=train))
        return x["user"]


def attention() -> OfSets:
    """Two rounds of attention."""
    convolution = partial(nn.GATv2Conv, num_heads=HEADS, dropout=0.3, concat=False)
    return OfSets(convolution, HIDDEN)


def run(sharded: ShardedGraph) -> dict[str, Any]:
    """The loss and the gradient of a model, and a run."""
    model = attention()
    loss, grads = train.loss_and_grad(model, sharded, seed=2, train=True)
    found: dict[str, Any] = {"first loss": loss}
    found |= {f"d{jax.tree_util.keystr(p)}": g for p, g in jax.tree.leaves_with_path(grads)}
    history = train.fit(model, sharded, optax.adam(1e-2), epochs=3, seed=1)
    found |= {"loss": history.loss, "val_loss": history.val_loss}
    return found | {"outputs": train.predict(model, sharded)}


@cache
def on_one_device() -> dict[str, Any]:
    return run(shard(graph_of_sets(), None, make_mesh(1)))


@pytest.mark.law(5)
@pytest.mark.parametrize(
    ("mode", "parts"),
    [
        ("domain", 4),
        *(
            pytest.param(mode, parts, marks=pytest.mark.slow)
            for mode, parts in (("sar", 3), ("sar", 2), ("sar", 4), ("domain", 2), ("prefetch", 3))
        ),
    ],
)
def test_loss_gradients_and_runs_are_those_of_one_device(mode: str, parts: int) -> None:
    graph = graph_of_sets()
    sharded = shard(graph, scattered(graph, parts), make_mesh(parts), **mode_options(mode))
    expected, found = on_one_device(), run(sharded)
    assert (ITEMS, HIDDEN) in map(np.shape, expected.values())
    for name, value in expected.items():
        assert relative_error(found[name], value) < TOLERANCE, name
    without = train.loss_and_grad(attention(), sharded)[0]
    assert abs(float(without) - float(expected["first loss"])) > 1e-3
