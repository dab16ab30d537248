"""Moves the variables of a model and its optimizer to the mesh of a sharded graph, and back."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jaxgraph.parallel import ShardedGraph, place_rows
from jaxgraph.parallel.spmd import rows_prefix
from jaxgraph.train.arguments import check_optimizer, checked_graph
from jaxgraph.train.identity import Optimizer, comparable
from jaxgraph.train.latest_programs import LatestPrograms
from jaxgraph.train.objective import Split, split_model
from pallas_kernels.pytrees import pytree

Pytree = Any
LEARNERS = 4
"""The number of learners, or optimizers, used last for which compiled programs are cached."""


@pytree
class TrainState:
    """The variables and the optimizer state, which a training step changes.

    Attributes:
      params: the parameters; those with a row per node are split over the shards.
      statistics: the other variables of the model, such as those of BatchNorm.
      optimizer_state: the optimizer's state.
    """

    params: nnx.State
    statistics: nnx.State
    optimizer_state: Pytree


def initial_state(
    model: nnx.Module, sharded: ShardedGraph, optimizer: optax.GradientTransformation
) -> TrainState:
    """Places a model and a new optimizer state on a graph's devices; the model retains its arrays.

    Args:
      model: the model.
      sharded: the graph.
      optimizer: a transformation of optax.

    Returns:
      The state before the first training step.

    Raises:
      ValueError: an argument is of the wrong kind.
    """
    sharded = checked_graph(model, sharded)
    check_optimizer(optimizer, model)
    _, params, statistics = place_variables(split_model(model), sharded)
    optimizer_state = _fresh(comparable(optimizer))(params, sharded)
    return TrainState(params, statistics, optimizer_state)


@lru_cache(maxsize=LEARNERS)
def _fresh(optimizer: Optimizer) -> LatestPrograms:
    def make(params: nnx.State, sharded: ShardedGraph) -> Pytree:
        # Copied: an optimizer state may contain the parameters themselves (averages, look-ahead).
        state = _copies(optimizer.transformation.init(params))
        return jax.lax.with_sharding_constraint(state, shardings(state, sharded))

    return LatestPrograms(make)


def replicate(value: Any, sharded: ShardedGraph) -> jax.Array:
    """Copies an array to all devices of a graph by explicit transfers, for `jax.transfer_guard`."""
    devices = sharded.mesh.local_devices
    sharding = NamedSharding(sharded.mesh, PartitionSpec())
    copies = [jax.device_put(np.asarray(value), device) for device in devices]
    return jax.make_array_from_single_device_arrays(np.shape(value), sharding, copies)


def replicated_shape(dtype: Any, sharded: ShardedGraph) -> Any:
    """The shape of a replicated scalar, with its sharding."""
    sharding = NamedSharding(sharded.mesh, PartitionSpec())
    return jax.ShapeDtypeStruct((), dtype, sharding=sharding)


def random_key(seed: int, sharded: ShardedGraph) -> jax.Array:
    """Makes the random key of a seed on all devices of a graph."""
    placed = replicate(np.asarray(seed), sharded)
    return jax.jit(jax.random.key, out_shardings=placed.sharding)(placed)


def abstract_state(
    model: nnx.Module, optimizer: optax.GradientTransformation, sharded: ShardedGraph
) -> TrainState:
    """Returns `initial_state` as shapes: its leaves are `jax.ShapeDtypeStruct` with shardings."""
    _, params, statistics = abstract_variables(split_model(model), sharded)
    optimizer_state: Any = jax.eval_shape(optimizer.init, params)
    of_leaves = shardings(optimizer_state, sharded)
    return TrainState(params, statistics, jax.tree.map(as_shape, optimizer_state, of_leaves))


def abstract_variables(model: Split, sharded: ShardedGraph) -> Split:
    """Returns the result of `place_variables` as shapes with shardings."""
    placed = place_rows(jax.tree.map(as_shape, model), sharded)
    return jax.tree.map(as_shape, placed, shardings(placed, sharded))


def place_variables(model: Split, sharded: ShardedGraph) -> Split:
    """Copies variables to the devices of a graph, and rows of nodes to their shards."""
    placed = place_rows(model, sharded)
    of_leaves = shardings(placed, sharded)
    # Copied: a replicated array may share the model's own memory on one device, and a step that
    # donates its state must not reuse that.
    return jax.jit(_copies, out_shardings=of_leaves)(jax.device_put(placed, of_leaves))


def shardings(tree: Pytree, sharded: ShardedGraph) -> Pytree:
    """Returns the sharding of every leaf of placed variables, or of their optimizer state."""
    rows = sharded.num_parts * sharded.manifest.node_rows

    def of_part(word: str, part: Pytree) -> Pytree:
        def of_leaf(leaf: Any) -> NamedSharding:
            split = word == "rows" and leaf.ndim > 0 and leaf.shape[0] == rows
            spec = PartitionSpec(sharded.axis) if split else PartitionSpec()
            return NamedSharding(sharded.mesh, spec)

        return jax.tree.map(of_leaf, part)

    return jax.tree.map(of_part, rows_prefix(tree), tree)


def restore(model: nnx.Module, params: nnx.State, statistics: nnx.State) -> None:
    """Writes parameters and statistics to a model, as arrays of its own without a mesh."""
    variables = jax.device_get((params, statistics))
    # Copied: on CPU device_put may reuse the memory of its argument.
    nnx.update(model, *jax.tree.map(lambda leaf: jax.device_put(np.copy(leaf)), variables))


def _copies(tree: Pytree) -> Pytree:
    return jax.tree.map(jnp.copy, tree)


def as_shape(leaf: Any, sharding: Any = None) -> Any:
    """The shape and the type of an array, with a sharding."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
