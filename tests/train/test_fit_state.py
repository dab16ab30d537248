"""Continued runs: 6 + 6 epochs equal 12."""

import dataclasses
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph.parallel import ShardedGraph
from jaxgraph.train import (
    EpochRecord,
    FitState,
    History,
    TrainingInterrupted,
    abstract_fit_state,
    fit,
)
from tests.tolerance import assert_close
from tests.train.small_model import RowsNet, SmallNet, on_devices, small_graph

NODES, SEED = 60, 3
ADAM = optax.adam(optax.cosine_decay_schedule(0.05, 12))
WILD = optax.adam(0.3)
"""Learning rate with steps so large that the validation loss rises again."""


@pytest.fixture(scope="module")
def sharded() -> ShardedGraph:
    return on_devices(small_graph(), 1)


@pytest.fixture(scope="module")
def whole(sharded: ShardedGraph) -> tuple[History, nnx.Module]:
    """A run of 12 epochs, and its model."""
    model = RowsNet()
    return fit(model, sharded, ADAM, epochs=12, seed=SEED), model


@pytest.fixture(scope="module")
def half(sharded: ShardedGraph) -> FitState:
    """The state after 6 epochs of that run."""
    state = fit(RowsNet(), sharded, ADAM, epochs=6, seed=SEED).state
    assert state is not None
    return state


def assert_equal(left: Any, right: Any) -> None:
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, left, right)


def untimed(records: tuple[EpochRecord, ...]) -> list[EpochRecord]:
    return [dataclasses.replace(record, seconds=0.0) for record in records]


def test_six_and_six_epochs_are_twelve(
    sharded: ShardedGraph, half: FitState, whole: tuple[History, nnx.Module]
) -> None:
    """Through pickle, and into a model of other parameters."""
    expected, trained = whole
    model = RowsNet(seed=9)
    history = fit(model, sharded, ADAM, epochs=6, state=pickle.loads(pickle.dumps(half)))
    assert [record.epoch for record in history.records] == [7, 8, 9, 10, 11, 12]
    assert untimed(history.records) == untimed(expected.records[6:])
    assert history.best_epoch == expected.best_epoch
    assert_equal(history.state, expected.state)
    assert_equal(nnx.state(model), nnx.state(trained))


def test_a_run_continues_on_another_number_of_devices(
    half: FitState, whole: tuple[History, nnx.Module]
) -> None:
    expected, _ = whole
    history = fit(RowsNet(), on_devices(small_graph(), 2), ADAM, epochs=6, state=half, seed=SEED)
    assert_close(history.loss, expected.loss[6:], reduction_length=NODES)
    assert_close(history.val_loss, expected.val_loss[6:], reduction_length=NODES)
    assert history.state is not None and expected.state is not None
    assert jax.tree.structure(history.state) == jax.tree.structure(expected.state)
    pairs = zip(*(jax.tree.leaves(h.state) for h in (history, expected)), strict=True)
    for found, of_one in pairs:
        assert found.shape == of_one.shape and isinstance(found, np.ndarray)
        assert_close(found, of_one, reduction_length=NODES)


def test_patience_counts_the_epochs_before(sharded: ShardedGraph) -> None:
    expected_model, model = SmallNet(), SmallNet()
    expected = fit(expected_model, sharded, WILD, epochs=40, patience=3)
    best = expected.best_epoch
    assert len(expected.records) == best + 3 < 40
    # Interrupted in the middle of the epochs without a better loss, then again once it has ended.
    first = fit(model, sharded, WILD, epochs=best + 2, patience=3)
    second = fit(model, sharded, WILD, epochs=40, patience=3, state=first.state)
    third = fit(model, sharded, WILD, epochs=40, patience=3, state=second.state)
    assert [record.epoch for record in second.records] == [best + 3]
    assert third.records == () and third.to_dict()["best_epoch"] == best
    assert first.best_epoch == second.best_epoch == third.best_epoch == best
    assert_equal(third.state, expected.state)
    assert_equal(nnx.state(model), nnx.state(expected_model))


# ------------------------------------------------------------------ exceptions


