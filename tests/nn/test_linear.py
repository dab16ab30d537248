"""The linear module: its parameters, and one W for rows and columns."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from jaxgraph.nn import Linear
from jaxgraph.parallel import spmd
from tests.strategies import NUM_FEATURES
from tests.tolerance import assert_close
from tests.training import crooked_sharded


def test_initial_parameters() -> None:
    linear = Linear(400, 200, rngs=nnx.Rngs(0))
    kernel, limit = np.asarray(linear.kernel.get_value()), np.sqrt(6 / 600)
    assert kernel.shape == (400, 200) and kernel.dtype == np.float32
    assert 0.99 * limit < np.abs(kernel).max() <= limit
    assert abs(kernel.mean()) < 0.01 * limit
    np.testing.assert_array_equal(linear.bias.get_value(), np.zeros(200))
    assert not hasattr(Linear(4, 2, use_bias=False, rngs=nnx.Rngs(0)), "bias")


def test_rows_and_columns_share_the_parameters() -> None:
    linear = Linear(NUM_FEATURES, 3, rngs=nnx.Rngs(0))
    linear.bias.set_value(np.arange(3, dtype=np.float32))
    graphdef, state = nnx.split(linear)

    def step(state: Any, shard: Any) -> tuple[jax.Array, jax.Array]:
        linear = nnx.merge(graphdef, state)
        return linear(shard, shard.to_nodes(shard.nodes)), linear(shard, shard.nodes)

    rows, columns = spmd(step, outputs="rows")(state, crooked_sharded(4, "hash", "p3-sar"))
    assert_close(columns, rows, reduction_length=NUM_FEATURES)


@pytest.mark.parametrize("sizes", [(0, 3), (3, -1), (3.0, 3), (True, 3)])
def test_sizes_that_are_no_positive_integers_are_refused(sizes: Any) -> None:
    with pytest.raises(ValueError, match="expected a positive integer"):
        Linear(*sizes, rngs=nnx.Rngs(0))
