"""A model, a loss and a training step of your own, run unchanged on 1, 2 and 8 devices.

    python examples/custom_model.py

On a machine with fewer than eight devices they are emulated on CPU.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxgraph as jg

STEPS = 20


class JumpingNet(nnx.Module):
    """GraphSAGE, then GCN; the readout sees both (jumping knowledge, Xu et al. 2018)."""

    def __init__(self, features: int, hidden: int, classes: int, *, rngs: nnx.Rngs) -> None:
        self.first = jg.nn.SAGEConv(features, hidden, rngs=rngs)
        self.norm = jg.nn.BatchNorm(hidden)
        self.second = jg.nn.GCNConv(hidden, hidden, rngs=rngs)
        self.readout = jg.nn.Linear(2 * hidden, classes, rngs=rngs)

    def __call__(
        self, shard: Any, x: Any, key: jax.Array | None = None, train: bool = False
    ) -> jax.Array:
        if train:
            x = jg.nn.dropout(shard, x, key, rate=0.2)
        near = nnx.relu(self.norm(shard, self.first(shard, x), train))
        far = nnx.relu(self.second(shard, near))
        return self.readout(shard, jnp.concatenate([near, far], axis=1))


def focal_loss(logits: jax.Array, shard: Any) -> jax.Array:
    """-(1 - p)^2 log p of the right class, the mean over the training nodes of all shards."""
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), shard.labels[:, None], axis=1)[:, 0]
    losses = -((1 - jnp.exp(log_p)) ** 2) * log_p
    # Reduce sums and counts over the shards, then divide: a mean of means would be wrong.
    total, count = shard.sum((jnp.where(shard.train_mask, losses, 0).sum(), shard.train_mask.sum()))
    return total / count


def make_step(graphdef: nnx.GraphDef, optimizer: optax.GradientTransformation) -> Callable:
    """Makes a training step for one shard; `spmd` runs it on all of them at once."""

    def step(params: Any, statistics: Any, moments: Any, shard: Any, key: Any) -> Any:
        def loss_of(params: Any) -> tuple[jax.Array, Any]:
            model = nnx.merge(graphdef, params, statistics, copy=True)
            logits = model(shard, shard.nodes, key, train=True)
            return focal_loss(logits, shard), nnx.state(model, nnx.BatchStat)

        (loss, new), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, moments = optimizer.update(grads, moments, params)
        return optax.apply_updates(params, updates), new, moments, loss

    return jg.parallel.spmd(step)


def train(graph: jg.Graph, num_devices: int) -> list[float]:
    """Trains on `num_devices` devices and returns the loss of every step."""
    parts = jg.partition.partition(graph, num_devices, method="metis", seed=0)
    sharded = jg.parallel.shard(graph, parts, jg.parallel.make_mesh(num_devices), mode="sar")

    model = JumpingNet(graph.num_features, 16, graph.num_classes, rngs=nnx.Rngs(0))
    graphdef, params, statistics = nnx.split(model, nnx.Param, nnx.BatchStat)
    optimizer = optax.adamw(2e-2)
    moments, step = optimizer.init(params), make_step(graphdef, optimizer)
    losses = []
    for number in range(STEPS):
        key = jax.random.fold_in(jax.random.key(0), number)
        params, statistics, moments, loss = step(params, statistics, moments, sharded, key)
        losses.append(float(loss))
    return losses


def main() -> None:
    jg.parallel.emulate_devices(8)
    graph = jg.datasets.load("sbm", num_nodes=400, degree=8, num_classes=4, num_features=16)
    curves = {num_devices: train(graph, num_devices) for num_devices in (1, 2, 8)}
    for num_devices, losses in curves.items():
        print(f"{num_devices} device(s): loss {losses[0]:.6f} -> {losses[-1]:.6f}")
        np.testing.assert_allclose(losses, curves[1], rtol=1e-3)
        assert losses[-1] < 0.5 * losses[0]
    print("the same on every number of devices, dropout included")


if __name__ == "__main__":
    main()
