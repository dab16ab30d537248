"""The choice of the variables that an epoch keeps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxgraph.train import NodeClassification
from jaxgraph.train.epoch import choose
from jaxgraph.train.fit_state import first_held
from jaxgraph.train.step import make_learner
from tests.train.small_model import SmallNet, on_devices, small_graph

NAN = float("nan")


def sums(loss: float) -> dict[str, jax.Array]:
    return {"loss": jnp.float32(loss), "count": jnp.int32(1), "outcomes": jnp.int32(1)}


@pytest.mark.parametrize(
    ("step", "losses"),
    [
        (NAN, {"train": 1.0, "val": 1.0}),
        (1.0, {"train": NAN, "val": 1.0}),
        (1.0, {"train": 1.0, "val": NAN}),
        (float("inf"), {"train": 1.0}),
    ],
)
def test_nothing_that_is_not_finite_replaces(step: float, losses: dict[str, float]) -> None:
    sharded, model, sgd = on_devices(small_graph(), 2), SmallNet(), optax.sgd(0.1)
    learner = make_learner(model, sgd, NodeClassification())
    state, kept, _ = first_held(model, sgd, sharded, 0)
    evaluation = {split: sums(loss) for split, loss in losses.items()}
    moved = jax.tree.map(jnp.ones_like, state)
    new, outcome = choose(learner, moved, kept, sharded, [sums(step)], [evaluation])
    assert not bool(outcome.is_best)
    jax.tree.map(np.testing.assert_array_equal, new, kept)
