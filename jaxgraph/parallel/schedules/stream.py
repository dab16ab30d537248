"""The fold over parts whose rows come from the host: small programs that a loop of it calls.

Forward, a part of receivers stays on the device, and the rows of one part of senders after another
come (NeuGraph, section 3.1: the columns of the matrix of edge groups). Backward there are two
orders: by *rows*, a part of senders stays, and its gradient is complete at the end; by *columns*, a
part of receivers stays, and the gradients of the senders' rows go back to the host, which adds them
up. Messages are folded and pulled by the stages that all other schedules use.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.blocks import Block
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


class Own(NamedTuple):
    """A part, the reducer of an aggregation, and the inputs of its messages at the own rows."""

    held: Held
    reducer: Reducer
    inputs: Inputs


class Visit(NamedTuple):
    """Rows of another part that come to a part.

    Attributes:
      tables: rows of the other part: of senders, or of receivers and adjoints.
      step: int32 [], the distance to the other part on the ring of parts.
      places: int32 [rows], the tables' rows that the part needs; None: all.
      answers: the gradient of the tables so far.
    """

    tables: Pytree
    step: Any
    places: Any
    answers: list[Any]

    def rows(self) -> Pytree:
        """The rows that the part needs."""
        return rows_at(self.tables, self.places)


Visited = tuple[Pytree, list[jax.Array], Pytree, jax.Array]
"""A total after a visit, answers, the tables that the next visit reads, and a token, which exists
once the total does."""


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

    def _stages(self, own: Own) -> tuple[Stages, Block]:
        """The stages of own inputs, and the edges among own rows."""
        shard = own.held.part()
        stages = choose_stages(shard.incoming, self.message, own.reducer, own.inputs)
        return stages, shard.relation().block().with_loops(self.self_loops)

    def first(self, own: Own) -> Pytree:
        """Returns the state after the edges among own rows."""
        stages, block = self._stages(own)
        return stages.fold(block, own.inputs)

    def own_tables(self, arrays: Pytree, rows: jax.Array) -> Pytree:
        """Returns tables of own rows, which are on the devices already, handed on once."""
        return self.ring.handed_on(rows_at(arrays, rows))

    def finish(self, own: Own, state: Pytree) -> Any:
        """Returns outputs and residuals."""
        return self._stages(own)[0].finish(state, own.inputs)

    def adjoint(self, own: Own, outputs: Any, kept: Any, gradient: Any) -> Pytree:
        """Returns the adjoint, by receiver; `kept` are residuals."""
        return self._stages(own)[0].adjoint(outputs, kept, gradient)

    def pull_own(self, own: Own, adjoint: Pytree) -> Inputs:
        """Returns gradients from the edges among own rows."""
        stages, block = self._stages(own)
        return stages.pull(block, own.inputs, adjoint, self.wanted)

    def add(
        self, total: Pytree, own: Own, adjoint: Pytree, visit: Visit, *, way: str, hands_on: bool
    ) -> Visited:
        """Adds the edges of one group to a total.

        In a "fold" the total is a state, and the edges come from the part `step` steps behind. In
        "columns" the total is gradients of the same edges. In "rows" it is gradients of the edges
        that lead to the part `step` steps ahead.
        """
        shard, inputs, step = own.held.part(), own.inputs, visit.step
        arrays = shard.relation().arrays
        if way == "rows":
            receiver, adjoint = visit.rows()
            inputs = dataclasses.replace(inputs, receiver=receiver)
            edges, group = arrays.outgoing, step - 1
            position = positions(shard.exchange.send, step)
        else:
            inputs = dataclasses.replace(inputs, sender=visit.rows())
            edges, group = shard.incoming, step
            position = positions(arrays.reach, step)
        assert edges is not None
        stages, answer = choose_stages(edges, self.message, own.reducer, inputs), []
        if way == "fold":
            total, _ = stages.fold_group(edges, group, inputs, total, position, None)
        else:
            places = Places(position, None) if way == "rows" else Places(None, position)
            arguments = edges, group, inputs, adjoint, self.wanted, total, places, None
            pulled = stages.pull_group(*arguments)
            total, answer = pulled.gradients, list(pulled.answer or ())
        answers = self._answers(visit, answer)
        handed = self.ring.handed_on(visit.tables) if hands_on else ()
        return total, answers, handed, _token((total, answer))

    def _answers(self, visit: Visit, answer: list[jax.Array]) -> list[jax.Array]:
        """The gradient of tables so far, handed on with them."""
        places = visit.places
        if places is None or self.ring.devices == 1 or not answer:
            return answer
        room = len(jax.tree.leaves(visit.tables)[0])
        totals = visit.answers or [jnp.zeros((room, *e.shape[1:]), e.dtype) for e in answer]
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
