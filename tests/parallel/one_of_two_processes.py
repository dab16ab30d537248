"""One of two processes with two devices each, which place a graph of four parts together.

Started by `test_placement.py` with the coordinator's address and the number of the process; prints
the parts that this process read, and whether sums over the whole graph are correct.
"""

import sys

import jax
import numpy as np

import jaxgraph as jg
from jaxgraph.layout.column_tables import ColumnRequest
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel import ptags


class Recorder:
    """A source that records the requested parts."""

    def __init__(self, tables):
        self.tables, self.manifest, self.read = tables, tables.manifest, []

    def part(self, index):
        self.read.append(index)
        return self.tables.part(index)


def main(address: str, process: int) -> None:
    """Places, sums the features of all in-neighbours, and compares."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, num_processes=2, process_id=process)
    graph = jg.datasets.load("random", num_nodes=60, degree=6, num_features=5, seed=0)
    parts = jg.partition.partition(graph, 4, method="hash")
    source = Recorder(tabulate(graph, parts))
    sharded = jg.parallel.place(source, jg.parallel.make_mesh(4))
    sums = jg.parallel.spmd(
        lambda shard: jg.parallel.propagate(shard, lambda s, r, e: s, shard.nodes), outputs="rows"
    )(sharded)
    expected = np.zeros((60, 5))
    assert graph.nodes is not None
    np.add.at(expected, graph.receivers, graph.nodes[graph.senders])
    found = jg.parallel.gather_rows(sums, sharded)
    print("read", source.read, "equal", np.allclose(found, expected, rtol=1e-4, atol=1e-5))
    columns = Recorder(tabulate(graph, parts, "domain", columns=ColumnRequest(chunks=2)))
    sharded = jg.parallel.place(columns, jg.parallel.make_mesh(4), "p3")
    found = jg.parallel.gather_rows(
        jg.parallel.spmd(summed_by_columns, outputs="rows")(sharded), sharded
    )
    print("read", columns.read, "equal", np.allclose(found, expected, rtol=1e-4, atol=1e-5))


def summed_by_columns(shard):
    """The features of all in-neighbours, from columns of them."""
    neighbors = ptags.gather(ptags.scatter(shard, shard.nodes))
    return ptags.sync(ptags.transform(shard.nodes, neighbors, np.eye(5), lambda w, x, a: a @ w))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
