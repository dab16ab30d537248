"""A streamed graph: the same loss, gradients, statistics and outputs as on one device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxgraph as jg
from jaxgraph import train
from jaxgraph.parallel import ShardedGraph, make_mesh, shard
from jaxgraph.partition import partition
from tests.oracles.models import Model
from tests.strategies import NUM_CLASSES, NUM_FEATURES
from tests.tolerance import relative_error
from tests.training import (
    HIDDEN,
    SEED,
    Pass,
    by_layer,
    crooked_graph,
    gradient_errors,
    module_of,
    oracle_pass,
    random_params,
)

TOLERANCE = 2e-5
FURTHER_DEVICES = [
    pytest.param(parts, devices, marks=pytest.mark.full)
    for parts, devices in ((1, 1), (2, 1), (7, 1), (4, 4), (6, 3))
]
FURTHER = [pytest.param(parts, marks=pytest.mark.full) for parts in (1, 2, 7)]


def streamed(
    parts: int, folder: Path | None = None, devices: int = 1, **options: Any
) -> ShardedGraph:
    graph = crooked_graph(**{k: options.pop(k) for k in ("edge_weight", "edges") if k in options})
    chosen = partition(graph, parts, method="hash", seed=0)
    return shard(graph, chosen, make_mesh(devices), mode="stream", folder=folder, **options)


def small_models() -> dict[str, Any]:
    """Models of three layers with a smooth activation: sums that flip a sign would differ more."""
    of_all: dict[str, Any] = {"num_layers": 3, "activation": jnp.tanh}
    sizes = (NUM_FEATURES, HIDDEN, NUM_CLASSES)
    heads = {"num_heads": 2, "dropout": 0.4}
    return {
        "gcn": lambda r: jg.nn.GCN(*sizes, norm="batch", dropout=0.4, **of_all, rngs=r),
        "deep gcn": lambda r: jg.nn.DeepGCN(*sizes, norm="layer", **of_all, rngs=r),
        "sage": lambda r: jg.nn.GraphSAGE(*sizes, residual=True, **of_all, rngs=r),
        "sage max": lambda r: jg.nn.GraphSAGE(*sizes, reduce="max", **of_all, rngs=r),
        "gin": lambda r: jg.nn.GIN(*sizes, jumping="cat", dropout=0.4, **of_all, rngs=r),
        "gat": lambda r: jg.nn.GAT(*sizes, **heads, **of_all, rngs=r),
        "gatv2": lambda r: jg.nn.GATv2(*sizes, **heads, jumping="max", **of_all, rngs=r),
        "transformer": lambda r: jg.nn.Transformer(*sizes, **heads, **of_all, rngs=r),
        "appnp": lambda r: jg.nn.APPNP(*sizes, dropout=0.4, rngs=r),
        "gcnii": lambda r: jg.nn.GCNII(*sizes, num_layers=4, dropout=0.4, rngs=r),
        "pna": lambda r: jg.nn.PNA(*sizes, delta=1.5, **of_all, rngs=r),
        "ggcn": lambda r: jg.saga.GatedGCN(*sizes, **of_all, rngs=r),
        "commnet": lambda r: jg.saga.CommNet(*sizes, **of_all, rngs=r),
        "ggnn": lambda r: jg.saga.GGNN(*sizes, num_layers=2, rngs=r),
        "learned maximum": lambda r: LearnedMaximum(r),
        "shared rows": lambda r: SharedRows(r),
    }


class LearnedMaximum(nnx.Module):
    """max_j tanh(W x_j) r_i, of messages whose winner is found by its inputs."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.kernel = nnx.Param(rngs.normal((NUM_FEATURES, NUM_CLASSES)))

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
        kernel = self.kernel.get_value()
        message = lambda s, r, e: jnp.tanh(s @ kernel) * (1 + r[:, :1])  # noqa: E731
        return jg.parallel.propagate(shard, message, x, x, reduce="max")


