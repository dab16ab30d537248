"""A message function of your own with learned parameters, run unchanged on 1, 2 and 8 devices.

    python examples/custom_message.py

On a machine with fewer than eight devices they are emulated on CPU.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxgraph as jg

HIDDEN, STEPS = 8, 25
Params = dict[str, jax.Array]


def initial_params(features: int, classes: int) -> Params:
    """Draws small parameters of a gated convolution."""
    sizes = {"in": (features, HIDDEN), "gate": (HIDDEN,), "out": (HIDDEN, classes)}
    keys = jax.random.split(jax.random.key(0), len(sizes))
    return {
        name: 0.5 * jax.random.normal(key, shape)
        for key, (name, shape) in zip(keys, sizes.items(), strict=True)
    }


def gated_convolution(params: Params, shard: Any, x: jax.Array) -> jax.Array:
    """y_i = x_i + mean_j sigmoid(<gate, |x_j - x_i|>) x_j

    No [edges, features] array is allocated: the message sees a bounded chunk of edges at a time.
    The gradient of `gate`, which it closes over, needs no declaration.
    """

    def message(sender: jax.Array, receiver: jax.Array, edge: None) -> jax.Array:
        opening = jax.nn.sigmoid(jnp.abs(sender - receiver) @ params["gate"])
        return opening[:, None] * sender

    return x + jg.parallel.propagate(shard, message, x, x, reduce="mean")


def loss_of(params: Params, shard: Any) -> jax.Array:
    """Computes the mean cross entropy over the training nodes of all shards."""
    h = gated_convolution(params, shard, jnp.tanh(shard.nodes @ params["in"]))
    losses = optax.softmax_cross_entropy_with_integer_labels(
        h @ params["out"], jnp.maximum(shard.labels, 0)
    )
    total, count = shard.sum((jnp.where(shard.train_mask, losses, 0).sum(), shard.train_mask.sum()))
    return total / count


def train(graph: jg.Graph, num_devices: int) -> list[float]:
    """Trains on `num_devices` devices and returns the loss of every step."""
    parts = jg.partition.partition(graph, num_devices, method="hash", seed=0)
    sharded = jg.parallel.shard(graph, parts, jg.parallel.make_mesh(num_devices), mode="sar")
    optimizer = optax.adam(5e-2)

    def step(params: Any, moments: Any, shard: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, shard)
        updates, moments = optimizer.update(grads, moments)
        return optax.apply_updates(params, updates), moments, loss

    on_all_shards = jg.parallel.spmd(step)
    params = initial_params(graph.num_features, graph.num_classes)
    moments, losses = optimizer.init(params), []
    for _ in range(STEPS):
        params, moments, loss = on_all_shards(params, moments, sharded)
        losses.append(float(loss))
    return losses


def main() -> None:
    jg.parallel.emulate_devices(8)
    graph = jg.transforms.degree_features(jg.datasets.load("karate"), max_degree=16)
    curves = {num_devices: train(graph, num_devices) for num_devices in (1, 2, 8)}
    for num_devices, losses in curves.items():
        print(f"{num_devices} device(s): loss {losses[0]:.6f} -> {losses[-1]:.6f}")
        np.testing.assert_allclose(losses, curves[1], rtol=1e-3)
        assert losses[-1] < 0.5 * losses[0]
    print("the same on every number of devices")


if __name__ == "__main__":
    main()
