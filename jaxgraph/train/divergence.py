"""The place where a run diverged: the loss, and the first parameter that is not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxgraph.train.epoch import EpochProgram
from jaxgraph.train.history import EpochRecord
from jaxgraph.train.state import TrainState
from jaxgraph.train.streamed_epoch import StreamedEpoch

__all__ = ["diverged", "first_not_finite"]


def diverged(record: EpochRecord) -> str:
    """Names the first loss of an epoch that is not finite; "" if all are finite."""
    losses = {"training loss (dropout on)": record.loss}
    for split, name in (("train", "training loss"), ("val", "validation loss")):
        if split in record.metrics:
            losses[f"{name} after the step"] = record.metrics[split]["loss"]
    wrong = [f"{name} is {loss}" for name, loss in losses.items() if not math.isfinite(loss)]
    return f"epoch {record.epoch}: the {wrong[0]}" if wrong else ""


def first_not_finite(
    program: EpochProgram | StreamedEpoch,
    before: TrainState,
    after: TrainState,
    key: jax.Array,
    epoch: int,
) -> str:
    """Names the first parameter that an epoch has spoiled.

    Args:
      program: the epoch.
      before, after: the states before and after it.
      key: the run's random key.
      epoch: the epoch's number, from 0.

    Returns:
      A clause about its path: its value after the step, or else its gradient in the step, which is
      computed again.
    """
    path = _first(after.params)
    if path:
        return f"the first parameter that is not finite after it is {path}"
    for gradient in program.gradients(before, key, epoch):
        path = _first(gradient)
        if path:
            return f"parameters are finite, and the first gradient that is not is that of {path}"
    return "parameters and their gradients are finite"


def _first(variables: nnx.State) -> str:
    entries: Sequence[tuple[Any, Any]] = nnx.to_flat_state(variables)
    paths = [path for path, _ in entries]
    flags = jax.device_get(_are_finite([jax.tree.leaves(value) for _, value in entries]))
    wrong = [path for path, flag in zip(paths, flags, strict=True) if not flag]
    return ".".join(map(str, wrong[0])) if wrong else ""


@jax.jit
def _are_finite(leaves: list[list[jax.Array]]) -> list[jax.Array]:
    return [jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in each])) for each in leaves]
