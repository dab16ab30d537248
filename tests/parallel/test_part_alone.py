"""One part's layer alone equals its result inside the mesh."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.parallel import gather_rows, spmd
from jaxgraph.parallel.part_alone import PartAlone, part_alone
from tests.layers.convolution_cases import adjoint
from tests.layers.neighborhood_cases import CASES
from tests.tolerance import assert_close
from tests.training import crooked_graph, crooked_sharded

PARTS = 3


@pytest.mark.expensive
@pytest.mark.parametrize("mode", ["sar", "domain"])
@pytest.mark.parametrize("name", CASES)
def test_all_parts_together_are_the_mesh(name: str, mode: str) -> None:
    weighted = name == "gcn-narrow"
    nodes, case = crooked_graph(edge_weight=weighted).nodes, CASES[name]
    assert nodes is not None
    sharded = crooked_sharded(PARTS, "hash", mode, weighted)

    def in_mesh(params: Any, shard: Any) -> Any:
        def loss(x: jax.Array, params: Any) -> Any:
            y = case.conv(params, shard, x)
            return shard.sum(jnp.sum(shard.mask_rows(y * adjoint(shard.node_ids, y.shape[1])))), y

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(shard.nodes, params)

    outputs = (("replicated", "rows"), ("rows", "replicated"))
    (_, y), (of_x, of_params) = spmd(in_mesh, outputs=outputs)(case.params, sharded)
    y, of_x = gather_rows(y, sharded), gather_rows(of_x, sharded)

    @jax.jit
    def alone(params: Any, part: PartAlone, x: Any) -> Any:
        def loss(x: Any, params: Any) -> Any:
            y = case.conv(params, part, x)
            rows = y * adjoint(part.receivers.node_ids, y.shape[1])
            return jnp.sum(part.receivers.mask_rows(rows)), y

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(x, params)

    found, found_of_x = np.zeros_like(y), np.zeros_like(of_x)
    found_of_params = jax.tree.map(np.zeros_like, case.params)
    for index in range(PARTS):
        part = part_alone(sharded, index)
        tables = [part.senders, part.receivers]
        x = tuple(
            np.where(np.asarray(t.node_mask)[:, None], nodes[np.asarray(t.node_ids)], 0)
            for t in tables
        )
        (_, rows), (ends, params) = alone(case.params, part, x)
        own = np.asarray(part.receivers.node_mask)
        found[np.asarray(part.receivers.node_ids)[own]] = np.asarray(rows)[own]
        for table, gradient in zip(tables, ends, strict=True):
            mask = np.asarray(table.node_mask)
            np.add.at(found_of_x, np.asarray(table.node_ids)[mask], np.asarray(gradient)[mask])
        found_of_params = jax.tree.map(lambda a, b: a + np.asarray(b), found_of_params, params)
    assert_close(found, y, reduction_length=100)
    assert_close(found_of_x, of_x, reduction_length=1000, name="gradient of x")
    for key, gradient in of_params.items():
        assert_close(found_of_params[key], gradient, reduction_length=2000, name=key)
