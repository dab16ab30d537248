"""The policy of a model for a run: of a plan, or of the search that keeps a limit of memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import optax
from flax import nnx

from jaxgraph.kinds import kind_of
from jaxgraph.layers import RematPolicy
from jaxgraph.nn.stack import Stack
from jaxgraph.parallel import ShardedGraph
from jaxgraph.train.epoch import EpochProgram, abstract_arguments

if TYPE_CHECKING:
    from jaxgraph.planner.policy_search import MemoryPlan

__all__ = ["with_policy", "within_limit"]


def with_policy(model: nnx.Module, policy: Sequence[RematPolicy]) -> nnx.Module:
    """The model, with the same variables and the policy of a plan."""
    if not isinstance(model, Stack):
        raise ValueError(
            f"the plan has policies of layers, and model is {kind_of(model)}, which has none; "
            "expected a jaxgraph.nn.Stack, such as the one that the plan was made for"
        )
    return model.with_policy(policy)


def within_limit(
    limit: int,
    model: nnx.Module,
    graphs: tuple[ShardedGraph, ...],
    optimizer: optax.GradientTransformation,
    program_of: Callable[[nnx.Module], EpochProgram],
) -> tuple[nnx.Module, MemoryPlan]:
    """The model with the cheapest policy under which an epoch fits, and the plan; reads no data.

    Args:
      limit: bytes of one device.
      model, optimizer: of the run.
      graphs: shapes, with shardings.
      program_of: an epoch of a model on them.

    Raises:
      ValueError: nothing fits: the message names the least that works.
    """
    # The one place where training reaches up: the planner compiles steps of training.
    from jaxgraph.planner.policy_search import Needed, cheapest_fitting

    arguments = abstract_arguments(model, optimizer, graphs[0])
    resident = sum(map(_bytes, jax.tree.leaves((arguments[:2], graphs))))

    def needs(model: nnx.Module) -> Needed:
        found: list[Any] = [p.memory_analysis() for p in program_of(model).compile(*arguments)]
        most = max(
            each.output_size_in_bytes - each.alias_size_in_bytes + each.temp_size_in_bytes
            for each in found
        )
        return Needed(resident, most, max(each.host_temp_size_in_bytes for each in found))

    return cheapest_fitting(model, graphs[0], limit, needs)


def _bytes(leaf: jax.ShapeDtypeStruct) -> int:
    """Of one device."""
    assert leaf.sharding is not None
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
