"""Other work of the custom calls: slots of other groups, and moved arrays."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.edges import EdgeGroup
from jaxgraph.ops.cpu.calls import edge_products
from jaxgraph.ops.cpu.custom_call import call_on_arrays
from jaxgraph.ops.cpu.library import missing as missing_library
from tests.ops.cpu.groups import group_edges, hub_edges
from tests.tolerance import assert_close

pytestmark = pytest.mark.skipif(bool(missing_library()), reason=missing_library())


@pytest.mark.parametrize("group", [0, 1, 2])
def test_products_are_zero_in_the_slots_of_other_groups(group):
    edges, heads, features = hub_edges(3000), 2, 5
    # Group 1 has no edges.
    group_of_edge = 2 * (np.arange(len(edges.senders)) % 2)
    groups = group_edges(edges, group_of_edge)
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((2, edges.num_nodes, heads, features)).astype(np.float32)
    over = EdgeGroup(groups, group)
    y = np.asarray(edge_products(over, jnp.asarray(x), jnp.asarray(z), heads=heads))

    slots = np.lexsort((edges.receivers, group_of_edge))
    x, z = x.astype(np.float64), z.astype(np.float64)
    exact = x[edges.receivers[slots]] * z[edges.senders[slots]]
    expected = np.zeros(y.shape)
    mine = group_of_edge[slots] == group
    expected[: len(slots)][mine] = exact.sum(-1)[mine]
    assert_close(y, expected, reduction_length=features)
    np.testing.assert_array_equal(y[expected == 0], 0)


def test_an_array_that_xla_has_moved_is_copied():
    x = jnp.arange(5.0)
    kept, _ = call_on_arrays("jaxgraph_large_pages", (x,), [(x.shape, x.dtype), ((9,), jnp.uint8)])
    np.testing.assert_array_equal(kept, x)
