"""The policy of a model for a run: of a plan, or of the search that keeps a limit of memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxgraph.kinds import kind_of
from jaxgraph.layers import RematPolicy
from jaxgraph.nn.stack import Stack
from jaxgraph.parallel import ShardedGraph
from jaxgraph.train.aggregates import with_aggregates
from jaxgraph.train.epoch import EpochProgram, Kept
from jaxgraph.train.state import abstract_state, replicated_shape
from jaxgraph.train.step import Learner

if TYPE_CHECKING:
    from jaxgraph.planner.policy_search import MemoryPlan

__all__ = ["Planned", "model_for_run"]


class Planned(Protocol):
    """A plan that says what layers save for the backward."""

    @property
    def policy(self) -> Sequence[RematPolicy] | None:
        """One for each layer; None: as the model says."""
        ...


def model_for_run(
    model: nnx.Module,
    graphs: tuple[ShardedGraph, ...],
    optimizer: optax.GradientTransformation,
    learner_of: Callable[[nnx.Module], Learner],
    *,
    limit: int | None,
    plan: Planned | None,
    restore_best: bool,
    aggregated: int,
) -> tuple[nnx.Module, MemoryPlan | None]:
    """The model with the policy of a run, and the plan that keeps a limit; reads no data.

    Args:
      model, graphs, optimizer, restore_best: as for `EpochProgram`.
      learner_of: makes what is constant in training a model.
      limit: bytes of one device; None: there is none.
      plan: whose policy is taken; None: none.
      aggregated: for how many epochs features may be aggregated once; 0: they are not.

    Returns:
      The model, with the same variables, and the plan.

    Raises:
      ValueError: the plan has policies, and the model cannot take them; both limit and policies
        are given; or nothing fits the limit: the message names the least that works.
    """
    if plan is not None and plan.policy is not None:
        if limit is not None:
            raise ValueError(
                "memory_limit: the plan has the policies for a limit of its own; leave out "
                "memory_limit, or leave out plan"
            )
        return _with_policy(model, plan.policy), None
    if limit is None:
        return model, None
    if aggregated:
        abstract = with_aggregates(model, jax.tree.map(_shape, graphs), aggregated)
    else:
        abstract = jax.tree.map(_shape, graphs)
    return _within(limit, model, abstract, optimizer, learner_of, restore_best=restore_best)


def _with_policy(model: nnx.Module, policy: Sequence[RematPolicy]) -> nnx.Module:
    if not isinstance(model, Stack):
        raise ValueError(
            f"the plan has policies of layers, and model is {kind_of(model)}, which has none; "
            "expected a jaxgraph.nn.Stack, such as the one that the plan was made for"
        )
    return model.with_policy(policy)


def _within(
    limit: int,
    model: nnx.Module,
    graphs: tuple[ShardedGraph, ...],
    optimizer: optax.GradientTransformation,
    learner_of: Callable[[nnx.Module], Learner],
    *,
    restore_best: bool,
) -> tuple[nnx.Module, MemoryPlan]:
    # The one place where training reaches up: the planner compiles steps of training.
    from jaxgraph.planner.policy_search import Needed, cheapest_fitting

    state = abstract_state(model, optimizer, graphs[0])
    val_loss = replicated_shape(jnp.result_type(float), graphs[0])
    kept = Kept(state.params, state.statistics, val_loss)
    key = replicated_shape(jax.eval_shape(lambda: jax.random.key(0)).dtype, graphs[0])
    resident = sum(map(_bytes, jax.tree.leaves((state, kept, graphs))))

    def needs(model: nnx.Module) -> Needed:
        program = EpochProgram(learner_of(model), graphs, restore_best)
        analyses: list[Any] = [each.memory_analysis() for each in program.compile(state, kept, key)]
        new = [each.output_size_in_bytes - each.alias_size_in_bytes for each in analyses]
        temporary = [each.temp_size_in_bytes for each in analyses]
        host = max(each.host_temp_size_in_bytes for each in analyses)
        most_used = max(sum(pair) for pair in zip(new, temporary, strict=True))
        return Needed(resident, most_used, host)

    return cheapest_fitting(model, graphs[0], limit, needs)


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def _bytes(leaf: jax.ShapeDtypeStruct) -> int:
    """Of one device."""
    assert leaf.sharding is not None
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
