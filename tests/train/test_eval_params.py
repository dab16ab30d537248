"""Metrics, the best epoch and the model left are of the parameters that `eval_params` reads."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph.train import Checkpoints, evaluate, fit, loss_and_grad
from tests.train.small_model import SmallNet, on_devices, small_graph

EPOCHS = 6


def schedule_free() -> Any:
    return optax.contrib.schedule_free_adamw(0.1, warmup_steps=3)


read = optax.contrib.schedule_free_eval_params


def by_hand(model: nnx.Module, graph: Any) -> tuple[list[float], list[Any]]:
    """Validation losses and evaluated parameters of a loop of optax on one device."""
    optimizer = schedule_free()
    params = nnx.state(model, nnx.Param)
    state = optimizer.init(params)
    losses, found = [], []
    for _ in range(EPOCHS):
        nnx.update(model, params)
        updates, state = optimizer.update(loss_and_grad(model, graph)[1], state, params)
        params = optax.apply_updates(params, updates)
        found.append(read(state, params))
        nnx.update(model, found[-1])
        losses.append(evaluate(model, graph)["val"]["loss"])
    return losses, found


class Plain(nnx.Module):
    """Linear, in the features of a node: no statistic, so that a loop by hand is short."""

    def __init__(self) -> None:
        self.linear = nnx.Linear(6, 3, rngs=nnx.Rngs(0))

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> jax.Array:
        return self.linear(x)


def assert_close(one: Any, other: Any) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.expensive
@pytest.mark.parametrize("num_parts", [1, 3])
def test_curve_and_model_are_of_the_parameters_that_it_reads(num_parts: int) -> None:
    graph = small_graph()
    losses, found = by_hand(Plain(), graph)
    sharded = on_devices(graph, num_parts)
    model = Plain()
    history = fit(model, sharded, schedule_free(), epochs=EPOCHS, eval_params=read)
    np.testing.assert_allclose(history.val_loss, losses, rtol=1e-5)
    assert history.best_epoch == int(np.argmin(losses)) + 1
    assert_close(nnx.state(model, nnx.Param), found[int(np.argmin(losses))])
    assert history.state is not None
    last = read(history.state.optimizer_state, history.state.params)
    assert_close(last, found[-1])


def test_a_run_goes_on_from_the_parameters_of_its_steps(tmp_path: Path) -> None:
    graph = small_graph()
    options: Any = dict(eval_params=read)
    models = [SmallNet(), SmallNet(), SmallNet()]
    whole = fit(models[0], graph, schedule_free(), epochs=EPOCHS, **options)
    half = fit(
        models[1], graph, schedule_free(), epochs=3, **options, checkpoint=Checkpoints(tmp_path)
    )
    fit(
        models[2],
        graph,
        schedule_free(),
        epochs=3,
        **options,
        checkpoint=Checkpoints(tmp_path, resume=True),
    )
    assert_close(nnx.state(models[2]), nnx.state(models[1]))
    assert half.state is not None
    rest = fit(models[1], graph, schedule_free(), epochs=3, state=half.state, **options)
    resumed = Checkpoints(tmp_path, resume=True)
    fit(models[2], graph, schedule_free(), epochs=EPOCHS, **options, checkpoint=resumed)
    np.testing.assert_array_equal(half.val_loss + rest.val_loss, whole.val_loss)
    for model in models[1:]:
        assert_close(nnx.state(model), nnx.state(models[0]))
