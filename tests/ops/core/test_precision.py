"""The types in which values are accumulated."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.precision import (
    inner_product,
)


@pytest.mark.parametrize("features", [7, 100])
def test_a_head_that_overflows_leaves_the_others_alone(features: int) -> None:
    left = jnp.ones((4, 3, features)).at[2, 1, 0].set(jnp.inf)
    y = np.asarray(inner_product(left, jnp.ones_like(left)))
    assert y[2, 1] == np.inf
    assert np.isfinite(y).sum() == y.size - 1
