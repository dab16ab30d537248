"""The training loop: curves, the model afterwards, and the ways to end."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph.analysis import traffic
from jaxgraph.train import (
    DivergenceError,
    EpochRecord,
    TrainingInterrupted,
    evaluate,
    fit,
    loss_and_grad,
)
from tests.times import compilations
from tests.tolerance import assert_close
from tests.train.small_model import (
    CLASSES,
    SmallNet,
    on_devices,
    on_devices_alike,
    small_graph,
)
from tests.train.test_fit_state import exploding

ADAM = optax.adam(0.02)


def parameters(model: nnx.Module) -> list[np.ndarray]:
    return [np.asarray(leaf).copy() for leaf in jax.tree.leaves(nnx.state(model))]


def assert_same(left: list[np.ndarray], right: list[np.ndarray]) -> None:
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one, other)


# ------------------------------------------------------------------ curves


def test_the_same_seed_repeats_and_another_epoch_or_seed_does_not() -> None:
    sharded, frozen, model = on_devices(small_graph(), 2), optax.sgd(0.0), SmallNet(dropout=0.5)
    runs = [fit(model, sharded, frozen, epochs=3, seed=seed).loss for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert len({*runs[0], *runs[2]}) == 6


def test_the_loss_is_that_of_the_step_and_the_metrics_are_those_after_it() -> None:
    sharded = on_devices(small_graph(), 2)
    model = SmallNet()
    before, _ = loss_and_grad(model, sharded, train=True)
    history = fit(model, sharded, ADAM, epochs=1)
    assert history.loss == pytest.approx([float(before)], rel=1e-6)
    after = evaluate(model, sharded)
    assert history.val_loss == pytest.approx([after["val"]["loss"]], rel=1e-6)
    assert history.records[0].metrics["test"] == pytest.approx(after["test"], rel=1e-6)


# ------------------------------------------------------------------ the model afterwards


def test_the_best_parameters_are_left_in_the_model() -> None:
    # Steps so large that the validation loss rises again.
    sharded, wild = on_devices(small_graph(), 2), optax.adam(0.3)
    model = SmallNet()
    history = fit(model, sharded, wild, epochs=12)
    best = int(np.argmin(history.val_loss))
    assert history.best_epoch == best + 1 < 12
    left = evaluate(model, sharded)["val"]["loss"]
    assert left == pytest.approx(min(history.val_loss), rel=1e-6)

    shorter = SmallNet()
    fit(shorter, sharded, wild, epochs=best + 1)
    assert_same(parameters(model), parameters(shorter))


def test_the_state_holds_the_last_parameters() -> None:
    sharded, wild = on_devices(small_graph(), 2), optax.adam(0.3)
    model = SmallNet()
    history = fit(model, sharded, wild, epochs=12)
    assert history.state is not None
    nnx.update(model, history.state.params, history.state.statistics)
    assert history.best_epoch == int(np.argmin(history.val_loss)) + 1
    left = evaluate(model, sharded)["val"]["loss"]
    assert left == pytest.approx(history.val_loss[-1], rel=1e-6)
    assert left > min(history.val_loss)


def test_without_validation_nodes_the_last_is_the_best() -> None:
    sharded = on_devices(small_graph(val_mask=None), 2)
    history = fit(SmallNet(), sharded, ADAM, epochs=4)
    assert history.best_epoch == 4
    assert np.isnan(history.val_loss).all() and np.isnan(history.val_accuracy).all()
    assert set(history.metrics) == {"train", "test"}


# ------------------------------------------------------------------ ways to end


def test_a_true_result_of_a_callback_ends_training() -> None:
    sharded, model = on_devices(small_graph(), 2), SmallNet()
    history = fit(model, sharded, ADAM, epochs=9, on_epoch=lambda record: record.epoch == 3)
    assert [record.epoch for record in history.records] == [1, 2, 3]
    expected = SmallNet()
    fit(expected, sharded, ADAM, epochs=3)
    assert_same(parameters(model), parameters(expected))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_leaves_the_best_so_far(error: type[BaseException]) -> None:
    sharded, model = on_devices(small_graph(), 2), SmallNet()

    def interrupt(record: EpochRecord) -> None:
        if record.epoch == 4:
            raise error

    with pytest.raises(error) as caught:
        fit(model, sharded, ADAM, epochs=10, on_epoch=interrupt)
    expected = SmallNet()
    history = fit(expected, sharded, ADAM, epochs=4)
    assert_same(parameters(model), parameters(expected))
    if error is KeyboardInterrupt:
        assert isinstance(caught.value, TrainingInterrupted)
        assert caught.value.history.loss == history.loss


@pytest.mark.expensive
@pytest.mark.parametrize("has_validation", [True, False])
def test_a_loss_of_nan_is_an_error_that_costs_nothing(has_validation: bool) -> None:
    graph = small_graph() if has_validation else small_graph(val_mask=None)
    sharded, model, seen = on_devices(graph, 2), SmallNet(), []
    message = r"epoch 4: the training loss after the step is"
    with pytest.raises(DivergenceError, match=message) as caught:
        fit(model, sharded, exploding(3), on_epoch=seen.append, epochs=10)
    assert caught.value.history.records == tuple(seen) and len(seen) == 3
    expected = SmallNet()
    fit(expected, sharded, exploding(99), epochs=3)
    assert_same(parameters(model), parameters(expected))


def test_nan_from_the_start_leaves_the_parameters_that_were_there() -> None:
    model = SmallNet()
    before = parameters(model)
    with pytest.raises(FloatingPointError, match="learning rate"):
        fit(model, on_devices(small_graph(), 2), exploding(0), epochs=2)
    assert_same(parameters(model), before)


# ------------------------------------------------------------------ compilation


@pytest.mark.slow
@pytest.mark.parametrize("num_graphs", [1, 2])
def test_what_was_compiled_is_what_runs(num_graphs: int) -> None:
    sharded = [on_devices(small_graph(60, seed=seed), 2) for seed in range(num_graphs)]
    programs: list[jax.stages.Compiled] = []
    counts: list[int] = []
    with compilations() as compiled:

        def seen(handed: Any) -> None:
            programs.extend(handed if isinstance(handed, tuple) else ())
            counts.append(len(compiled))

        fit(SmallNet(), sharded, optax.adam(0.0217), epochs=1, on_compile=seen, on_epoch=seen)
    # A step and an evaluation of each of several graphs, and the choice of kept variables.
    assert len(programs) == (1 if num_graphs == 1 else 5)
    assert sum(traffic(programs[0]).values()) > 0
    # The first epoch is between them; with several graphs it also makes its keys.
    assert counts[0] > 0 and counts[1] - counts[0] <= (0 if num_graphs == 1 else 1)


# ------------------------------------------------------------------ several graphs


@pytest.mark.slow
def test_several_graphs_take_a_step_each() -> None:
    graphs = [small_graph(60, seed=1), small_graph(40, seed=2)]
    # Padded to the same shapes, they share every program.
    sharded = on_devices_alike(graphs, 2)
    model = SmallNet()
    history = fit(model, sharded, ADAM, epochs=2)
    # Without steps the epoch's loss is that of all training nodes of both graphs.
    losses = fit(SmallNet(), sharded, optax.sgd(0.0), epochs=1).loss
    counts, sums = [], []
    for graph, one in zip(graphs, sharded, strict=True):
        assert graph.train_mask is not None
        counts.append(graph.train_mask.sum())
        sums.append(counts[-1] * float(loss_and_grad(SmallNet(), one, train=True)[0]))
    assert losses == pytest.approx([sum(sums) / sum(counts)], rel=1e-5)
    # The epoch's metrics are those of all their nodes.
    left = evaluate(model, sharded)["val"]["loss"]
    assert history.val_loss[-1] == pytest.approx(left, rel=1e-6)


class Drawn(nnx.Module):
    """In training the first class has a logit drawn from the key, the same for all nodes."""

    def __init__(self) -> None:
        self.bias = nnx.Param(jnp.zeros(CLASSES))

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> jax.Array:
        logit = 5 * jax.random.uniform(key) if train else jnp.float32(0)
        return jnp.broadcast_to(self.bias[...].at[0].add(logit), (shard.num_rows, CLASSES))


def test_each_of_several_graphs_draws_from_a_key_of_its_own() -> None:
    """Each key folds in the epoch first and then the number of the graph."""
    graph, seed = small_graph(), 3
    sharded = [on_devices(graph, 2)] * 3
    losses = fit(Drawn(), sharded, optax.sgd(0.0), epochs=2, seed=seed).loss
    assert graph.labels is not None and graph.train_mask is not None
    share = np.mean(graph.labels[graph.train_mask] == 0)

    def expected(epoch: int, index: int) -> float:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), epoch), index)
        logit = 5 * float(jax.random.uniform(key))
        return float(np.log(np.exp(logit) + CLASSES - 1) - share * logit)

    for epoch, loss in enumerate(losses):
        of_graphs = [expected(epoch, index) for index in range(3)]
        assert np.ptp(of_graphs) > 1e-2
        assert loss == pytest.approx(np.mean(of_graphs), rel=1e-5)


@pytest.mark.slow
def test_graphs_without_training_nodes_are_evaluated_only() -> None:
    unseen = small_graph(40, seed=2)
    assert unseen.train_mask is not None and unseen.val_mask is not None
    trained = on_devices(small_graph(60, seed=1, val_mask=None, test_mask=None), 2)
    validated = on_devices(unseen.replace(train_mask=None, test_mask=None), 2)
    history = fit(SmallNet(), [trained, validated], ADAM, epochs=5)
    alone = fit(SmallNet(), trained, ADAM, epochs=5)
    assert_close(history.loss, alone.loss, reduction_length=60)
    assert set(history.metrics) == {"train", "val"}
    assert not np.isnan(history.val_loss).any()


@pytest.mark.slow
def test_graphs_of_the_same_shapes_share_their_programs() -> None:
    graphs = [small_graph(60, seed=1), small_graph(40, seed=2), small_graph(50, seed=3)]
    padded = on_devices_alike(graphs, 2)
    optimizer: Any = optax.adam(0.02)
    with compilations() as of_two:
        fit(SmallNet(), padded[:2], optimizer, epochs=1)
    with compilations() as of_others:
        history = fit(SmallNet(), [padded[2], padded[0]], optimizer, epochs=2)
    assert len(of_two) > 0
    assert of_others == []
    alone = [on_devices(graph, 2) for graph in (graphs[2], graphs[0])]
    apart = fit(SmallNet(), alone, optimizer, epochs=2)
    assert_close(history.loss, apart.loss, reduction_length=60)
