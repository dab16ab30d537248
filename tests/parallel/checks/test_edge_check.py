"""Functions of a shard's edge slots: what would count slots of padding is refused."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgraph as jg
from tests.strategies import random_edges

NODES, EDGES = 29, 110
PARTS = pytest.mark.parametrize("parts", [1, 3])


def graph_of(seed: int = 1) -> jg.Graph:
    rng = np.random.default_rng(seed)
    graph = jg.Graph(
        *random_edges(NODES, EDGES, seed=seed),
        NODES,
        nodes=rng.normal(size=(NODES, 3)).astype(np.float32),
        edge_weight=rng.random(EDGES).astype(np.float32),
    )
    return graph.with_edges(length=np.ones(EDGES, np.float32))


def placed(graph: jg.Graph, parts: int, mode: str = "sar", devices: int | None = None) -> Any:
    partition = jg.partition.partition(graph, parts, "hash")
    return jg.parallel.shard(graph, partition, jg.parallel.make_mesh(devices or parts), mode)


@functools.cache
def sharded(parts: int) -> Any:
    return placed(graph_of(), parts)


def scores(b, s):
    """[slots], with b in slots of padding."""
    return jg.parallel.edge_messages(s, lambda i, j, e: i.sum(1) * j.sum(1), s.nodes, s.nodes) + b


def loss(b, s):
    return jnp.logaddexp(0, scores(b, s))


RIGHT = {
    "masked": lambda b, s: s.sum(jnp.where(s.edge_mask, loss(b, s), 0).sum()) / EDGES,
    "where": lambda b, s: s.sum(jnp.sum(loss(b, s), where=s.edge_mask)) / EDGES,
    "times": lambda b, s: s.sum(jnp.sum(loss(b, s) * s.edge_mask)) / EDGES,
    "counted": lambda b, s: jnp.divide(
        *s.sum((jnp.where(s.edge_mask, loss(b, s), 0).sum(), jnp.sum(s.edge_mask)))
    ),
    "sent": lambda b, s: (
        s.sum(s.mask_rows(jg.parallel.propagate(s, lambda i, j, e: e, edge=loss(b, s))).sum())
        / EDGES
    ),
}
WRONG = {
    "sum": (lambda b, s: s.sum(loss(b, s).sum()), "edge_mask"),
    "mean": (lambda b, s: s.sum(s.edge_data["length"].mean()), "edge_mask"),
    "maximum": (lambda b, s: jax.lax.pmax(s.edge_weight.max(), s.axis), "edge_mask"),
    "share": (
        lambda b, s: s.sum(jnp.where(s.edge_mask, loss(b, s), 0).sum() ** 2),
        "Complete it over the devices",
    ),
    "callback": (
        lambda b, s: s.sum(
            jnp.where(
                s.edge_mask,
                jax.pure_callback(lambda w: w - w.mean(), s.edge_weight, s.edge_weight),
                0 * s.edge_weight,
            ).sum()
        ),
        "calls Python",
    ),
}


def expected(b: float) -> tuple[float, float]:
    """The mean of log(1 + exp(z + b)) over the edges, and its derivative by b."""
    graph = graph_of()
    assert isinstance(graph.nodes, np.ndarray)
    total = graph.nodes.astype(np.float64).sum(1)
    z = total[graph.senders] * total[graph.receivers] + b
    return float(np.logaddexp(0, z).mean()), float((1 / (1 + np.exp(-z))).mean())


@pytest.mark.expensive
@PARTS
@pytest.mark.parametrize("name", RIGHT)
def test_masked_slots_are_the_edges(name, parts):
    run = jax.value_and_grad(jg.parallel.spmd(RIGHT[name]))
    np.testing.assert_allclose(run(0.3, sharded(parts)), expected(0.3), rtol=1e-5)


@PARTS
@pytest.mark.parametrize("name", WRONG)
def test_slots_of_padding_are_not_counted(name, parts):
    function, text = WRONG[name]
    with pytest.raises(ValueError, match=text):
        jg.parallel.spmd(function)(0.3, sharded(parts))


@PARTS
def test_arrays_of_two_graphs_are_not_combined(parts):
    """Each orders its rows by its own edges."""
    one, other = sharded(parts), placed(graph_of(2), parts)

    def sent(s, t):
        return jg.parallel.propagate(s, lambda i, j, e: i, t.nodes)

    functions = {
        "sum": lambda s, t: s.sum(s.mask_rows(s.nodes + t.nodes).sum()),
        "rows": lambda s, t: s.sum(s.mask_rows(sent(s, t)).sum()),
        "edges": lambda s, t: s.sum(
            jg.parallel.propagate(
                s, lambda i, j, e: i * e[:, None], s.nodes, edge=t.edge_weight
            ).sum()
        ),
    }
    for function in functions.values():
        # Their numbers of slots may differ, which is refused before.
        with pytest.raises(ValueError, match=r"two sharded graphs|edge slot of the shard"):
            jg.parallel.spmd(function)(one, other)


class Scores(jg.train.Task):
    """The mean over all edges of log(1 + exp(-<y_j, y_i>)), or over all slots."""

    def __init__(self, masked: bool) -> None:
        self.masked = masked

    def sums(self, outputs, shard, split):
        z = jg.parallel.edge_messages(
            shard, lambda i, j, e: (i * j).sum(1), jnp.asarray(outputs), jnp.asarray(outputs)
        )
        each = jax.nn.softplus(-z)
        if self.masked:
            each = jnp.where(shard.edge_mask, each, 0)
        return {"loss": each.sum(), "count": jnp.sum(shard.edge_mask)}


def test_a_task_over_edges_does_not_depend_on_parts():
    graph = graph_of().replace(
        edge_weight=None, train_mask=np.ones(NODES, bool), labels=np.zeros(NODES, np.int32)
    )
    model = jg.nn.Linear(3, 3, rngs=nnx.Rngs(0))
    rows = np.asarray(model(graph, graph.nodes), np.float64)
    z = (rows[graph.senders] * rows[graph.receivers]).sum(1)
    for where in (graph, placed(graph, 1), placed(graph, 3)):
        found = jg.train.evaluate(model, where, task=Scores(masked=True))["train"]["loss"]
        np.testing.assert_allclose(found, np.logaddexp(0, -z).mean(), rtol=1e-5)
        with pytest.raises(ValueError, match="edge_mask"):
            jg.train.evaluate(model, where, task=Scores(masked=False))