class SharedRows(nnx.Module):
    """Aggregates ones, which all parts share, times a parameter, and counts nodes."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.kernel = nnx.Param(rngs.normal((NUM_FEATURES, NUM_CLASSES)))

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
        y = x @ self.kernel.get_value()
        ones = jnp.ones((shard.num_rows, 1)) * self.kernel.get_value()[0, 0]
        degree = jg.parallel.propagate(shard, lambda s, r, e: s, ones)
        return y * degree / shard.num_nodes


def check_model(made: Any, sharded: ShardedGraph, whole: ShardedGraph) -> None:
    loss, grads = train.loss_and_grad(made, sharded, seed=3, train=True)
    expected, of_one = train.loss_and_grad(made, whole, seed=3, train=True)
    assert relative_error(loss, expected) < TOLERANCE
    paths = nnx.to_flat_state(of_one)
    found = nnx.to_flat_state(grads)
    for (path, gradient), (_, other) in zip(paths, found, strict=True):
        error = relative_error(other.get_value(), gradient.get_value())
        assert error < TOLERANCE, path
    outputs = train.predict(made, sharded)
    assert relative_error(outputs, train.predict(made, whole)) < TOLERANCE


@pytest.mark.parametrize("model", small_models())
@pytest.mark.parametrize(("parts", "devices"), [(4, 1), (4, 2), *FURTHER_DEVICES])
def test_models_equal_one_device(model: str, parts: int, devices: int, tmp_path: Path) -> None:
    whole = shard(crooked_graph(), None, make_mesh(1))
    made = small_models()[model](nnx.Rngs(0))
    check_model(made, streamed(parts, tmp_path, devices), whole)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("conv", ["gcn", "gat", "sage"])
@pytest.mark.parametrize("parts", [3, *FURTHER])
@pytest.mark.parametrize("implementation", ["xla", pytest.param("cpu", marks=pytest.mark.full)])
def test_training_equals_the_oracle(conv: str, parts: int, implementation: str) -> None:
    weighted = conv != "gat"
    model = Model(conv, 2 if conv == "gat" else 1, norm="batch", dropout=0.4, activation="elu")
    params, graph = random_params(model, 3), crooked_graph(edge_weight=weighted)
    module = module_of(model, params)
    sharded = streamed(parts, edge_weight=weighted, implementation=implementation)
    loss, gradients = train.loss_and_grad(module, sharded, seed=SEED, train=True)
    nnx.update(module, gradients)
    found = Pass(float(loss), by_layer(module, nnx.Param), [])
    expected = replace(oracle_pass(model, params, graph), statistics=[])
    errors = gradient_errors(found, expected)
    assert max(errors.values()) < TOLERANCE, errors


def test_runs_are_those_of_one_device(tmp_path: Path) -> None:
    whole, other = shard(crooked_graph(), None, make_mesh(1)), streamed(4, tmp_path)
    histories = []
    for sharded in (whole, other):
        model = small_models()["gcn"](nnx.Rngs(0))
        history = train.fit(model, sharded, optax.adam(1e-2), epochs=4, aggregate_once=False)
        histories.append((history, train.evaluate(model, sharded)))
    (first, metrics), (second, of_parts) = histories
    for one, two in zip(first.records, second.records, strict=True):
        assert two.loss == pytest.approx(one.loss, rel=TOLERANCE)
        assert two.val_loss == pytest.approx(one.val_loss, rel=TOLERANCE)
    for split, values in metrics.items():
        assert of_parts[split] == pytest.approx(values, rel=TOLERANCE)


def test_a_run_continues_from_a_checkpoint(tmp_path: Path) -> None:
    sharded = streamed(3)

    def run(epochs: int, folder: Path) -> nnx.State:
        model = small_models()["gcn"](nnx.Rngs(0))
        checkpoint = train.Checkpoints(folder, every=1, resume=True)
        train.fit(model, sharded, optax.adam(1e-2), epochs=epochs, checkpoint=checkpoint)
        return nnx.state(model, nnx.Param)

    whole = run(4, tmp_path / "whole")
    run(2, tmp_path / "cut")
    for one, two in zip(
        jax.tree.leaves(whole), jax.tree.leaves(run(4, tmp_path / "cut")), strict=True
    ):
        np.testing.assert_array_equal(one, two)


class Called(nnx.Module):
    """A model that is a function of two parameters."""

    def __init__(self, function: Any, width: int = HIDDEN) -> None:
        rngs = nnx.Rngs(0)
        self.first = nnx.Param(rngs.normal((NUM_FEATURES, width)) * 0.5)
        self.last = nnx.Param(rngs.normal((width, NUM_CLASSES)) * 0.5)
        self.function = function

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
        return self.function(shard, x, self.first.get_value(), self.last.get_value())


def _centered(shard: Any, x: Any, first: Any, last: Any) -> Any:
    y = jnp.tanh(x @ first)
    y = y - jnp.mean(y, 1, keepdims=True)
    return jg.parallel.propagate(shard, lambda s, r, e: s, y) @ last


def _summed_twice(shard: Any, x: Any, first: Any, last: Any) -> Any:
    y = jnp.tanh(x @ first)
    total = jnp.sum(shard.mask_rows(y), 0) * 0.01
    return (y * jnp.tanh(shard.sum(total)) + jnp.sin(shard.sum(total)) * y) @ last


def _complex(shard: Any, x: Any, first: Any, last: Any) -> Any:
    z = jnp.fft.fft(x @ first)
    y = jg.parallel.propagate(shard, lambda s, r, e: s, jnp.real(z) + jnp.imag(z))
    return (y * 0.3 + jnp.abs(z)) @ last


def _half_used(shard: Any, x: Any, first: Any, last: Any) -> Any:
    message = lambda s, r, e: (s, jnp.sin(s) * 2)  # noqa: E731
    return jg.parallel.propagate(shard, message, jnp.tanh(x @ first))[0] @ last


def _shared_senders(shard: Any, x: Any, first: Any, last: Any) -> Any:
    same = jnp.broadcast_to(last[:, 0], (shard.num_rows, HIDDEN))
    message = lambda s, r, e: s * r  # noqa: E731
    return jg.parallel.propagate(shard, message, same, jnp.tanh(x @ first)) @ last


def _all_alike(shard: Any, x: Any, first: Any, last: Any) -> Any:
    return jnp.broadcast_to(last[0], (shard.num_rows, NUM_CLASSES))


@pytest.mark.parametrize(
    "function", [_summed_twice, _complex, _half_used, _shared_senders, _all_alike]
)
def test_functions_of_a_shard(function: Any, tmp_path: Path) -> None:
    check_model(Called(function), streamed(3, tmp_path), shard(crooked_graph(), None, make_mesh(1)))


def test_models_of_other_widths_have_programs_of_their_own() -> None:
    sharded, whole = streamed(2), shard(crooked_graph(), None, make_mesh(1))
    for width in (3, 7):
        check_model(Called(_centered, width), sharded, whole)


@pytest.mark.parametrize("kind", ["derivative", "map", "gradient"])
def test_what_the_host_cannot_run(kind: str) -> None:
    @jax.custom_vjp
    def reversed_gradient(shard: Any, y: Any) -> Any:
        return jg.parallel.propagate(shard, lambda s, r, e: s, y)

    reversed_gradient.defvjp(
        lambda shard, y: (reversed_gradient(shard, y), None), lambda _, g: (None, -g)
    )

    def function(shard: Any, x: Any, first: Any, last: Any) -> Any:
        y = x @ first
        if kind == "derivative":
            return reversed_gradient(shard, y) @ last
        if kind == "map":
            mapped = jax.vmap(lambda a: shard.sum(jnp.sum(shard.mask_rows(a[:, None]))), 1)
            return y * mapped(y) @ last
        energy = lambda y: shard.sum(jnp.sum(shard.mask_rows(y) ** 2))  # noqa: E731
        return jax.grad(energy)(y) @ last

    with pytest.raises(
        ValueError, match=r"mode='stream' (runs|differentiates)|which mode='stream'"
    ):
        train.predict(Called(function), streamed(2))