def exploding(at: int) -> optax.GradientTransformation:
    """Steps that become NaN at some point."""

    def factor(count: Any) -> jax.Array:
        return jnp.where(count < at, 0.02, jnp.nan)

    return optax.chain(optax.scale_by_adam(), optax.scale_by_learning_rate(factor))


def test_an_interruption_during_an_epoch_costs_that_epoch_alone(
    sharded: ShardedGraph, half: FitState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any point, the state is that of the last record."""
    device_get, calls = jax.device_get, []

    def interrupted(tree: Any) -> Any:
        if type(tree).__name__ == "Outcome":
            calls.append(tree)
            if len(calls) == 2:
                raise KeyboardInterrupt
        return device_get(tree)

    monkeypatch.setattr(jax, "device_get", interrupted)
    with pytest.raises(TrainingInterrupted) as caught:
        fit(RowsNet(), sharded, ADAM, epochs=4, state=half)
    monkeypatch.undo()
    assert [record.epoch for record in caught.value.history.records] == [7]
    assert_equal(
        caught.value.history.state, fit(RowsNet(), sharded, ADAM, epochs=1, state=half).state
    )


# ------------------------------------------------------------------ errors


def fit_with(state: Any, sharded: ShardedGraph, **changes: Any) -> None:
    arguments: dict[str, Any] = {"model": RowsNet(), "optimizer": ADAM, "epochs": 1} | changes
    model, optimizer = arguments.pop("model"), arguments.pop("optimizer")
    before = jax.tree.map(np.array, nnx.state(model))
    try:
        fit(model, sharded, optimizer, state=state, **arguments)
    finally:
        assert_equal(before, nnx.state(model))


class WiderNet(RowsNet):
    def __init__(self) -> None:
        super().__init__()
        self.other = nnx.Param(jnp.zeros(2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": SmallNet(outputs=3)}, r"state\.params\['rows'\].* have none there"),
        ({"model": WiderNet()}, r"state\.params\['other'\].* is missing"),
        ({"optimizer": optax.sgd(0.1)}, r"state\.optimizer_state.* have none there"),
        ({"optimizer": optax.adamw(0.1, mu_dtype="bfloat16")}, r"mu.*bfloat16"),
        ({"seed": SEED + 1}, "a run of another seed; leave seed out"),
    ],
)
def test_a_state_of_another_run_is_refused(
    half: FitState, sharded: ShardedGraph, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fit_with(half, sharded, **changes)


def test_a_state_of_a_graph_of_another_size_is_refused(half: FitState) -> None:
    other = on_devices(small_graph(61), 1)
    with pytest.raises(ValueError, match=r"float32\[60, 3\].*float32\[61, 3\].*the same graph"):
        fit_with(half, other, model=RowsNet(61))
    with pytest.raises(ValueError, match="60 rows for 61 nodes"):
        fit_with(half, other)


def test_what_is_no_state_is_refused(half: FitState, sharded: ShardedGraph) -> None:
    with pytest.raises(ValueError, match=r"state\.epoch is int\[\], and they have int32\[\]"):
        fit_with(dataclasses.replace(half, epoch=6), sharded)


# ------------------------------------------------------------------ as data


def test_the_abstract_state_describes_a_state(half: FitState) -> None:
    """So that a library of checkpoints can read what it has written."""
    abstract = abstract_fit_state(RowsNet(), ADAM)
    assert jax.tree.structure(abstract) == jax.tree.structure(half)
    for described, leaf in zip(*map(jax.tree.leaves, (abstract, half)), strict=True):
        assert (described.shape, described.dtype) == (leaf.shape, leaf.dtype)


def test_a_state_shares_no_memory_with_the_model(sharded: ShardedGraph) -> None:
    model = RowsNet()
    state = fit(model, sharded, ADAM, epochs=1).state
    before = jax.tree.map(np.array, state)
    double = jax.jit(lambda tree: jax.tree.map(lambda x: x + x, tree), donate_argnums=0)
    jax.block_until_ready(double(nnx.state(model)))
    assert_equal(state, before)
