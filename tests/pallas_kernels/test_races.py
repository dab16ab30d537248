"""Warpgroups of a block under the race detector, rows cut into pieces among them."""

from typing import Any

import numpy as np
import pytest

from pallas_kernels.edge_products import edge_products
from pallas_kernels.neighbor_sum import Neighbors, neighbor_sum
from tests.pallas_kernels.graphs import graph, in_interpreter


@pytest.mark.slow
def test_sums_do_not_race():
    over = graph([40, 0, 1, 1, *[2] * 60], 6, longest=10)
    x: Any = np.ones((6, 8), np.float32)
    before: Any = np.zeros((len(over.degrees), 8), np.float32)
    y = neighbor_sum(Neighbors(x, over.neighbors), over.rows, before, launch=in_interpreter(2))
    np.testing.assert_array_equal(y[:, 0], over.degrees)


@pytest.mark.slow
def test_products_do_not_race():
    over = graph([40, 0, 1, 1, *[2] * 60], 6, longest=10)
    x: Any = np.ones((len(over.degrees), 8), np.float32)
    z: Any = np.ones((6, 8), np.float32)
    before: Any = np.zeros((over.num_edges, 2), np.float32)
    y = edge_products(x, z, over.rows, over.neighbors, before, launch=in_interpreter(2))
    np.testing.assert_array_equal(y, np.full((over.num_edges, 2), 4))
