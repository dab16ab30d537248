"""Laws 3 and 5: the same outputs of relabelled nodes, the same run on any devices."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph import Graph, nn, train
from jaxgraph.parallel import ShardedGraph, make_mesh, shard
from tests.law.passes import TOLERANCE, WIDE, graph_of, parts_of
from tests.law.table import EVERY_MODE
from tests.strategies import NUM_CLASSES
from tests.tolerance import relative_error
from tests.training import HIDDEN, mode_options

KINDS: dict[str, Any] = {"sage": nn.GraphSAGE, "gat": nn.GAT}


def run(kind: str, sharded: ShardedGraph) -> dict[str, Any]:
    """Losses of a run, and the metrics and outputs of the model that it leaves."""
    sizes = (WIDE, HIDDEN, NUM_CLASSES)
    model = KINDS[kind](*sizes, norm="batch", dropout=0.4, rngs=nnx.Rngs(0))
    history = train.fit(model, sharded, optax.adam(1e-2), epochs=3, seed=1)
    names = ("loss", "val_loss", "val_accuracy", "best_epoch")
    found: dict[str, Any] = {name: getattr(history, name) for name in names}
    for split, metrics in train.evaluate(model, sharded).items():
        found |= {f"{split} {name}": value for name, value in metrics.items()}
    return found | {"outputs": train.predict(model, sharded)}


@cache
def on_one_device(kind: str) -> dict[str, Any]:
    return run(kind, shard(graph_of(), None, make_mesh(1)))


CORE = [("sage", mode) for mode in ("sar", "domain", "p3-sar", "stream")] + [("gat", "prefetch")]
"""Runs of `make test`."""


@pytest.mark.expensive
@pytest.mark.law(5)
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        pytest.param(kind, mode, marks=() if (kind, mode) in CORE else pytest.mark.slow)
        for kind in KINDS
        for mode in EVERY_MODE
    ],
)
def test_runs_are_those_of_one_device(kind: str, mode: str) -> None:
    sharded = shard(graph_of(), parts_of(4, "hash"), make_mesh(4), **mode_options(mode))
    expected, found = on_one_device(kind), run(kind, sharded)
    for name, value in expected.items():
        assert relative_error(found[name], value) < TOLERANCE, name


def relabelled(graph: Graph, order: np.ndarray) -> Graph:
    """The graph whose node `order[i]` was node i; edges stay in their order."""
    back = np.argsort(order)
    of_nodes = ("nodes", "labels", "train_mask", "val_mask", "test_mask")
    arrays = {name: np.asarray(getattr(graph, name))[back] for name in of_nodes}
    ends = {"senders": order[graph.senders], "receivers": order[graph.receivers]}
    return graph.replace(**arrays, **ends)


@pytest.mark.expensive
@pytest.mark.law(3)
@pytest.mark.parametrize("kind", ["GCN", "GAT", "PNA"])
def test_relabelled_nodes_permute_outputs_and_change_nothing_else(kind: str) -> None:
    graph = graph_of(weights=kind == "GCN")
    order = np.random.default_rng(4).permutation(graph.num_nodes).astype(np.int32)
    options = {"delta": 1.3} if kind == "PNA" else {}
    model = getattr(nn, kind)(WIDE, HIDDEN, NUM_CLASSES, norm="batch", rngs=nnx.Rngs(0), **options)
    found = []
    for each in (graph, relabelled(graph, order)):
        sharded = shard(each, parts_of(3, "hash"), make_mesh(3))
        found.append(
            [
                np.asarray(train.predict(model, sharded)),
                *jax.tree.leaves(train.loss_and_grad(model, sharded, train=True)),
            ]
        )
    found[1][0] = found[1][0][order]
    for expected, same in zip(*found, strict=True):
        assert relative_error(same, expected) < TOLERANCE
