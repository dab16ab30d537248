"""The choice of the variables that an epoch keeps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxgraph.train import NodeClassification, initial_state
from jaxgraph.train.epoch import Kept, Outcome, choose, first_kept
from jaxgraph.train.step import make_learner
from tests.train.small_model import SmallNet, on_devices, small_graph

NAN = float("nan")


def sums(loss: float) -> dict[str, jax.Array]:
    return {"loss": jnp.float32(loss), "count": jnp.int32(1), "outcomes": jnp.int32(1)}


def chosen(
    losses: dict[str, float], step: float = 1.0, so_far: float = 2.0, restore_best: bool = True
) -> tuple[bool, Kept, Outcome]:
    """Returns whether variables of ones replace the kept ones, and both results of `choose`."""
    sharded = on_devices(small_graph(), 2)
    model = SmallNet()
    static = make_learner(model, optax.sgd(0.1), NodeClassification())
    state = initial_state(model, sharded, optax.sgd(0.1))
    kept = first_kept(state, sharded)
    kept = Kept(kept.params, kept.statistics, jnp.float32(so_far))
    state = jax.tree.map(jnp.ones_like, state)
    evaluation = {split: sums(loss) for split, loss in losses.items()}
    new, outcome = choose(static, state, kept, sharded, [sums(step)], [evaluation], restore_best)
    ones = {bool(np.all(np.asarray(leaf) == 1)) for leaf in jax.tree.leaves(new.params)}
    assert len(ones) == 1
    return ones.pop(), new, outcome


@pytest.mark.parametrize(
    ("val", "restore_best", "replaces", "is_best"),
    [(1.5, True, True, True), (2.0, True, False, False), (2.5, False, True, False)],
)
def test_a_lower_validation_loss_is_the_best(
    val: float, restore_best: bool, replaces: bool, is_best: bool
) -> None:
    found, kept, outcome = chosen({"train": 1.0, "val": val}, restore_best=restore_best)
    assert (found, bool(outcome.is_best)) == (replaces, is_best)
    assert float(kept.val_loss) == min(val, 2.0)


@pytest.mark.parametrize("restore_best", [True, False])
@pytest.mark.parametrize(
    ("step", "losses"),
    [
        (NAN, {"train": 1.0, "val": 1.0}),
        (1.0, {"train": NAN, "val": 1.0}),
        (1.0, {"train": 1.0, "val": NAN}),
        (float("inf"), {"train": 1.0}),
    ],
)
def test_nothing_that_is_not_finite_replaces(
    step: float, losses: dict[str, float], restore_best: bool
) -> None:
    replaced, kept, outcome = chosen(losses, step, restore_best=restore_best)
    assert not replaced and not bool(outcome.is_best)
    assert float(kept.val_loss) == 2.0


def test_without_validation_every_finite_epoch_replaces() -> None:
    replaced, _, outcome = chosen({"train": 9.0})
    assert replaced and bool(outcome.is_best)
    assert float(outcome.loss) == 1.0
