"""The state of a training run between two epochs, on the host and on the mesh of a graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import PartitionSpec
from jax.tree_util import keystr, tree_flatten_with_path

from jaxgraph.parallel import ShardedGraph, gather_rows, place_rows
from jaxgraph.train.arguments import check_model, check_optimizer_kind
from jaxgraph.train.epoch import Kept
from jaxgraph.train.objective import split_model
from jaxgraph.train.state import TrainState, replicate
from pallas_kernels.pytrees import pytree

__all__ = [
    "FitState",
    "abstract_fit_state",
    "check_leaves",
    "checked_fit_state",
    "collect_fit_state",
    "described",
    "place_fit_state",
    "place_key",
]

Pytree = Any


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
        of the last epoch; None with `restore_best=False`. With `eval_params` of `fit` they are the
        evaluated parameters.
      best_val_loss: float scalar, the lowest so far; infinite before the first epoch.
      key_data: uint32 [words], `jax.random.key_data` of the run's random key.
      epoch: int32 scalar, the number of completed epochs.
      best_epoch: int32 scalar, the number of the best epoch; 0 before the first.
    """

    params: nnx.State
    statistics: nnx.State
    optimizer_state: Pytree
    best_params: nnx.State | None
    best_statistics: nnx.State | None
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
        """The parameters and statistics that `fit` leaves in the model.

        With `eval_params` and `restore_best=False`, `fit` leaves `eval_params` of these instead.
        """
        if self.best_params is None or self.best_statistics is None:
            return self.params, self.statistics
        return self.best_params, self.best_statistics


_OWNERS = {
    "params": "the model",
    "statistics": "the model",
    "best_params": "the model",
    "best_statistics": "the model",
    "optimizer_state": "the optimizer",
}


def abstract_fit_state(
    model: nnx.Module, optimizer: optax.GradientTransformation, *, restore_best: bool = True
) -> FitState:
    """Describes the state of `fit` with a model and an optimizer; computes nothing.

    Args:
      model: the model.
      optimizer: a transformation of optax.
      restore_best: as for `fit`.

    Returns:
      The target for Orbax to restore into: NumPy arrays of the right shapes and types, which repeat
      one number and take no memory. (Orbax's `v1` restores no `jax.ShapeDtypeStruct` without
      sharding, and to NumPy only if the target is NumPy.)

    Raises:
      ValueError: an argument is of the wrong kind.
    """
    check_model(model, ())
    check_optimizer_kind(optimizer)
    params, statistics = jax.eval_shape(lambda tree: tree, split_model(model)[1:])
    key_data = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    val_loss: Any = jax.ShapeDtypeStruct((), jnp.result_type(float))
    number: Any = jax.ShapeDtypeStruct((), jnp.int32)
    shapes = FitState(
        params=params,
        statistics=statistics,
        optimizer_state=jax.eval_shape(optimizer.init, params),
        best_params=params if restore_best else None,
        best_statistics=statistics if restore_best else None,
        best_val_loss=val_loss,
        key_data=key_data,
        epoch=number,
        best_epoch=number,
    )
    return jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), shapes)


def checked_fit_state(state: Any, expected: FitState) -> FitState:
    """Returns a state with the expected structure; computes nothing.

    Args:
      state: a state, perhaps of another model or optimizer.
      expected: from `abstract_fit_state`.

    Returns:
      The state, without best variables if none are expected.

    Raises:
      ValueError: `state` is no `FitState`, or does not fit the model, the optimizer or the graph.
    """
    if not isinstance(state, FitState):
        kind = f"the class {state.__name__}" if isinstance(state, type) else type(state).__name__
        raise ValueError(
            f"state is of type {kind}; expected a jaxgraph.train.FitState, the `state` of the "
            "History that fit returned. A checkpoint of Orbax is restored into the target "
            "jaxgraph.train.abstract_fit_state(model, optimizer)"
        )
    if expected.best_params is None:
        state = dataclasses.replace(state, best_params=None, best_statistics=None)
    elif state.best_params is None or state.best_statistics is None:
        raise ValueError(
            "the state holds no best parameters, since its run had restore_best=False; continue "
            "it with restore_best=False"
        )
    check_leaves(dict(described(state)), expected)
    if not 0 <= int(state.best_epoch) <= int(state.epoch):
        raise ValueError(
            f"the state is of epoch {int(state.epoch)}, but its best epoch is "
            f"{int(state.best_epoch)}; expected 0 <= best_epoch <= epoch, as in a state of fit"
        )
    return jax.tree.unflatten(jax.tree.structure(expected), jax.tree.leaves(state))


