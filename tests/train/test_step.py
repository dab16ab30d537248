"""One step: its compilation with and without data, and its state."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph.analysis import traffic
from jaxgraph.nn import GCN
from jaxgraph.parallel import ShardedGraph, make_mesh, place
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.train import (
    compile_inference,
    compile_train_step,
    initial_state,
    loss_and_grad,
)
from jaxgraph.train.aggregates import aggregate_once
from jaxgraph.train.fit_state import abstract_state
from tests.tolerance import assert_close
from tests.train.small_model import (
    CLASSES,
    FEATURES,
    SmallNet,
    TableNet,
    memory_of,
    on_devices,
    small_graph,
)


def test_gradient_of_rows_of_nodes_is_in_the_graphs_order() -> None:
    graph, model = small_graph(), TableNet(60)
    alone, apart = (loss_and_grad(model, on_devices(graph, parts))[1] for parts in (1, 4))
    assert_close(apart["table"][...], alone["table"][...], reduction_length=graph.num_nodes)


ADAM, NARROW = optax.adam(0.1), GCN(FEATURES, 4, CLASSES, rngs=nnx.Rngs(0))
COMPILED: dict[str, Callable[[ShardedGraph], jax.stages.Compiled]] = {
    "step": lambda graph: compile_train_step(SmallNet(dropout=0.5), graph, ADAM),
    "step with aggregates": lambda graph: compile_train_step(
        NARROW, aggregate_once(NARROW, graph), ADAM
    ),
    "inference": lambda graph: compile_inference(SmallNet(), graph),
}


@pytest.mark.expensive
@pytest.mark.parametrize("name", COMPILED)
def test_abstract_and_real_graphs_compile_to_the_same_program(name: str) -> None:
    sharded = on_devices(small_graph(), 4)
    abstract = place(AbstractSource(sharded.manifest), make_mesh(4))
    real, planned = (COMPILED[name](graph) for graph in (sharded, abstract))
    memory, expected = memory_of(planned), memory_of(real)
    for size in ("temp", "argument", "output", "alias"):
        field = f"{size}_size_in_bytes"
        assert getattr(memory, field) == getattr(expected, field), field
    assert traffic(planned) == traffic(real)
    assert expected.temp_size_in_bytes > 0


def test_a_compiled_step_runs_and_takes_over_the_memory_of_its_state() -> None:
    graph, model, optimizer = small_graph(), SmallNet(), optax.adam(0.05)
    sharded = on_devices(graph, 4)
    compiled = compile_train_step(model, sharded, optimizer)
    state = initial_state(model, sharded, optimizer)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert memory_of(compiled).alias_size_in_bytes == size
    expected, _ = loss_and_grad(model, sharded, train=True)
    losses = []
    for _ in range(20):
        state, loss = compiled(state, sharded, jax.random.key(0))
        losses.append(float(loss))
    assert losses[0] == pytest.approx(float(expected), rel=1e-6)
    assert losses[-1] < 0.8 * losses[0]
    assert np.isfinite(np.asarray(model.first.kernel[...])).all()


def test_a_step_hands_the_loss_to_optimizers_that_look_at_it() -> None:
    plateau = optax.contrib.reduce_on_plateau(patience=1)
    optimizer = optax.chain(optax.adam(0.05), plateau)
    model, sharded = SmallNet(), on_devices(small_graph(), 2)
    compiled = compile_train_step(model, sharded, optimizer)
    state, loss = compiled(initial_state(model, sharded, optimizer), sharded, jax.random.key(0))
    assert float(state.optimizer_state[1].best_value) == pytest.approx(float(loss))


OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "adam": optax.adam(0.1),
    "adafactor": optax.adafactor(0.1, min_dim_size_to_factor=2),
    "clipped": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1)),
    "lookahead": optax.contrib.schedule_free_adamw(0.1),
}


def described(tree: Any) -> list[tuple[Any, ...]]:
    return [(leaf.shape, leaf.dtype, leaf.sharding) for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["replicated", "rows"])
def test_the_abstract_state_describes_the_real_one(kind: str, name: str) -> None:
    model = SmallNet() if kind == "replicated" else TableNet(60)
    sharded = on_devices(small_graph(), 4)
    state = initial_state(model, sharded, OPTIMIZERS[name])
    abstract = abstract_state(model, OPTIMIZERS[name], sharded)
    assert jax.tree.structure(state) == jax.tree.structure(abstract)
    assert described(state) == described(abstract)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
