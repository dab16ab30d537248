"""The stages of a reduction of messages, and the one place that chooses what computes them.

A reduction folds the edges of one group after another into a state, finishes the state, and pulls a
gradient back through each group. What computes this, a kernel or XLA, is chosen once for a
reduction, and once for its pull, which then choose the same: by the implementation that the edges
were placed for, the message, the reducer and the types. No stage runs a collective, and each can be
compiled alone.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.edges import EdgeGroup, EdgeGroups, match_variation
from jaxgraph.ops.core.kernels import FinishingKernel, Kernel, WholeKernel, find_kernel
from jaxgraph.ops.core.messages import (
    Inputs,
    MessageFn,
    Pullback,
    Wanted,
    finish_messages,
    floating_leaves,
    message_shapes,
    pull_edges,
    pull_messages,
    reduce_messages,
    start_after,
)
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.core.rows import take_rows, with_rows_from
from jaxgraph.ops.core.running import Places, Pulled, add_at, merge_at, zero_gradients
from jaxgraph.ops.core.self_messages import pull_self_messages, reduce_self_messages
from jaxgraph.ops.core.stored import when_ready
from jaxgraph.ops.xla.whole_graph import fits_whole, pull_whole, reduce_whole, weigh_edges

if TYPE_CHECKING:
    from jaxgraph.ops.core.blocks import Block

__all__ = ["ByKernel", "Stages", "WholeGraph", "choose_stages", "has_kernel"]

Pytree = Any


def choose_stages(
    edges: EdgeGroups, message: MessageFn, reducer: Reducer, inputs: Inputs
) -> Stages:
    """Chooses what reduces messages.

    Args:
      edges: whose `implementation` says which kernels may be used.
      message, reducer, inputs: what is reduced; of the inputs only structure, shapes and types are
        looked at, which are the same for all groups.

    Returns:
      The stages.

    Raises:
      ValueError: an array of `inputs.edge` does not have one row per slot.
    """
    slots = edges.by_receiver.neighbors.shape[0]
    for leaf in jax.tree.leaves(inputs.edge):
        if leaf.shape[:1] != (slots,):
            raise ValueError(
                f"an array of edge data has shape {leaf.shape}; expected one row per edge slot of "
                f"the shard, [{slots}, ...], as shard.edges has"
            )
    kernel = find_kernel(edges.implementation, message, reducer, inputs)
    if kernel is not None:
        return ByKernel(message, reducer, edges.chunk, edges.implementation, kernel=kernel)
    whole = fits_whole(edges, message, reducer, inputs)
    return (WholeGraph if whole else Stages)(message, reducer, edges.chunk)


def has_kernel(implementation: str, message: MessageFn, reducer: Reducer, inputs: Inputs) -> bool:
    """Tells whether `choose_stages` takes the implementation that edges were placed for."""
    if implementation == "xla":
        return True
    return find_kernel(implementation, message, reducer, inputs) is not None


@dataclasses.dataclass(frozen=True)
class Stages:
    """What computes a reduction, stage by stage: here XLA, a chunk of edges at a time.

    `inputs` are what messages are made from: arrays by sender row, receiver row and edge slot.
    States and adjoints are the reducer's.

    Attributes:
      message, reducer: what is reduced.
      chunk: edges that the message function is called with.
      implementation: what computes: "xla", "cpu" or "mosaic_gpu".
    """

    message: MessageFn
    reducer: Reducer
    chunk: int
    implementation: str = "xla"

    def reduce(self, block: Block, inputs: Inputs) -> tuple[Pytree, Pytree]:
        """`finish` of `fold`, where a block has all edges.

        Args:
          block: the edges.
          inputs: see above.

        Returns:
          As `finish`.
        """
        return self.finish(self.fold(block, inputs), inputs)

    def fold(self, block: Block, inputs: Inputs) -> Pytree:
        """The state [receiver rows, ...] after all messages of a block.

        Args:
          block, inputs: as for `reduce`.

        Returns:
          The state.
        """
        edges, missing, reducer = block.edges, block.missing_self_loop, self.reducer
        empty = reducer.empty(message_shapes(self.message, inputs, self.chunk), block.receiver_rows)
        if missing is None:
            return self._fold_all(edges, inputs, empty)
        state = start_after(empty, when_ready(inputs))
        state = match_variation(state, (edges, inputs, reducer))
        state = reduce_self_messages(
            block.node_ids, missing, self.chunk, self.message, reducer, inputs, state
        )
        return self._fold_more(edges, inputs, state)

    def _fold_all(self, edges: EdgeGroups, inputs: Inputs, empty: Pytree) -> Pytree:
        """The state after group 0 alone."""
        compact = reduce_messages(edges, 0, self.message, self.reducer, inputs)
        return _spread(compact, edges.by_receiver.position, empty)

    def _fold_more(self, edges: EdgeGroups, inputs: Inputs, state: Pytree) -> Pytree:
        """The state after group 0 as well."""
        position = edges.by_receiver.position
        return self.fold_group(edges, 0, inputs, state, position, when_ready(state))[0]

    def fold_group(
        self,
        edges: EdgeGroups,
        group: jax.Array | int,
        inputs: Inputs,
        state: Pytree,
        position: jax.Array,
        after: jax.Array | None,
    ) -> tuple[Pytree, Pytree]:
        """The state after the messages of one more group.

        Args:
          edges, group: the edges.
          inputs: see above.
          state: what `fold` returned, or this.
          position: int32 [rows to change], the compact row of each row, -1: none.
          after: as for `jaxgraph.ops.core.messages.reduce_messages`.

        Returns:
          The new state, and arrays that exist when it does.
        """
        compact = reduce_messages(edges, group, self.message, self.reducer, inputs, after)
        return merge_at(self.reducer, state, compact, position), compact

    def finish(self, state: Pytree, inputs: Inputs) -> tuple[Pytree, Pytree]:
        """What a reducer makes of a state that all messages have been folded into.

        Args:
          state: the last one.
          inputs: see above, of any group.

        Returns:
          Outputs [receiver rows, ...] in the type of the messages, and what `adjoint` needs.
        """
        return finish_messages(self.message, self.reducer, inputs, self.chunk, state)

    def adjoint(self, outputs: Pytree, kept: Pytree, gradient: Pytree) -> Pytree:
        """The arrays of the receivers that a pull reads.

        Args:
          outputs, kept: what `finish` returned, or `reduce`.
          gradient: of the outputs.

        Returns:
          One row per receiver row.
        """
        return self.reducer.adjoint(outputs, kept, gradient)

    def pull(self, block: Block, inputs: Inputs, adjoint: Pytree, wanted: Wanted) -> Inputs:
        """Gradients, as lists, of the floating inputs of the messages of a block.

        Args:
          block, inputs: as for `reduce`.
          adjoint: what `adjoint` returned.
          wanted: which gradients are needed; the others are zeros.

        Returns:
          `Inputs` of lists of gradients.
        """
        edges, missing = block.edges, block.missing_self_loop
        after = when_ready(adjoint)
        grads = start_after(zero_gradients(inputs), after)
        grads = match_variation(grads, (edges, inputs, adjoint, self.reducer))
        if missing is not None:
            own = pull_self_messages(
                block.node_ids, missing, self.chunk, self.message, self.reducer, inputs, adjoint
            )
            sender = _head_replaced(grads.sender, own.sender)
            grads = Inputs(own.params, sender, own.receiver, grads.edge)
            after = when_ready(own.sender)
        return self._pull_all(edges, inputs, adjoint, wanted, grads, after)

    def _pull_all(
        self,
        edges: EdgeGroups,
        inputs: Inputs,
        adjoint: Pytree,
        wanted: Wanted,
        gradients: Inputs,
        after: jax.Array,
    ) -> Inputs:
        """The running gradients with those of group 0."""
        places = Places(edges.by_sender.position, edges.by_receiver.position)
        given = (inputs, adjoint, wanted, gradients, places, after)
        return self.pull_group(edges, 0, *given, fresh=True).gradients

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
        """The running gradients with those of one more group.

        Args:
          edges, group, inputs, after: as for `fold_group`.
          adjoint, wanted: as for `pull`.
          gradients: the running gradients, as lists.
          places: where rows are added; at most one end may be None.
          fresh: whether the running gradients of edges are 0 and need not be read.

        Returns:
          The new gradients.
        """
        # All but the place where rows are added is the same for the three orders of edges.
        given: dict[str, Any] = {"message": self.message, "reducer": self.reducer}
        given |= {"inputs": inputs, "adjoint": adjoint}
        pull = partial(pull_messages, edges, group=group, **given)
        answer, done = None, Pullback([], [])
        want_params = wanted.params
        if wanted.receiver:
            done = pull("receiver", want_params=want_params, after=after)
            want_params, after = False, when_ready((done.rows, done.params))
            answer, rows = _settled(gradients.receiver, done.rows, places.receiver)
            gradients = _added(gradients, done.params, receiver=rows)
        if wanted.edge:
            totals, options = gradients.edge, {"want_params": want_params, "after": after}
            options["fresh"] = fresh
            edge, params = pull_edges(edges, group=group, totals=totals, **given, **options)
            want_params, after = False, when_ready((edge, params))
            gradients = _added(gradients, params, edge=edge)
        if wanted.by_sender:
            done = pull("sender", want_params=want_params, after=after)
            sent, rows = _settled(gradients.sender, done.rows, places.sender)
            answer = answer if sent is None else sent
            gradients = _added(gradients, done.params, sender=rows)
        return Pulled(gradients, answer, done.rows)


@dataclasses.dataclass(frozen=True)
class WholeGraph(Stages):
    """All rows at once where the edges are all that a graph has (`jaxgraph.ops.xla.whole_graph`).

    What has one value per edge is computed by chunks all the same, and so are further groups.
    """

    def _fold_all(self, edges: EdgeGroups, inputs: Inputs, empty: Pytree) -> Pytree:
        return reduce_whole(edges, self.message, self.reducer, inputs)

    def _fold_more(self, edges: EdgeGroups, inputs: Inputs, state: Pytree) -> Pytree:
        whole = reduce_whole(edges, self.message, self.reducer, inputs)
        return self.reducer.merge(state, whole)

    def _pull_all(
        self,
        edges: EdgeGroups,
        inputs: Inputs,
        adjoint: Pytree,
        wanted: Wanted,
        gradients: Inputs,
        after: jax.Array,
    ) -> Inputs:
        given = (self.message, self.reducer, inputs, adjoint)
        weights = weigh_edges(edges, *given)
        # The gradient of parameters comes with that of one end, a chunk of edges at a time.
        with_params = wanted.params and not wanted.edge
        sides = ("sender", "receiver")
        if with_params:
            sides = ("sender",) if wanted.receiver else ()
        for side in sides:
            if getattr(wanted, side):
                rows = pull_whole(edges, side, *given, weights)
                totals = [t + part for t, part in zip(getattr(gradients, side), rows, strict=True)]
                wanted = dataclasses.replace(wanted, **{side: False})
                gradients = dataclasses.replace(gradients, **{side: totals})
        return super()._pull_all(edges, inputs, adjoint, wanted, gradients, after)


@dataclasses.dataclass(frozen=True)
class ByKernel(Stages):
    """One of `kernels`, whose states and adjoints are its own where it has a form for them.

    Attributes:
      kernel: what computes.
    """

    kernel: Kernel = dataclasses.field(kw_only=True)

    def reduce(self, block: Block, inputs: Inputs) -> tuple[Pytree, Pytree]:
        if isinstance(self.kernel, WholeKernel):
            return self.kernel.reduce(_all_of(block), inputs)
        return super().reduce(block, inputs)

    def fold(self, block: Block, inputs: Inputs) -> Pytree:
        return self.kernel.fold(_all_of(block), inputs, None, block.receiver_rows)

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
        state = self.kernel.fold(over, inputs, state, rows)
        return state, state

    def finish(self, state: Pytree, inputs: Inputs) -> tuple[Pytree, Pytree]:
        if isinstance(self.kernel, FinishingKernel):
            return self.kernel.finish(state, inputs)
        return super().finish(state, inputs)

    def adjoint(self, outputs: Pytree, kept: Pytree, gradient: Pytree) -> Pytree:
        of = self.kernel if isinstance(self.kernel, FinishingKernel) else self.reducer
        return of.adjoint(outputs, kept, gradient)

    def pull(self, block: Block, inputs: Inputs, adjoint: Pytree, wanted: Wanted) -> Inputs:
        grads = start_after(zero_gradients(inputs), when_ready(adjoint))
        grads = match_variation(grads, (block.edges, inputs, adjoint, self.reducer))
        nothing = Inputs([], [], [], [])
        pulled = self.kernel.pull(_all_of(block), inputs, adjoint, wanted, nothing)
        parts = ("params", "sender", "receiver", "edge")
        return Inputs(*(getattr(pulled, part) or getattr(grads, part) for part in parts))

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
        # What answers another table starts from nothing.
        away = [side for side in ("sender", "receiver") if getattr(places, side) is None]
        before = dataclasses.replace(gradients, **{side: [] for side in away})
        pulled, answer = self.kernel.pull(over, inputs, adjoint, wanted, before), None
        for side in away:
            if getattr(wanted, side):
                answer = _rounded(getattr(pulled, side), getattr(inputs, side))
            pulled = dataclasses.replace(pulled, **{side: getattr(gradients, side)})
        return Pulled(pulled, answer, (answer, pulled.sender, pulled.receiver))


def _spread(compact: Pytree, position: jax.Array, otherwise: Pytree) -> Pytree:
    """Compact rows at the rows that they stand for."""
    has = position >= 0
    found = take_rows(compact, jnp.maximum(position, 0))
    return jax.tree.map(
        lambda new, other: jnp.where(has.reshape(-1, *(1,) * (new.ndim - 1)), new, other),
        found,
        otherwise,
    )


def _settled(
    totals: list[jax.Array], rows: list[jax.Array], position: jax.Array | None
) -> tuple[list[jax.Array] | None, list[jax.Array]]:
    """Compact rows as an answer, or added to the totals."""
    if position is None:
        return rows, totals
    return None, add_at(totals, rows, position)


def _head_replaced(totals: list[jax.Array], heads: list[jax.Array]) -> list[jax.Array]:
    """Arrays of zeros whose first rows are replaced."""
    return [
        head if head.shape == total.shape else with_rows_from(total, 0, head)
        for total, head in zip(totals, heads, strict=True)
    ]


def _added(gradients: Inputs, params: list[jax.Array], **parts: list[jax.Array]) -> Inputs:
    """Running gradients with those of the parameters added and other parts replaced."""
    if params:
        parts["params"] = [t + part for t, part in zip(gradients.params, params, strict=True)]
    return dataclasses.replace(gradients, **parts)


def _all_of(block: Block) -> EdgeGroup:
    return EdgeGroup(block.edges, 0, block.missing_self_loop)


def _group_after(group: jax.Array | int, after: jax.Array | None) -> jax.Array | int:
    """The number of a group, known only when `after` is (0, or None: at once)."""
    return group if after is None else group + after


def _rounded(rows: list[jax.Array], likes: Pytree) -> list[jax.Array]:
    """In the type of the inputs, so that rows of 16 bits travel to other parts as such."""
    pairs = zip(rows, floating_leaves(likes), strict=True)
    return [leaf.astype(like.dtype) for leaf, like in pairs]
