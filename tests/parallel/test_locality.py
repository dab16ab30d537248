"""Another order of rows: the same loss, gradients, dropout and outputs, from one program."""

from typing import NamedTuple

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import jaxgraph as jg
from jaxgraph.ops.cpu.library import missing
from jaxgraph.parallel import ShardedGraph, make_mesh, shard
from tests.strategies import NUM_CLASSES, NUM_FEATURES
from tests.tolerance import assert_close
from tests.training import (
    crooked_graph,
)

TOLERANCE = 2e-5


class Case(NamedTuple):
    order: str
    num_parts: int
    mode: str
    implementation: str


CASES = (
    Case("rcm", 1, "sar", "cpu"),
    Case("degree", 1, "domain", "xla"),
    Case("degree", 3, "sar", "cpu"),
    Case("rcm", 3, "sar", "xla"),
    Case("rcm", 3, "domain", "cpu"),
    Case("rcm", 3, "prefetch", "cpu"),
)


def ordered(case: Case, order: str | None, edge_weight: bool = False) -> ShardedGraph:
    """The crooked graph with its nodes in an order."""
    if case.implementation == "cpu" and missing():
        pytest.skip(missing())
    graph = crooked_graph(edge_weight=edge_weight)
    parts = jg.partition.partition(graph, case.num_parts, "hash", order=order)
    return shard(
        graph,
        parts,
        make_mesh(case.num_parts),
        "domain" if case.mode == "domain" else "sar",
        prefetch=case.mode == "prefetch",
        implementation=case.implementation,
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_one_program_serves_every_order_and_outputs_keep_the_order_of_the_graph(case: Case) -> None:
    given, moved = ordered(case, None), ordered(case, case.order)
    assert np.any(np.asarray(given.shards.node_ids) != np.asarray(moved.shards.node_ids))
    assert jax.tree.structure(given) == jax.tree.structure(moved)
    model = jg.nn.GCN(NUM_FEATURES, 8, NUM_CLASSES, dropout=0.5, rngs=nnx.Rngs(0))
    step = jg.train.compile_train_step(model, given, optax.adam(1e-2))
    losses = []
    for sharded in (given, moved):
        state = jg.train.initial_state(model, sharded, optax.adam(1e-2))
        state, _ = step(state, sharded, jax.random.key(1))
        losses.append(step(state, sharded, jax.random.key(2))[1])
    assert_close(losses[1], losses[0], reduction_length=100)
    outputs = [jg.train.predict(model, sharded) for sharded in (given, moved)]
    assert_close(outputs[1], outputs[0], reduction_length=100)
