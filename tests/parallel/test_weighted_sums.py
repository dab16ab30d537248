"""Weighted sums over parts: values and gradients, weights more precise than the features too."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgraph as jg
from jaxgraph.ops.core.message_functions import weighted_message
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Sum
from jaxgraph.ops.cpu.library import missing
from tests.oracles.edges import Edges
from tests.strategies import complete, random_edges
from tests.tolerance import assert_close

NODES, EDGES, PARTS = 61, 400, 3


def rounded(values: np.ndarray, dtype: Any) -> np.ndarray:
    return np.asarray(jnp.asarray(values, dtype)).astype(np.float64)


@pytest.mark.expensive
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("implementation", ["cpu", "xla"])
@pytest.mark.parametrize("mode", ["sar", "domain"])
def test_values_and_gradients(mode: str, implementation: str, dtype: Any) -> None:
    if implementation == "cpu" and missing():
        pytest.skip(missing())
    graph = complete(*random_edges(NODES, EDGES, seed=3), NODES, "weighted", edge_data=True)
    assert graph.nodes is not None and graph.edge_weight is not None and graph.edges is not None
    partition = jg.partition.partition(graph, PARTS, method="hash")
    mesh = jg.parallel.make_mesh(PARTS)
    sharded = jg.parallel.shard(graph, partition, mesh, mode, implementation=implementation)

    def run(shard: Any) -> Any:
        def total(x: jax.Array, weight: jax.Array) -> jax.Array:
            inputs = Inputs((), x, (), weight)
            return shard.propagate(weighted_message, Sum(x.dtype), inputs)

        y, pull = jax.vjp(total, shard.nodes.astype(dtype), shard.edge_weight)
        grad_x, grad_weight = pull(shard.nodes.astype(dtype))
        assert (y.dtype, grad_x.dtype, grad_weight.dtype) == (dtype, dtype, jnp.float32)
        along = shard.sum(jnp.sum(grad_weight[:, None] * shard.edges, 0))
        return y.astype(jnp.float32), grad_x.astype(jnp.float32), along

    y, grad_x, along = jg.parallel.spmd(run, outputs=("rows", "rows", "replicated"))(sharded)
    edges = Edges.of(graph.senders, graph.receivers, NODES)
    x, weight = rounded(graph.nodes, dtype), graph.edge_weight.astype(np.float64)[:, None]
    senders, receivers = x[edges.senders], x[edges.receivers]
    products = (senders * receivers).sum(1, keepdims=True)
    for found, right in (
        (y, edges.sum_by_receiver(weight * senders)),
        (grad_x, edges.sum_by_sender(weight * receivers)),
    ):
        assert_close(
            jg.parallel.gather_rows(found, sharded), right, dtype=dtype, reduction_length=4
        )
    # No bit of a weight's gradient is lost to the features' type.
    right = (products * graph.edges.astype(np.float64)).sum(0)
    assert_close(along, right, reduction_length=EDGES)
