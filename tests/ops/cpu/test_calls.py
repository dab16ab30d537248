"""Kernels called by hand: rows in any order, and arrays that XLA has moved."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.edges import EdgeGroup
from jaxgraph.ops.cpu.calls import neighbor_sum
from jaxgraph.ops.cpu.custom_call import call_on_arrays
from tests.cpu_kernels import needs_kernels
from tests.ops.cpu.groups import group_edges, hub_edges
from tests.tolerance import assert_close

pytestmark = needs_kernels
EDGES = hub_edges()


@pytest.mark.parametrize("place", [0, 1, 2, 15, 16, 17, 31, 64, 65, 200])
def test_rows_in_any_order(place):
    # Nodes with edges in their order, except the last of them, which is at `place`.
    last = int(EDGES.receivers.max())
    place_of_receiver = np.arange(EDGES.num_nodes)
    place_of_receiver[place:last] += 1
    place_of_receiver[last] = place
    groups = group_edges(EDGES, place_of_receiver=place_of_receiver)
    rows = np.asarray(groups.by_receiver.compressed_rows)
    assert np.flatnonzero(rows[1:] < rows[:-1]).tolist() == [place]
    x = np.random.default_rng(0).standard_normal((EDGES.num_nodes, 64), np.float32)
    y = neighbor_sum(EdgeGroup(groups, 0), "receiver", jnp.asarray(x), EDGES.num_nodes)
    assert_close(y, EDGES.sum_by_receiver(x[EDGES.senders]), reduction_length=5000)


def test_an_array_that_xla_has_moved_is_copied():
    x = jnp.arange(5.0)
    kept, _ = call_on_arrays("jaxgraph_large_pages", (x,), [(x.shape, x.dtype), ((9,), jnp.uint8)])
    np.testing.assert_array_equal(kept, x)
