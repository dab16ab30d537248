"""edge_messages: values per edge and their gradients under every schedule, and refusals."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.parallel import edge_messages, make_mesh, shard, spmd
from jaxgraph.partition.assignment import Partition
from tests.strategies import complete, random_edges, skewed_assignment
from tests.tolerance import assert_close

NODES, EDGES, WIDTH = 24, 130, 5


def graph() -> Any:
    senders, receivers = random_edges(NODES, EDGES, seed=3)
    receivers[:40] = 5
    senders[50:55], receivers[50:55] = 7, 9
    drawn = complete(senders, receivers, NODES + 3, "hub", edge_data=True)
    # The number of each edge, from 1, identifies the edge of a slot.
    numbers = np.arange(1, EDGES + 1, dtype=np.float32)[:, None]
    return drawn.replace(edges=numbers, edge_type=None)


GRAPH = graph()
RNG = np.random.default_rng(0)
KERNEL = RNG.standard_normal((WIDTH, 3))
WEIGHTS = {"gate": RNG.standard_normal((EDGES, 3)), "total": RNG.standard_normal(EDGES)}


def values(kernel: Any, sender: Any, receiver: Any, weight: Any) -> dict[str, Any]:
    """An edge update as of a graph network: both ends, data of the edge, and parameters."""
    hidden = jnp.tanh(sender @ kernel + receiver[:, :3] * weight[:, None])
    return {"gate": jax.nn.sigmoid(hidden), "total": (hidden * receiver[:, :3]).sum(-1)}


def by_number(own: Any, slots: jax.Array) -> jax.Array:
    """[slots, ...] as [edges + 1, ...] of the whole graph; slots without an edge are added to 0."""
    numbers = own.edges[:, 0].astype(jnp.int32)
    empty = jnp.zeros((EDGES + 1, *slots.shape[1:]), slots.dtype)
    return own.sum(empty.at[numbers].add(slots))


def of_shard(kernel: Any, x: Any, weight: Any, own: Any) -> dict[str, jax.Array]:
    nodes = jnp.where(own.node_mask[:, None], x[own.node_ids], jnp.nan)
    numbers = own.edges[:, 0].astype(jnp.int32)
    edge = jnp.where(numbers > 0, weight[numbers - 1], jnp.nan)
    message = lambda s, r, e: values(kernel, s, r, e)  # noqa: E731
    return edge_messages(own, message, nodes, nodes, edge)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "mode"),
    [(1, "domain"), (3, "domain"), (3, "sar")],  # the first of several parts is empty
)
def test_values_and_gradients(parts: int, mode: str) -> None:
    with jax.enable_x64(True):
        owners = Partition(skewed_assignment(GRAPH.num_nodes, parts), parts, "skewed")
        sharded = shard(GRAPH, owners, make_mesh(parts), mode)
        x, weight = jnp.asarray(GRAPH.nodes, float), jnp.asarray(GRAPH.edge_weight, float)

        def plain(kernel: Any, x: Any, weight: Any) -> Any:
            found = values(kernel, x[GRAPH.senders], x[GRAPH.receivers], weight)
            return sum(jnp.sum(jnp.sin(y) * WEIGHTS[name]) for name, y in found.items()), found

        @spmd
        def run(kernel: Any, x: Any, weight: Any, own: Any) -> Any:
            tables = {k: by_number(own, y) for k, y in of_shard(kernel, x, weight, own).items()}
            terms = (jnp.sum(jnp.sin(y[1:]) * WEIGHTS[name]) for name, y in tables.items())
            return sum(terms), tables

        arrays = (jnp.asarray(KERNEL), x, weight)
        both = jax.value_and_grad(run, (0, 1, 2), has_aux=True)
        (loss, found), gradients = both(*arrays, sharded)
        (expected_loss, expected), exact = jax.value_and_grad(plain, (0, 1, 2), has_aux=True)(
            *arrays
        )
    assert_close(loss, expected_loss, dtype=np.float64, reduction_length=EDGES)
    for name, table in found.items():
        assert not np.any(table[0])
        assert_close(table[1:], expected[name], dtype=np.float64, reduction_length=WIDTH)
    for mine, right in zip(gradients, exact, strict=True):
        assert_close(mine, right, dtype=np.float64, reduction_length=EDGES)


@pytest.mark.parametrize(
    ("error", "words", "message"),
    [
        (TypeError, "returned int32; expected floating", lambda s, r, e: jnp.int32(s)),
        (ValueError, "combine", lambda s, r, e: s - s.mean(0)),
    ],
)
def test_bad_functions_are_refused(error: type[Exception], words: str, message: Any) -> None:
    sharded = shard(GRAPH, None, make_mesh(1))
    with pytest.raises(error, match=words):
        spmd(lambda own: own.sum(edge_messages(own, message, own.nodes).sum()))(sharded)
