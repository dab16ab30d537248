"""The state of a training run between two epochs: on the mesh of a graph, and on the host."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import keystr, tree_flatten_with_path

from jaxgraph.kinds import kind_of
from jaxgraph.parallel import ShardedGraph, gather_rows, place_rows
from jaxgraph.parallel.spmd import rows_prefix, table_of
from jaxgraph.train.arguments import check_model, check_optimizer, checked_graph
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


@pytree
class Kept:
    """The variables that training leaves in the model if it ends now, and their loss.

    Attributes:
      params, statistics: of the best epoch so far.
      val_loss: the lowest so far, infinite before the first epoch.
    """

    params: nnx.State
    statistics: nnx.State
    val_loss: jax.Array


class Held(NamedTuple):
    """The arrays that devices hold between two epochs.

    Attributes:
      state: the state after the last step.
      kept: the variables to leave in the model.
      key: the run's random key.
    """

    state: TrainState
    kept: Kept
    key: jax.Array


@pytree
class FitState:
    """The state of a run of `fit` between two epochs, from which another call continues.

    Its leaves are NumPy arrays. Variables with a row per node, and their optimizer state, are
    [nodes, ...] in the graph's order, so that the run can continue on another partition and number
    of devices. The state is a pytree, which `pickle` and Orbax can save.

    Attributes:
      params: the parameters after the last epoch.
      statistics: the other variables of the model after the last epoch.
      optimizer_state: the optimizer's state after the last epoch.
      best_params, best_statistics: those of the lowest validation loss, or without validation nodes
        of the last epoch. With `eval_params` of `fit` they are the evaluated parameters.
      best_val_loss: float scalar, the lowest so far; infinite before the first epoch.
      key_data: uint32 [words], `jax.random.key_data` of the run's random key.
      epoch: int32 scalar, the number of completed epochs.
      best_epoch: int32 scalar, the number of the best epoch; 0 before the first.
    """

    params: nnx.State
    statistics: nnx.State
    optimizer_state: Pytree
    best_params: nnx.State
    best_statistics: nnx.State
    best_val_loss: np.ndarray
    key_data: np.ndarray
    epoch: np.ndarray
    best_epoch: np.ndarray

    def __repr__(self) -> str:
        # Leaves may be traced or abstract.
        sizes = [getattr(leaf, "size", 1) for leaf in jax.tree.leaves(self.params)]
        return (
            f"FitState(epoch {self.epoch}, best {self.best_epoch}, {sum(sizes):,} numbers in "
            f"{len(sizes)} parameters)"
        )

    @property
    def learned(self) -> tuple[nnx.State, nnx.State]:
        """The parameters and statistics that `fit` leaves in the model."""
        return self.best_params, self.best_statistics


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

    def of_leaf(table: str) -> NamedSharding:
        spec = PartitionSpec(sharded.axis) if table else PartitionSpec()
        return NamedSharding(sharded.mesh, spec)

    return jax.tree.map(of_leaf, _tables(tree, sharded))


def _tables(tree: Pytree, sharded: ShardedGraph) -> Pytree:
    """The table of the nodes in the rows of every leaf; "": it is the same on every device."""

    def of_part(word: str, part: Pytree) -> Pytree:
        name = table_of(part, sharded.shards) if word == "rows" else ""
        rows = sharded.shards.tables[name].node_mask.size if name else None
        return jax.tree.map(lambda leaf: name if leaf.shape[:1] == (rows,) else "", part)

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


def first_held(
    model: nnx.Module, optimizer: optax.GradientTransformation, sharded: ShardedGraph, seed: int
) -> Held:
    """The state before the first epoch, with an infinite loss."""
    state = initial_state(model, sharded, optimizer)
    val_loss = replicate(np.asarray(np.inf, jnp.result_type(float)), sharded)
    return Held(state, Kept(state.params, state.statistics, val_loss), random_key(seed, sharded))


def abstract_held(
    model: nnx.Module, optimizer: optax.GradientTransformation, sharded: ShardedGraph
) -> Held:
    """Returns the result of `first_held` as shapes with shardings."""
    state = abstract_state(model, optimizer, sharded)
    val_loss = replicated_shape(jnp.result_type(float), sharded)
    key: Any = replicated_shape(jax.eval_shape(lambda: jax.random.key(0)).dtype, sharded)
    return Held(state, Kept(state.params, state.statistics, val_loss), key)


def abstract_fit_state(model: nnx.Module, optimizer: optax.GradientTransformation) -> FitState:
    """Describes the state of `fit` with a model and an optimizer; computes nothing.

    Args:
      model: the model.
      optimizer: a transformation of optax.

    Returns:
      The target for Orbax to restore into: NumPy arrays of the right shapes and types, which repeat
      one number and take no memory. (Orbax's `v1` restores no `jax.ShapeDtypeStruct` without
      sharding, and to NumPy only if the target is NumPy.)

    Raises:
      ValueError: an argument is of the wrong kind.
    """
    check_model(model, ())
    check_optimizer(optimizer, model)
    params, statistics = jax.eval_shape(lambda tree: tree, split_model(model)[1:])
    key_data = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    val_loss: Any = jax.ShapeDtypeStruct((), jnp.result_type(float))
    number: Any = jax.ShapeDtypeStruct((), jnp.int32)
    shapes = FitState(
        params=params,
        statistics=statistics,
        optimizer_state=jax.eval_shape(optimizer.init, params),
        best_params=params,
        best_statistics=statistics,
        best_val_loss=val_loss,
        key_data=key_data,
        epoch=number,
        best_epoch=number,
    )
    return jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), shapes)


def checked_fit_state(state: Any, expected: FitState) -> FitState:
    """Returns a state with the structure that `abstract_fit_state` gives; computes nothing."""
    if not isinstance(state, FitState):
        raise ValueError(
            f"state is {kind_of(state)}; expected a jaxgraph.train.FitState, the `state` of the "
            "History that fit returned. A checkpoint of Orbax is restored into the target "
            "jaxgraph.train.abstract_fit_state(model, optimizer)"
        )
    check_leaves(described(state), expected)
    return jax.tree.unflatten(jax.tree.structure(expected), jax.tree.leaves(state))


def check_leaves(have: Mapping[str, str], expected: FitState, what: str = "the state") -> None:
    """Compares a state with that of a model and an optimizer, array by array."""
    want = described(expected)
    for path in (*want, *have):
        if have.get(path) != want.get(path):
            raise ValueError(
                f"{what} does not fit the model and the optimizer: state{path} is "
                f"{have.get(path, 'missing')}, and they have {want.get(path, 'none')} there; pass "
                "those that it was made with, for the same graph where a variable has a row per "
                "node, or start a new run"
            )


def described(state: Pytree, root: str = "") -> dict[str, str]:
    """Type and shape of every leaf, by its path, which begins with a root."""
    return {
        root + keystr(path): f"{getattr(leaf, 'dtype', type(leaf).__name__)}{list(np.shape(leaf))}"
        for path, leaf in tree_flatten_with_path(state)[0]
    }


def place_fit_state(state: FitState, abstract: TrainState, sharded: ShardedGraph) -> Held:
    """Places a state on the mesh of a graph."""
    last = TrainState(state.params, state.statistics, state.optimizer_state)
    likes = (abstract.params, abstract.statistics)
    params, statistics = _on_mesh(state.learned, likes, sharded)
    kept = Kept(params, statistics, replicate(state.best_val_loss, sharded))
    words = replicate(state.key_data, sharded)
    key = jax.jit(jax.random.wrap_key_data, out_shardings=words.sharding)(words)
    return Held(_on_mesh(last, abstract, sharded), kept, key)


def collected(
    held: Held, epoch: int, best_epoch: int, expected: FitState, sharded: ShardedGraph
) -> FitState:
    """Copies a run to the host, with rows of nodes in the graph's order; alike in all processes."""
    state, kept, key = held
    placed = FitState(
        params=state.params,
        statistics=state.statistics,
        optimizer_state=state.optimizer_state,
        best_params=kept.params,
        best_statistics=kept.statistics,
        best_val_loss=kept.val_loss,  # pyright: ignore[reportArgumentType]
        key_data=jax.device_get(jax.random.key_data(key)),
        epoch=np.asarray(epoch, np.int32),
        best_epoch=np.asarray(best_epoch, np.int32),
    )
    leaves = [
        gather_rows(leaf, sharded, table) if table else leaf
        for leaf, table in zip(
            jax.tree.leaves(placed), jax.tree.leaves(_tables(placed, sharded)), strict=True
        )
    ]
    return jax.tree.unflatten(jax.tree.structure(expected), jax.device_get(leaves))


def _on_mesh(tree: Pytree, abstract: Pytree, sharded: ShardedGraph) -> Any:
    """Places leaves by the shardings of `abstract`; split leaves have a row per node."""

    def place(leaf: Any, like: jax.ShapeDtypeStruct, table: str) -> jax.Array:
        if not table:
            return jax.device_put(leaf, like.sharding)
        rows = nnx.Param(jax.device_put(leaf), rows="nodes", table=table)
        return place_rows(rows, sharded).get_value()

    likes, structure = jax.tree.flatten(abstract)
    leaves, tables = jax.tree.leaves(tree), jax.tree.leaves(_tables(abstract, sharded))
    return jax.tree.unflatten(structure, map(place, jax.device_get(leaves), likes, tables))
