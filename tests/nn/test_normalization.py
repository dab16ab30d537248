"""The norm modules: statistics in training and inference, and their residuals."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgraph.nn import BatchNorm, LayerNorm
from jaxgraph.parallel import gather_rows, spmd
from tests.oracles import functions
from tests.strategies import NUM_FEATURES
from tests.tolerance import assert_close
from tests.training import crooked_features, crooked_sharded, poisoned

RNG = np.random.default_rng(4)


def randomised(norm: Any) -> Any:
    """Other parameters and statistics than the initial ones."""
    for variable in vars(norm).values():
        if isinstance(variable, nnx.Variable):
            variable.set_value(jnp.asarray(RNG.uniform(0.5, 2.0, NUM_FEATURES), jnp.float32))
    return norm


def doubles(norm: Any, *names: str) -> dict[str, Any]:
    return {name: np.asarray(getattr(norm, name).get_value(), np.float64) for name in names}


def applied(norm: Any, sharded: Any, **options: Any) -> tuple[np.ndarray, Any]:
    """The output in the graph's order, and the module after the pass."""
    graphdef, params, statistics = nnx.split(norm, nnx.Param, ...)

    def step(params: Any, statistics: Any, shard: Any) -> Any:
        local = nnx.merge(graphdef, params, statistics)
        y = local(shard, shard.nodes, **options)
        return y, nnx.state(local, nnx.BatchStat)

    outputs = ("rows", "replicated")
    y, statistics = spmd(step, outputs=outputs)(params, statistics, sharded)
    return gather_rows(y, sharded), nnx.merge(graphdef, params, statistics)


@pytest.mark.parametrize("num_parts", [1, 4])
def test_batch_norm_in_training(num_parts: int) -> None:
    norm, x = randomised(BatchNorm(NUM_FEATURES)), crooked_features()
    params, running = doubles(norm, "scale", "bias"), doubles(norm, "mean", "var")
    y, after = applied(norm, crooked_sharded(num_parts, "hash", "sar"), train=True)
    assert_close(y, functions.batch_norm(params, x), reduction_length=len(x))
    for name, expected in functions.updated_statistics(running, x).items():
        assert_close(getattr(after, name).get_value(), expected, reduction_length=len(x))


def test_batch_norm_elsewhere_uses_and_keeps_the_running_statistics() -> None:
    norm, x = randomised(BatchNorm(NUM_FEATURES)), crooked_features()
    params, running = doubles(norm, "scale", "bias"), doubles(norm, "mean", "var")
    y, after = applied(norm, crooked_sharded(4, "hash", "sar"))
    assert_close(y, functions.batch_norm_inference(params, running, x))
    for name, expected in running.items():
        np.testing.assert_array_equal(getattr(after, name).get_value(), expected)


def test_momentum_is_the_weight_of_the_past() -> None:
    norm = BatchNorm(NUM_FEATURES, momentum=0.25)
    _, after = applied(norm, crooked_sharded(1, "hash", "sar"), train=True)
    expected = 0.75 * crooked_features().mean(0)
    assert_close(after.mean.get_value(), expected, reduction_length=120)


def test_layer_norm() -> None:
    norm, x = randomised(LayerNorm(NUM_FEATURES)), crooked_features()
    y, _ = applied(norm, crooked_sharded(4, "hash", "sar"))
    assert_close(y, functions.layer_norm(doubles(norm, "scale", "bias"), x))


def test_padding_reaches_no_statistics() -> None:
    sharded = crooked_sharded(4, "hash", "sar")
    clean, dirty = (
        applied(BatchNorm(NUM_FEATURES), graph, train=True)[1]
        for graph in (sharded, poisoned(sharded))
    )
    jax.tree.map(np.testing.assert_array_equal, nnx.state(dirty), nnx.state(clean))


@pytest.mark.parametrize("norm", [BatchNorm, LayerNorm])
def test_a_norm_of_no_features_is_refused(norm: Any) -> None:
    with pytest.raises(ValueError, match="features is 0; expected a positive integer"):
        norm(0)
