"""One step: its gradient against a dense reference, its compilation with and without data."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxgraph import Graph
from jaxgraph.analysis import traffic
from jaxgraph.parallel import make_mesh, place
from jaxgraph.parallel.placement import AbstractSource
from jaxgraph.train import compile_train_step, initial_state, loss_and_grad
from jaxgraph.train.objective import split_model
from tests.tolerance import assert_close
from tests.train.small_model import (
    SmallNet,
    TableNet,
    memory_of,
    on_devices,
    small_graph,
)


def mean_of_neighbours(graph: Graph, self_loops: bool) -> np.ndarray:
    """Dense float64 [num_nodes, num_nodes]."""
    adjacency = np.zeros((graph.num_nodes, graph.num_nodes))
    np.add.at(adjacency, (graph.receivers, graph.senders), 1)
    if self_loops:
        adjacency += np.diag(np.diag(adjacency) == 0)
    return adjacency / np.maximum(adjacency.sum(1, keepdims=True), 1)


def dense_loss(graph: Graph, params: Any) -> jax.Array:
    """SmallNet in inference and the mean cross entropy, on the dense adjacency."""
    assert graph.nodes is not None and graph.labels is not None and graph.train_mask is not None
    h = jnp.tanh(graph.nodes @ params["first"]["kernel"][...])
    h = jnp.asarray(mean_of_neighbours(graph, True), jnp.float32) @ h
    logits = h @ params["second"]["kernel"][...] + params["second"]["bias"][...]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(graph.labels))
    return losses[np.flatnonzero(graph.train_mask)].mean()


@pytest.mark.expensive
@pytest.mark.parametrize(("parts", "mode"), [(1, "sar"), (3, "domain"), (4, "sar"), (8, "sar")])
def test_loss_and_gradient_are_those_of_the_dense_graph(parts: int, mode: str) -> None:
    graph, model = small_graph(), SmallNet()
    params = split_model(model)[1]
    expected_loss, expected = jax.value_and_grad(lambda p: dense_loss(graph, p))(params)
    loss, grads = loss_and_grad(model, on_devices(graph, parts, mode))
    assert_close(loss, expected_loss, reduction_length=graph.num_nodes)
    assert jax.tree.structure(grads) == jax.tree.structure(params)
    for name, (own, reference) in enumerate(
        zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True)
    ):
        assert_close(own, reference, reduction_length=graph.num_nodes, name=str(name))


def test_gradient_of_rows_of_nodes_is_in_the_graphs_order() -> None:
    graph = small_graph()
    assert graph.labels is not None and graph.train_mask is not None
    model = TableNet(graph.num_nodes)
    mix = np.eye(graph.num_nodes) + mean_of_neighbours(graph, False)
    table = np.asarray(model.table[...], np.float64)

    logits = mix @ table
    powers = np.exp(logits - logits.max(1, keepdims=True))
    softmax = powers / powers.sum(1, keepdims=True)
    residual = (softmax - np.eye(3)[graph.labels]) * graph.train_mask[:, None]
    expected = mix.T @ residual / graph.train_mask.sum()
    for parts in (1, 4):
        _, grads = loss_and_grad(model, on_devices(graph, parts))
        assert_close(grads["table"][...], expected, reduction_length=graph.num_nodes)


def test_abstract_and_real_graphs_compile_to_the_same_program() -> None:
    model, optimizer = SmallNet(dropout=0.5), optax.adam(0.1)
    sharded = on_devices(small_graph(), 4)
    abstract = place(AbstractSource(sharded.manifest), make_mesh(4))
    real = compile_train_step(model, sharded, optimizer)
    planned = compile_train_step(model, abstract, optimizer)
    memory, expected = memory_of(planned), memory_of(real)
    for name in ("temp", "argument", "output", "alias"):
        field = f"{name}_size_in_bytes"
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": None, "train_mask": None, "val_mask": None, "test_mask": None}, "no labels"),
        ({"train_mask": None}, "no train_mask, so there is nothing to learn from"),
    ],
)
def test_a_graph_that_cannot_be_learned_from_is_refused(
    change: dict[str, Any], message: str
) -> None:
    sharded = on_devices(small_graph(**change), 2)
    with pytest.raises(ValueError, match=message):
        compile_train_step(SmallNet(), sharded, optax.sgd(0.1))
    with pytest.raises(ValueError, match=message):
        loss_and_grad(SmallNet(), sharded)


def test_too_few_outputs_are_refused_before_compilation() -> None:
    with pytest.raises(ValueError, match="the model has 2 outputs, but the graph has 3 classes"):
        compile_train_step(SmallNet(outputs=2), on_devices(small_graph(), 2), optax.sgd(0.1))
