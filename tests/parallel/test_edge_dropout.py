"""The same edges are dropped on any number of devices, under every schedule."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgraph as jg
from jaxgraph.ops.core.randomness import edge_keep_mask

NODES, KEY, RATE = 23, jax.random.key(4), 0.4


@functools.cache
def graph():
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, NODES, (2, 90)).astype(np.int32)
    senders, receivers = np.tile(senders, 2), np.tile(receivers, 2)  # every edge at least twice
    nodes = rng.normal(size=(NODES, 3)).astype(np.float32)
    return jg.Graph(senders=senders, receivers=receivers, num_nodes=NODES, nodes=nodes)


def oracle():
    """sum_{e kept} x_sender, with the library's draws of the graph's own list of edges."""
    g = graph()
    seen: dict[tuple[int, int], int] = {}
    repetition = np.zeros(g.num_edges, np.int32)
    for i, edge in enumerate(zip(g.senders.tolist(), g.receivers.tolist(), strict=True)):
        repetition[i] = seen.get(edge, 0)
        seen[edge] = repetition[i] + 1
    keep = np.asarray(edge_keep_mask(KEY, g.receivers, g.senders, repetition, 1, RATE)[:, 0])
    assert 0.5 < keep.mean() < 0.7
    assert (keep[:90] != keep[90:]).any()  # equal edges are drawn separately
    sums = np.zeros((NODES, 3))
    np.add.at(sums, g.receivers[keep], np.asarray(g.nodes, np.float64)[g.senders[keep]])
    return sums


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("parts", "mode"), [(1, "sar"), (2, "sar"), (3, "sar"), (3, "domain"), (2, "p3")]
)
def test_drops_the_same_edges(parts, mode):
    partition = jg.partition.partition(graph(), parts, method="hash")
    sharded = jg.parallel.shard(graph(), partition, jg.parallel.make_mesh(parts), mode)

    def dropped(shard, key):
        keep = jg.parallel.keep_edges(shard, key, RATE)
        x = shard.to_nodes(shard.nodes)
        return jg.parallel.propagate(
            shard, lambda s, r, keep: jnp.where(keep[:, None], s, 0), x, edge=keep
        )

    found = jg.parallel.spmd(dropped, outputs="rows")(sharded, KEY)
    np.testing.assert_allclose(jg.parallel.gather_rows(found, sharded), oracle(), atol=1e-5)
