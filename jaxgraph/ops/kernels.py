"""Which messages have kernels of their own, and reductions that take one where there is one.

A kernel reduces the edges of one group in compressed rows and continues from an earlier result in
place. What no kernel knows is computed a chunk of edges at a time (`jaxgraph.ops.messages`).
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from jaxgraph.ops.cpu.library import missing
from jaxgraph.ops.cpu.messages import cpu_kernel
from jaxgraph.ops.dispatch import check_name
from jaxgraph.ops.edges import EdgeGroup, EdgeGroups
from jaxgraph.ops.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.reducers import Reducer

__all__ = ["Kernel", "WholeKernel", "find_kernel", "usable_implementation"]

Pytree = Any


class Kernel(Protocol):
    """A reduction of messages of one kind."""

    def fold(self, over: EdgeGroup, inputs: Inputs, before: Pytree, num_rows: int) -> Pytree:
        """The reducer's state [rows, ...] after the messages of a group.

        Args:
          over: the edges.
          inputs: what messages are made from.
          before: the state to continue from, not with `over.missing`; None: nothing has been taken
            in.
          num_rows: rows of the state.

        Returns:
          The state.
        """
        ...

    def pull(
        self, over: EdgeGroup, inputs: Inputs, adjoint: Pytree, wanted: Wanted, before: Inputs
    ) -> Inputs:
        """Gradients of the floating inputs, as lists.

        Args:
          over, inputs: as for `fold`.
          adjoint: `reducer.adjoint(...)`, or that of a `WholeKernel`, one row per row of
            `inputs.receiver`.
          wanted: which gradients are needed.
          before: running gradients, as lists, not with `over.missing`; an empty list: none so far.

        Returns:
          For every wanted part the running gradients with those of the group added, edges in slot
          order; what is not wanted as it was.
        """
        ...


@runtime_checkable
class WholeKernel(Kernel, Protocol):
    """A kernel that is faster where the edges of one group are all that there are."""

    def reduce(self, over: EdgeGroup, inputs: Inputs) -> tuple[Pytree, Pytree]:
        """What `reducer.finish` makes of the state that `fold` returns.

        Args:
          over, inputs: as for `fold`.

        Returns:
          Outputs, one row per row of `inputs.receiver`, and what is kept for the backward.
        """
        ...

    def adjoint(self, outputs: Pytree, kept: Pytree, gradient: Pytree) -> Pytree:
        """What `pull` may be given in place of `reducer.adjoint(...)`.

        Args:
          outputs, kept: what `reduce` returned.
          gradient: of the outputs.

        Returns:
          One row per row of `inputs.receiver`.
        """
        ...


def usable_implementation(name: str | None, platform: str) -> str:
    """Which kernels reduce messages on devices of a platform.

    Args:
      name: the ones asked for: "cpu" or "xla"; None: the fastest that can be used.
      platform: of the devices, such as "cpu".

    Returns:
      The name.

    Raises:
      ValueError: there are none of that name.
      NotImplementedError: those asked for cannot be used.
    """
    if name is not None:
        check_name("implementation", name, ("cpu", "xla"))
    if name == "xla":
        return "xla"
    reason = missing() if platform == "cpu" else f"runs on cpu, and the devices are {platform}"
    if not reason:
        return "cpu"
    if name == "cpu":
        raise NotImplementedError(
            f"implementation 'cpu' {reason}; implementation=None takes one that can be used"
        )
    return "xla"


def find_kernel(
    edges: EdgeGroups, message: MessageFn, reducer: Reducer, inputs: Inputs
) -> Kernel | None:
    """The kernel for messages on some edges.

    Args:
      edges: whose `implementation` says which kernels may be used.
      message, reducer, inputs: what has to be reduced.

    Returns:
      The kernel, or None: there is none.
    """
    return cpu_kernel(message, reducer, inputs) if edges.implementation == "cpu" else None
