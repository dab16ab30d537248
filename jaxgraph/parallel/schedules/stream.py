"""The fold over parts whose rows come from the host: small programs that a loop of it calls.

Forward, a part of receivers stays on the device, and the rows of one part of senders after another
come (NeuGraph, section 3.1: the columns of the matrix of edge groups). Backward there are two
orders: by *rows*, a part of senders stays, and its gradient is complete at the end; by *columns*, a
part of receivers stays, and the gradients of the senders' rows go back to the host, which adds them
up. Messages are folded and pulled by the stages that all other schedules use.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.choice import choose_stages
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.core.running import Places
from jaxgraph.ops.core.stages import Stages
from jaxgraph.parallel.schedules.sequential import positions
from jaxgraph.parallel.shard import Shard

Pytree = Any


class Held(Protocol):
    """A part as a program takes it: a pytree of the arrays that it uses."""

    def part(self) -> Shard:
        """The part, in mode "sar"."""
        ...


@dataclasses.dataclass(frozen=True)
class Ring:
    """The devices that tables are handed on along.

    Attributes:
      axis: of the mesh.
      devices: their number.
    """

    axis: Any
    devices: int

    def handed_on(self, tree: Pytree) -> Pytree:
        """Gives arrays to the next device, and takes those of the device before."""
        pairs = [(at, (at + 1) % self.devices) for at in range(self.devices)]
        return jax.tree.map(lambda leaf: jax.lax.ppermute(leaf, self.axis, pairs), tree)


@dataclasses.dataclass(frozen=True, eq=False)
class ChunkPrograms:
    """The programs of one aggregation, each for the edges of one group.

    `part` holds a part. `step` is the distance to the other part on the ring of parts, int32 []. A
    *table* has rows of the other part, of which `places`, int32 [rows], are those that this part
    needs; None: all. With `hands_on` a program returns the tables that the next one reads.

    Attributes:
      message: evaluated on chunks of edges.
      self_loops: whether nodes without an edge to themselves send themselves a message.
      wanted: the inputs whose gradients are computed.
      ring: the devices.
    """

    message: MessageFn
    self_loops: bool
    wanted: Wanted
    ring: Ring

    def _stages(self, shard: Shard, reducer: Reducer, inputs: Inputs) -> Stages:
        return choose_stages(shard.incoming, self.message, reducer, inputs)

    def first(self, part: Held, reducer: Reducer, inputs: Inputs) -> Pytree:
        """Returns the state after the edges among own rows."""
        shard = part.part()
        block = shard.relation().block().with_loops(self.self_loops)
        return self._stages(shard, reducer, inputs).fold(block, inputs)

    def more(
        self,
        state: Pytree,
        part: Held,
        reducer: Reducer,
        inputs: Inputs,
        step: jax.Array,
        places: jax.Array | None,
        *,
        hands_on: bool,
    ) -> tuple[Pytree, Pytree, jax.Array]:
        """Returns the state after more edges, tables, and a token, which exists once it does.

        `inputs.sender` has rows of the part `step` steps behind.
        """
        shard = part.part()
        remote = dataclasses.replace(inputs, sender=rows_at(inputs.sender, places))
        stages = self._stages(shard, reducer, remote)
        position = positions(shard.relation().arrays.reach, step)
        state, _ = stages.fold_group(shard.incoming, step, remote, state, position, None)
        tables = self.ring.handed_on(inputs.sender) if hands_on else ()
        return state, tables, _token(state)

    def own_tables(self, arrays: Pytree, rows: jax.Array) -> Pytree:
        """Returns tables of own rows, which are on the devices already, handed on once."""
        return self.ring.handed_on(rows_at(arrays, rows))

    def finish(self, part: Held, reducer: Reducer, inputs: Inputs, state: Pytree) -> Any:
        """Returns outputs and residuals."""
        return self._stages(part.part(), reducer, inputs).finish(state, inputs)

    def adjoint(
        self, part: Held, reducer: Reducer, inputs: Inputs, outputs: Any, kept: Any, gradient: Any
    ) -> Pytree:
        """Returns the adjoint, by receiver; `kept` are residuals."""
        return self._stages(part.part(), reducer, inputs).adjoint(outputs, kept, gradient)

    def pull_own(self, part: Held, reducer: Reducer, inputs: Inputs, adjoint: Pytree) -> Inputs:
        """Returns gradients from the edges among own rows."""
        shard = part.part()
        block = shard.relation().block().with_loops(self.self_loops)
        return self._stages(shard, reducer, inputs).pull(block, inputs, adjoint, self.wanted)

    def pull_column(
        self,
        grads: Inputs,
        part: Held,
        reducer: Reducer,
        inputs: Inputs,
        adjoint: Pytree,
        step: jax.Array,
        places: jax.Array | None,
        answers: list[jax.Array],
        *,
        hands_on: bool,
    ) -> tuple[Inputs, list[jax.Array], Pytree, jax.Array]:
        """Returns gradients with those of more edges, answers, tables and a token.

        `inputs.sender` has rows of the part `step` steps behind. The answers are its gradient.
        """
        shard, tables = part.part(), inputs.sender
        remote = dataclasses.replace(inputs, sender=rows_at(tables, places))
        where = Places(None, positions(shard.relation().arrays.reach, step))
        group = (shard.incoming, step, reducer, remote, adjoint, grads, where)
        return self._pulled(group, tables, places, answers, hands_on)

    def pull_row(
        self,
        grads: Inputs,
        part: Held,
        reducer: Reducer,
        inputs: Inputs,
        adjoint: Pytree,
        step: jax.Array,
        places: jax.Array | None,
        answers: list[jax.Array],
        *,
        hands_on: bool,
    ) -> tuple[Inputs, list[jax.Array], Pytree, jax.Array]:
        """Returns gradients with those of more edges, answers, tables and a token.

        `inputs.receiver` and `adjoint` are tables of the part `step` steps ahead. The answers are
        the gradient of `inputs.receiver`.
        """
        shard, tables = part.part(), (inputs.receiver, adjoint)
        edges = shard.relation().arrays.outgoing
        assert edges is not None
        receiver, there = rows_at(tables, places)
        remote = dataclasses.replace(inputs, receiver=receiver)
        where = Places(positions(shard.exchange.send, step), None)
        group = (edges, step - 1, reducer, remote, there, grads, where)
        return self._pulled(group, tables, places, answers, hands_on)

    def _pulled(
        self, group: Any, tables: Pytree, places: Any, answers: list[jax.Array], hands_on: bool
    ) -> tuple[Inputs, list[jax.Array], Pytree, jax.Array]:
        """Pulls gradients through a group of edges; see `pull_column`."""
        edges, number, reducer, inputs, adjoint, grads, where = group
        stages = choose_stages(edges, self.message, reducer, inputs)
        pulled = stages.pull_group(edges, number, inputs, adjoint, self.wanted, grads, where, None)
        grads, answer = pulled.gradients, list(pulled.answer or ())
        answers = self._answers(answers, answer, tables, places)
        handed = self.ring.handed_on(tables) if hands_on else ()
        return grads, answers, handed, _token((grads, answer))

    def _answers(
        self, answers: list[jax.Array], answer: list[jax.Array], tables: Pytree, places: Any
    ) -> list[jax.Array]:
        """The gradient of tables so far, handed on with them."""
        if places is None or self.ring.devices == 1 or not answer:
            return answer
        room = len(jax.tree.leaves(tables)[0])
        totals = answers or [jnp.zeros((room, *each.shape[1:]), each.dtype) for each in answer]
        return self.ring.handed_on(
            [
                # Both are padded, to lengths of their own.
                total.at[places[: len(each)]].add(each[: len(places)], mode="drop")
                for total, each in zip(totals, answer, strict=True)
            ]
        )


def rows_at(tables: Pytree, places: jax.Array | None) -> Pytree:
    """Some rows of tables; None: all."""
    if places is None:
        return tables
    return jax.tree.map(lambda leaf: jnp.take(leaf, places, axis=0, mode="clip"), tables)


def _token(tree: Pytree) -> jax.Array:
    """One number of an array, which may be awaited after the array is donated."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.size]
    return leaves[0].reshape(-1)[0] if leaves else jnp.zeros(())
