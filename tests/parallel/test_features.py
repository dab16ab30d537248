"""Columns of features: a device's own ones, where their number is no multiple."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.parallel import FeatureColumns


@pytest.mark.parametrize(("num_features", "groups"), [(7, 3), (8, 3), (9, 3), (2, 3)])
def test_every_column_is_in_range_on_one_device(num_features: int, groups: int) -> None:
    fewer, longer = divmod(num_features, groups)
    width, found, kernel = fewer + (longer > 0), [], jnp.arange(num_features, dtype=jnp.float32)
    for group in range(groups):
        offset = jnp.int32(group * fewer + min(group, longer))
        columns = FeatureColumns(jnp.zeros((1, width)), offset, num_features, groups)
        assert columns.has_padding == (longer > 0)
        found.append(columns.rows_of(kernel[:, None])[columns.in_range(), 0])
    np.testing.assert_array_equal(np.concatenate(found), kernel)
