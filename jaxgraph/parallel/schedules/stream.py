"""The fold over parts whose rows come from the host: small programs that a loop of it calls.

Forward, a part of receivers stays on the device, and the rows of one part of senders after another
come (NeuGraph, section 3.1: the columns of the matrix of edge groups). Backward there are two
orders: by *rows*, a part of senders stays, and its gradient is complete at the end; by *columns*, a
part of receivers stays, and the gradients of the senders' rows go back to the host, which adds them
up. Messages are folded and pulled by the stages that all other schedules use.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Protocol

import jax

from jaxgraph.ops.core.choice import choose_stages
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.core.running import Places
from jaxgraph.ops.core.stages import Stages
from jaxgraph.parallel.schedules.sar import positions
from jaxgraph.parallel.shard import Shard

__all__ = ["ChunkPrograms", "Held"]

Pytree = Any


class Held(Protocol):
    """A part as a program takes it: a pytree of the arrays that it uses."""

    def part(self) -> Shard:
        """The part, in mode "sar"."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class ChunkPrograms:
    """The programs of one aggregation, each for the edges of one group.

    `part` holds a part, `step` is the distance to the other part on the ring, int32 [].

    Attributes:
      message: evaluated on chunks of edges.
      self_loops: whether nodes without an edge to themselves send themselves a message.
      wanted: the inputs whose gradients are computed.
    """

    message: MessageFn
    self_loops: bool
    wanted: Wanted

    def _stages(self, shard: Shard, reducer: Reducer, inputs: Inputs) -> Stages:
        return choose_stages(shard.incoming, self.message, reducer, inputs)

    @functools.cached_property
    def first(self) -> Any:
        """`(part, reducer, inputs) -> state`, of the edges among own rows."""

        def run(part: Held, reducer: Reducer, inputs: Inputs) -> Pytree:
            shard = part.part()
            block = shard.local_block().with_loops(self.self_loops)
            return self._stages(shard, reducer, inputs).fold(block, inputs)

        return jax.jit(run)

    @functools.cached_property
    def more(self) -> Any:
        """`(state, part, reducer, inputs, step) -> (state, token)`.

        The senders of `inputs` are rows of the part `step` steps behind. The state is donated. The
        token exists once the new state does.
        """

        def run(
            state: Pytree, part: Held, reducer: Reducer, inputs: Inputs, step: jax.Array
        ) -> tuple[Pytree, jax.Array]:
            shard = part.part()
            stages, position = self._stages(shard, reducer, inputs), positions(shard.reach, step)
            state, _ = stages.fold_group(shard.incoming, step, inputs, state, position, None)
            return state, _token(state)

        return jax.jit(run, donate_argnums=0)

    def finish(self, part: Held, reducer: Reducer, inputs: Inputs, state: Pytree) -> Any:
        """Outputs and residuals, within the program of what reads the outputs."""
        return self._stages(part.part(), reducer, inputs).finish(state, inputs)

    @functools.cached_property
    def finished(self) -> Any:
        """`finish` as a program of its own."""
        return jax.jit(self.finish)

    @functools.cached_property
    def adjoint(self) -> Any:
        """`(part, reducer, inputs, outputs, residuals, gradient) -> adjoint`, by receiver."""

        def run(
            part: Held, reducer: Reducer, inputs: Inputs, outputs: Any, kept: Any, gradient: Any
        ) -> Pytree:
            return self._stages(part.part(), reducer, inputs).adjoint(outputs, kept, gradient)

        return jax.jit(run)

    @functools.cached_property
    def pull_own(self) -> Any:
        """`(part, reducer, inputs, adjoint) -> gradients`, of the edges among own rows."""

        def run(part: Held, reducer: Reducer, inputs: Inputs, adjoint: Pytree) -> Inputs:
            shard = part.part()
            block = shard.local_block().with_loops(self.self_loops)
            return self._stages(shard, reducer, inputs).pull(block, inputs, adjoint, self.wanted)

        return jax.jit(run)

    @functools.cached_property
    def pull_column(self) -> Any:
        """`(gradients, part, reducer, inputs, adjoint, step) -> (gradients, answer, token)`.

        The senders of `inputs` are rows of the part `step` steps behind. The answer is their
        gradient. The gradients are donated.
        """

        def run(
            grads: Inputs, part: Held, reducer: Reducer, inputs: Inputs, adjoint: Pytree, step: Any
        ) -> tuple[Inputs, list[jax.Array], jax.Array]:
            shard = part.part()
            stages = self._stages(shard, reducer, inputs)
            places = Places(None, positions(shard.reach, step))
            return self._pulled(stages, shard.incoming, step, inputs, adjoint, grads, places)

        return jax.jit(run, donate_argnums=0)

    @functools.cached_property
    def pull_row(self) -> Any:
        """`(gradients, part, reducer, inputs, adjoint, step) -> (gradients, answer, token)`.

        The receivers of `inputs` and the rows of `adjoint` are of the part `step` steps ahead. The
        answer is the receivers' gradient. The gradients are donated.
        """

        def run(
            grads: Inputs, part: Held, reducer: Reducer, inputs: Inputs, adjoint: Pytree, step: Any
        ) -> tuple[Inputs, list[jax.Array], jax.Array]:
            shard = part.part()
            edges = shard.outgoing
            assert edges is not None
            stages = choose_stages(edges, self.message, reducer, inputs)
            places = Places(positions(shard.send, step), None)
            return self._pulled(stages, edges, step - 1, inputs, adjoint, grads, places)

        return jax.jit(run, donate_argnums=0)

    def _pulled(
        self,
        stages: Stages,
        edges: Any,
        group: Any,
        inputs: Inputs,
        adjoint: Pytree,
        grads: Inputs,
        places: Places,
    ) -> tuple[Inputs, list[jax.Array], jax.Array]:
        pulled = stages.pull_group(edges, group, inputs, adjoint, self.wanted, grads, places, None)
        answer = [] if pulled.answer is None else list(pulled.answer)
        return pulled.gradients, answer, _token((pulled.gradients, answer))


def _token(tree: Pytree) -> jax.Array:
    """One number of an array, which may be awaited after the array is donated."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.size]
    return leaves[0].reshape(-1)[0] if leaves else jax.numpy.zeros(())
