"""The stages of a reduction of messages, and the one place that chooses what computes them.

A reduction folds the edges of one group after another into a state, finishes the state, and pulls a
gradient back through each group. What computes this, a kernel or XLA, is chosen once for a
reduction, and once for its pull, which then choose the same: by the implementation that the edges
were placed for, the message, the reducer and the types. No stage runs a collective, and each can be
compiled alone.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

import jax

from jaxgraph.ops.core.chunk_stages import ByChunks, WholeGraph
from jaxgraph.ops.core.edges import EdgeGroup, EdgeGroups, match_variation
from jaxgraph.ops.core.kernels import FinishingKernel, Kernel, WholeKernel, find_kernel
from jaxgraph.ops.core.messages import (
    Inputs,
    MessageFn,
    Wanted,
    finish_messages,
    floating_leaves,
    start_after,
)
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.core.running import Places, Pulled, zero_gradients
from jaxgraph.ops.core.stored import when_ready
from jaxgraph.ops.xla.whole_graph import fits_whole

if TYPE_CHECKING:
    from jaxgraph.ops.core.blocks import Block

__all__ = ["Stages", "choose_stages", "has_kernel"]

Pytree = Any


class Stages(Protocol):
    """What computes a reduction, stage by stage.

    `inputs` are what messages are made from: arrays by sender row, receiver row and edge slot.
    """

    @property
    def implementation(self) -> str:
        """What computes: "xla", "cpu" or "mosaic_gpu"."""
        ...

    def reduce(self, block: Block, inputs: Inputs) -> tuple[Pytree, Pytree]:
        """`finish` of `fold`, where a block has all edges.

        Args:
          block: the edges.
          inputs: see above.

        Returns:
          As `finish`.
        """
        ...

    def fold(self, block: Block, inputs: Inputs) -> Pytree:
        """The state [receiver rows, ...] after all messages of a block.

        Args:
          block, inputs: as for `reduce`.

        Returns:
          The state.
        """
        ...

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
        ...

    def finish(self, state: Pytree, inputs: Inputs) -> tuple[Pytree, Pytree]:
        """What a reducer makes of a state that all messages have been folded into.

        Args:
          state: the last one.
          inputs: see above, of any group.

        Returns:
          Outputs [receiver rows, ...] in the type of the messages, and what `adjoint` needs.
        """
        ...

    def adjoint(self, outputs: Pytree, kept: Pytree, gradient: Pytree) -> Pytree:
        """The arrays of the receivers that a pull reads.

        Args:
          outputs, kept: what `finish` returned, or `reduce`.
          gradient: of the outputs.

        Returns:
          One row per receiver row.
        """
        ...

    def pull(self, block: Block, inputs: Inputs, adjoint: Pytree, wanted: Wanted) -> Inputs:
        """Gradients, as lists, of the floating inputs of the messages of a block.

        Args:
          block, inputs: as for `reduce`.
          adjoint: what `adjoint` returned.
          wanted: which gradients are needed; the others are zeros.

        Returns:
          `Inputs` of lists of gradients.
        """
        ...

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
    ) -> Pulled:
        """The running gradients with those of one more group.

        Args:
          edges, group, inputs, after: as for `fold_group`.
          adjoint, wanted: as for `pull`.
          gradients: the running gradients, as lists.
          places: where rows are added; at most one end may be None.

        Returns:
          The new gradients.
        """
        ...


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
        return ByKernel(kernel, message, reducer, edges.chunk, edges.implementation)
    whole = fits_whole(edges, message, reducer, inputs)
    return (WholeGraph if whole else ByChunks)(message, reducer, edges.chunk)


def has_kernel(implementation: str, message: MessageFn, reducer: Reducer, inputs: Inputs) -> bool:
    """Tells whether `choose_stages` takes the implementation that edges were placed for."""
    if implementation == "xla":
        return True
    return find_kernel(implementation, message, reducer, inputs) is not None


@dataclasses.dataclass(frozen=True)
class ByKernel:
    """See `Stages`; states and adjoints are the kernel's where it has a form of its own.

    Attributes:
      kernel: what computes.
      message, reducer: what is reduced.
      chunk: edges that the message function is called with, for its type.
      implementation: whose kernel it is.
    """

    kernel: Kernel
    message: MessageFn
    reducer: Reducer
    chunk: int
    implementation: str

    def reduce(self, block: Block, inputs: Inputs) -> tuple[Pytree, Pytree]:
        if isinstance(self.kernel, WholeKernel):
            return self.kernel.reduce(_all_of(block), inputs)
        return self.finish(self.fold(block, inputs), inputs)

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
        return finish_messages(self.message, self.reducer, inputs, self.chunk, state)

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


def _all_of(block: Block) -> EdgeGroup:
    return EdgeGroup(block.edges, 0, block.missing_self_loop)


def _group_after(group: jax.Array | int, after: jax.Array | None) -> jax.Array | int:
    """The number of a group, known only when `after` is (0, or None: at once)."""
    return group if after is None else group + after


def _rounded(rows: list[jax.Array], likes: Pytree) -> list[jax.Array]:
    """In the type of the inputs, so that rows of 16 bits travel to other parts as such."""
    pairs = zip(rows, floating_leaves(likes), strict=True)
    return [leaf.astype(like.dtype) for leaf, like in pairs]
