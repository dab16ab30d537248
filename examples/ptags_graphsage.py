"""GraphSAGE written once with P-TAGS, run on columns of features and on rows of nodes.

    python examples/ptags_graphsage.py

On a machine with fewer than eight devices they are emulated on CPU.
"""

from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx

import jaxgraph as jg
from jaxgraph.parallel import ptags

OUT_FEATURES = 8
PARAMS = ("self_kernel", "neighbor_kernel", "bias")


def graphsage(params: dict[str, jax.Array], shard: Any, x: Any) -> jax.Array:
    """relu(x_i W_self + mean_j x_j W_neighbor + b), as Listing 1 of the P3 paper has it.

    Nothing here depends on how x is split. On columns of features, `transform` describes a device's
    share of a sum, and `sync` adds the shares. On rows of nodes `sync` has nothing to add.
    """
    kernels = (params["self_kernel"], params["neighbor_kernel"])

    def fully_connected(kernels: Any, x: jax.Array, neighbors: jax.Array) -> jax.Array:
        return x @ kernels[0] + neighbors @ kernels[1]

    messages = ptags.scatter(shard, x, lambda sender, edge, receiver: sender)
    neighbors = ptags.gather(messages, "mean")
    shares = ptags.transform(x, neighbors, kernels, fully_connected)
    return ptags.apply(lambda y: jax.nn.relu(y + params["bias"]), ptags.sync(shares))


def main() -> None:
    jg.parallel.emulate_devices(8)
    graph = jg.transforms.degree_features(jg.datasets.load("karate"), max_degree=16)
    layer = jg.nn.SAGEConv(graph.num_features, OUT_FEATURES, rngs=nnx.Rngs(0))
    params = {name: variable[...] for name, variable in vars(layer).items() if name in PARAMS}
    results = {}
    for mode, num_devices in (("p3", 8), ("p3", 3), ("sar", 4)):
        mesh = jg.parallel.make_mesh(num_devices)
        by_hash = partial(jg.partition.partition, method="hash", seed=0)
        if mode == "p3":
            sharded = ptags.partition(graph, mesh, by_hash, chunks=2)
        else:
            sharded = jg.parallel.shard(graph, by_hash(graph, num_devices), mesh, mode)

        def both(params: Any, shard: Any) -> list[jax.Array]:
            theirs = jg.layers.sage_conv(params, shard, shard.nodes)
            return [graphsage(params, shard, shard.nodes), jax.nn.relu(theirs)]

        rows = jg.parallel.spmd(both, outputs="rows")(params, sharded)
        mine, theirs = (jg.parallel.gather_rows(y, sharded) for y in rows)
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
        results[mode, num_devices] = mine
        print(f"{mode} on {num_devices} devices: equals SAGEConv, {mine.shape}")
    for found in results.values():
        np.testing.assert_allclose(found, results["sar", 4], atol=1e-5)
    print("the same on rows and on columns, whatever the number of devices")


if __name__ == "__main__":
    main()
