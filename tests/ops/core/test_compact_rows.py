"""The order of XLA's loops, computed on the device: that of `block_tables`."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxgraph.layout.block_tables import BlockSizes, block_tables
from jaxgraph.layout.sample_tables import ROW_TABLES
from jaxgraph.ops.core.compact_rows import receivers_of_slots, with_compact_rows

SIZES = ((1, 1, 0), (1, 1, 9), (6, 4, 0), (30, 20, 100), (300, 90, 4000))


@pytest.mark.expensive
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_compact_rows_are_those_of_the_host(size: tuple[int, int, int]) -> None:
    num_senders, num_receivers, edges = size
    random = np.random.default_rng(sum(size))
    senders = (num_senders * random.random(edges) ** 3).astype(np.int64)
    receivers = (num_receivers * random.random(edges) ** 4).astype(np.int64)
    sizes = BlockSizes(num_senders + 3, num_receivers + 5, edges + 40)
    room = sizes.num_senders, sizes.num_receivers
    expected, _, visits = block_tables(senders, receivers, {}, *room, sizes)
    for side, rows, loops in (
        ("by_receiver", sizes.num_receivers, visits.by_receiver),
        ("by_sender", sizes.num_senders, visits.by_sender),
    ):
        names = ROW_TABLES if side == "by_receiver" else (*ROW_TABLES, "edge_ids")
        given = {name: expected[f"block/{side}/{name}"] for name in names}
        starts = given["compressed_starts"].copy()
        starts[given["compressed_ptr"][1] :] = edges
        given["compressed_starts"] = starts
        arrays = {name: jax.numpy.asarray(values) for name, values in given.items()}
        found = with_compact_rows(arrays, rows, loops.longest, loops.entries, visits.chunk)
        for name in ("rows", "starts", "degrees", "run_ptr", "heavy_rows", "position"):
            values = np.asarray(getattr(found, name))
            np.testing.assert_array_equal(values, expected[f"block/{side}/{name}"], err_msg=name)
        if side == "by_receiver":
            slots = np.asarray(receivers_of_slots(found))[:edges]
            np.testing.assert_array_equal(slots, np.sort(receivers))