def check_leaves(have: Mapping[str, str], expected: FitState, what: str = "the state") -> None:
    """Compares a state with that of a model and an optimizer, array by array.

    Args:
      have: type and shape of every array, by path, from `described`.
      expected: from `abstract_fit_state`.
      what: the state, for messages.

    Raises:
      ValueError: an array is missing, is of another type or shape, or has no place.
    """
    want = dict(described(expected))
    of_nodes = [
        keystr(path)
        for path, part in tree_flatten_with_path(expected, is_leaf=_is_variable)[0]
        if _is_variable(part) and part.get_metadata().get("rows") == "nodes"
    ]
    for path in (*want, *have):
        if have.get(path) == want.get(path):
            continue
        owner = _OWNERS.get(path.lstrip(".").partition("[")[0].partition(".")[0], "fit")
        advice = "pass the model and the optimizer that the state was made with"
        if path in have and path in want and any(path.startswith(rows) for rows in of_nodes):
            advice += ", for the same graph, since this variable has a row per node"
        raise ValueError(
            f"{what} does not belong to {owner}: state{path} is {have.get(path, 'missing')}, "
            f"and {owner} has {want.get(path, 'none')} there; {advice}, or start a new run"
        )


def described(state: FitState) -> Iterator[tuple[str, str]]:
    """Yields the path of every leaf with its type and shape."""
    for path, leaf in tree_flatten_with_path(state)[0]:
        shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        if isinstance(shape, tuple) and dtype is not None:
            yield keystr(path), f"{dtype}{list(shape)}"
        else:
            yield keystr(path), f"of type {type(leaf).__name__}"


def _is_variable(part: Any) -> bool:
    return isinstance(part, nnx.Variable)


def place_fit_state(
    state: FitState, abstract: TrainState, sharded: ShardedGraph
) -> tuple[TrainState, Kept]:
    """Places a state on the mesh of a graph.

    Args:
      state: from `checked_fit_state`.
      abstract: the placed state as shapes with shardings, from `abstract_state`.
      sharded: the graph.

    Returns:
      The state before the next epoch, and the kept variables; the two share arrays if no best ones
      are kept.
    """
    last = TrainState(state.params, state.statistics, state.optimizer_state)
    placed = _on_mesh(last, abstract, sharded)
    params, statistics = placed.params, placed.statistics
    if state.best_params is not None:
        best = (state.best_params, state.best_statistics)
        params, statistics = _on_mesh(best, (abstract.params, abstract.statistics), sharded)
    return placed, Kept(params, statistics, replicate(np.asarray(state.best_val_loss), sharded))


def place_key(state: FitState, sharded: ShardedGraph) -> jax.Array:
    """Returns the random key of a state, typed and replicated over the devices of a graph."""
    placed = replicate(np.asarray(state.key_data), sharded)
    return jax.jit(jax.random.wrap_key_data, out_shardings=placed.sharding)(placed)


def collect_fit_state(
    state: TrainState,
    kept: Kept,
    key: jax.Array,
    epochs: tuple[int, int],
    *,
    expected: FitState,
    abstract: TrainState,
    sharded: ShardedGraph,
) -> FitState:
    """Copies the state of a run to the host, with rows of nodes in the graph's order.

    Args:
      state, kept, key: those after the last epoch.
      epochs: number of completed epochs, and number of the best epoch.
      expected: from `abstract_fit_state`, with the structure of the result.
      abstract: from `abstract_state`.
      sharded: the graph for which the state is placed.

    Returns:
      The state, the same in every process.
    """
    last = TrainState(expected.params, expected.statistics, expected.optimizer_state)
    host = _on_host(state, abstract, last, sharded)
    best: tuple[Any, Any] = (None, None)
    if expected.best_params is not None:
        of_best = (abstract.params, abstract.statistics)
        variables = (kept.params, kept.statistics)
        best = _on_host(variables, of_best, (last.params, last.statistics), sharded)
    val_loss, key_data = jax.device_get((kept.val_loss, jax.random.key_data(key)))
    return FitState(
        params=host.params,
        statistics=host.statistics,
        optimizer_state=host.optimizer_state,
        best_params=best[0],
        best_statistics=best[1],
        best_val_loss=np.asarray(val_loss),
        key_data=np.asarray(key_data),
        epoch=np.asarray(epochs[0], np.int32),
        best_epoch=np.asarray(epochs[1], np.int32),
    )


def _on_mesh(tree: Pytree, abstract: Pytree, sharded: ShardedGraph) -> Any:
    """Places leaves by the shardings of `abstract`; split leaves have a row per node."""

    def place(leaf: Any, like: jax.ShapeDtypeStruct) -> jax.Array:
        if not _is_split(like):
            return jax.device_put(leaf, like.sharding)
        return place_rows(nnx.Param(jax.device_put(leaf), rows="nodes"), sharded).get_value()

    likes, structure = jax.tree.flatten(abstract)
    leaves = jax.device_get(jax.tree.leaves(tree))
    return jax.tree.unflatten(structure, map(place, leaves, likes))


def _on_host(tree: Pytree, abstract: Pytree, expected: Pytree, sharded: ShardedGraph) -> Any:
    """Undoes `_on_mesh`; the result has the structure of `expected`."""
    leaves = [
        gather_rows(leaf, sharded) if _is_split(like) else leaf
        for leaf, like in zip(jax.tree.leaves(tree), jax.tree.leaves(abstract), strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(expected), jax.device_get(leaves))


def _is_split(like: jax.ShapeDtypeStruct) -> bool:
    return getattr(like.sharding, "spec", PartitionSpec()) != PartitionSpec()
