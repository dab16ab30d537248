"""Functions that stream, runs that are resumed, and what cannot stream."""

from __future__ import annotations

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
from jaxgraph.analysis import compilations
from jaxgraph.parallel import ShardedGraph, make_mesh, shard
from jaxgraph.partition import partition
from tests.strategies import NUM_CLASSES, NUM_FEATURES
from tests.tolerance import relative_error
from tests.training import HIDDEN, crooked_graph

TOLERANCE = 2e-5


def streamed(parts: int, folder: Path | None = None) -> ShardedGraph:
    graph = crooked_graph()
    chosen = partition(graph, parts, method="hash", seed=0)
    return shard(graph, chosen, make_mesh(1), mode="stream", folder=folder)


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


@pytest.mark.slow
def test_a_run_continues_from_a_checkpoint(tmp_path: Path) -> None:
    sharded = streamed(3)

    def run(epochs: int, folder: Path) -> nnx.State:
        sizes = (NUM_FEATURES, HIDDEN, NUM_CLASSES)
        model = jg.nn.GCN(*sizes, norm="batch", dropout=0.4, rngs=nnx.Rngs(0))
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


def _passed_by(shard: Any, x: Any, first: Any, last: Any) -> Any:
    """What is aggregated first is read in every stage after it."""
    y = jg.parallel.propagate(shard, lambda s, r, e: s, jnp.tanh(x @ first))
    z = jg.parallel.propagate(shard, lambda s, r, e: s * jnp.sin(r), jnp.tanh(y), y)
    return (jg.parallel.propagate(shard, lambda s, r, e: s, y * z) + y) @ last


def _all_alike(shard: Any, x: Any, first: Any, last: Any) -> Any:
    return jnp.broadcast_to(last[0], (shard.num_rows, NUM_CLASSES))


@pytest.mark.expensive
@pytest.mark.parametrize(
    "function",
    [_summed_twice, _complex, _half_used, _shared_senders, _passed_by, _all_alike],
)
def test_functions_of_a_shard(function: Any, tmp_path: Path) -> None:
    check_model(Called(function), streamed(3, tmp_path), shard(crooked_graph(), None, make_mesh(1)))
    assert not list(tmp_path.iterdir())


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


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 3])
def test_no_epoch_compiles(devices: int) -> None:
    """Compiling takes memory that nobody counted."""
    graph = crooked_graph()
    chosen = partition(graph, 3, method="hash", seed=0)
    sharded = shard(graph, chosen, make_mesh(devices), mode="stream")
    sizes = (NUM_FEATURES, HIDDEN, NUM_CLASSES)
    model = jg.nn.GCN(*sizes, norm="batch", dropout=0.4, rngs=nnx.Rngs(0))
    with compilations() as compiled:
        jg.train.fit(
            *(model, sharded, optax.adam(1e-2)),
            epochs=2,
            aggregate_once=False,
            on_compile=lambda _: compiled.clear(),
        )
    assert not compiled
