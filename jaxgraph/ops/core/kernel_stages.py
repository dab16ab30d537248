"""The stages of a reduction that a kernel computes."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from jaxgraph.ops.core.edges import AllEdges, EdgeGroup, EdgeGroups, match_variation
from jaxgraph.ops.core.messages import Inputs, Wanted, floating_leaves, start_after
from jaxgraph.ops.core.running import Places, Pulled, zero_gradients
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.core.stored import when_ready

Pytree = Any


@dataclasses.dataclass(frozen=True)
class KernelStages(Stages):
    """Base of stages that kernels compute: a subclass folds a group of edges, and pulls through it.

    Both continue from an earlier result in place, which has no messages of nodes to themselves
    still to come. A subclass whose states and adjoints have their own form overrides `finish` and
    `adjoint` too.
    """

    def fold_over(self, over: EdgeGroup, inputs: Inputs, before: Pytree, num_rows: int) -> Pytree:
        """The state [rows, ...] after the messages of a group."""
        raise NotImplementedError(f"{type(self).__name__} has no fold")

    def pull_over(
        self, over: EdgeGroup, inputs: Inputs, adjoint: Pytree, wanted: Wanted, before: Inputs
    ) -> Inputs:
        """Gradients of the floating inputs, as lists."""
        raise NotImplementedError

    def fold(self, block: AllEdges, inputs: Inputs) -> Pytree:
        return self.fold_over(block.as_group, inputs, None, block.receiver_rows)

    def fold_group(
        self,
        edges: EdgeGroups,
        group: jax.Array | int,
        inputs: Inputs,
        state: Pytree,
        position: jax.Array,
        after: jax.Array | None,
    ) -> tuple[Pytree, Pytree]:
        rows = jax.tree.leaves(state)[0].shape[0]
        over = EdgeGroup(edges, _group_after(group, after))
        state = self.fold_over(over, inputs, state, rows)
        return state, state

    def pull(self, block: AllEdges, inputs: Inputs, adjoint: Pytree, wanted: Wanted) -> Inputs:
        grads = start_after(zero_gradients(inputs), when_ready(adjoint))
        grads = match_variation(grads, (block.edges, inputs, adjoint, self.reducer))
        nothing = Inputs([], [], [], [])
        pulled = self.pull_over(block.as_group, inputs, adjoint, wanted, nothing)
        return Inputs(*(new or old for new, old in zip(pulled.parts, grads.parts, strict=True)))

    def pull_group(
        self,
        edges: EdgeGroups,
        group: jax.Array | int,
        inputs: Inputs,
        adjoint: Pytree,
        wanted: Wanted,
        gradients: Inputs,
        places: Places,
        after: jax.Array | None,
        *,
        fresh: bool = False,
    ) -> Pulled:
        over = EdgeGroup(edges, _group_after(group, after))
        # Gradients for another part's rows do not continue from this part's.
        away = [side for side in ("sender", "receiver") if getattr(places, side) is None]
        before = dataclasses.replace(gradients, **{side: [] for side in away})
        pulled, answer = self.pull_over(over, inputs, adjoint, wanted, before), None
        for side in away:
            if getattr(wanted, side):
                answer = _rounded(getattr(pulled, side), getattr(inputs, side))
            pulled = dataclasses.replace(pulled, **{side: getattr(gradients, side)})
        return Pulled(pulled, answer, (answer, pulled.sender, pulled.receiver))


def _group_after(group: jax.Array | int, after: jax.Array | None) -> jax.Array | int:
    """The number of a group, made to depend on `after` (0; None: no dependency)."""
    return group if after is None else group + after


def _rounded(rows: list[jax.Array], likes: Pytree) -> list[jax.Array]:
    """Rounds rows to the type of the inputs, so that rows of 16 bits travel as such."""
    pairs = zip(rows, floating_leaves(likes), strict=True)
    return [leaf.astype(like.dtype) for leaf, like in pairs]
