from typing import Any

import numpy as np
import pytest

from pallas_kernels.edge_products import edge_products
from tests.pallas_kernels.graphs import graph, in_interpreter

DEGREES, NEIGHBORS = [2, 0, 1, 9, 1], 6


def tables(width, dtype="float32") -> Any:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((len(DEGREES) + 1, width)).astype(dtype)
    z = rng.standard_normal((NEIGHBORS + 1, width)).astype(dtype)
    x[-1] = z[-1] = np.nan
    return x, z


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "width", "dtype", "longest"),
    [(1, 41, "float32", 4), (3, 8, "float16", 1000), (2, 1, "float32", 1000)],
)
def test_multiplies_ends_per_head(heads, width, dtype, longest):
    over = graph(DEGREES, NEIGHBORS, longest=longest)
    x, z = tables(heads * width, dtype)
    before: Any = np.full((over.num_edges + 2, heads), np.nan, np.float32)
    y = edge_products(
        x, z, over.rows, over.neighbors, before, slots=over.slots, launch=in_interpreter()
    )
    expected = before.astype(np.float64)
    for row, neighbor, slot in over.ends():
        product = x[row].astype(np.float64) * z[neighbor].astype(np.float64)
        expected[slot] = product.reshape(heads, width).sum(1)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
