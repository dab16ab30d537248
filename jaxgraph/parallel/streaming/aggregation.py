"""An aggregation over all parts: the rows of one group of edges after another visit the devices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph.ops.core.choice import choose_stages
from jaxgraph.ops.core.input_classes import ClassedMessage, count_winners
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted, is_floating
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.parallel.schedules.sequential import looks_at_senders, row_bytes
from jaxgraph.parallel.schedules.stream import ChunkPrograms, Ring
from jaxgraph.parallel.streaming.cutting import StagedProgram
from jaxgraph.parallel.streaming.exchange import Exchange, padded
from jaxgraph.parallel.streaming.feeding import Feed
from jaxgraph.parallel.streaming.flat_program import Step
from jaxgraph.parallel.streaming.graph import PartOnDevice, StreamedGraph, nothing
from jaxgraph.parallel.streaming.part import StreamedPart
from jaxgraph.parallel.streaming.programs import Executables, Spread, Summed, Waiting, spread_type

Pytree = Any
Run = Any
"""A `jaxgraph.parallel.streaming.execution.Run`, which calls the methods of this module."""
Loads = Iterator[Callable[[], Any]]
Folded = tuple[PartOnDevice, Reducer, Inputs, Pytree]
"""A part, reducer and inputs of an aggregation, and the state into which messages were folded."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Visit:
    """The tables of a turn, on their way to the parts of another.

    Attributes:
      tables: on the devices; of the turn itself, numbers of own rows.
      moves: for each time that they are handed on, `step` and `places` of `ChunkPrograms`.
      is_own: whether it is the turn itself.
      buffers: the memory of the host that the tables come from, or are.
    """

    tables: Pytree
    moves: Sequence[tuple[Spread, Spread | None]]
    is_own: bool
    buffers: list[np.ndarray]


class AggregationOverParts:
    """One barrier of a streamed function: an aggregation, and its gradient.

    A method that takes a `feed` reads its inputs from there; a method named `loads_of_...` lists
    them.

    Args:
      step: the barrier.
      program: the function that it stands in.
      graph: the graph.
    """

    def __init__(self, step: Step, program: StagedProgram, graph: StreamedGraph) -> None:
        self.step, self.graph = step, graph
        self._call = step.params["call"]
        self._own, self._active = program.own, program.active
        self._operands = step.operands
        types: dict[int, Any] = program.program.types
        self._types: list[Any] = [types[n] if isinstance(n, int) else n.aval for n in step.operands]
        self._reducer, self._inputs = self._call.arguments(range(len(step.operands)))
        places = self._inputs
        parts = (places.params, places.sender, places.receiver, places.edge)
        self.wanted = Wanted(*map(self._is_active, parts))
        self._ring = Ring(graph.axis, graph.mesh.size)
        self._programs = self._programs_of(self._call.message)
        self._counting: ChunkPrograms | None = None

    def _programs_of(self, message: MessageFn) -> ChunkPrograms:
        return ChunkPrograms(message, self._call.self_loops, self.wanted, self._ring)

    def _is_active(self, places: Pytree) -> bool:
        numbers = [self._operands[i] for i in jax.tree.leaves(places)]
        return any(isinstance(n, int) and n in self._active for n in numbers)

    @functools.cached_property
    def order(self) -> str:
        """The order of the backward: "rows" or "columns"."""
        return self._plan[0]

    @functools.cached_property
    def _plan(self) -> tuple[str, bool]:
        """The order of the backward, and whether columns read the senders' rows again."""
        types = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in self._types]
        part, found = self.graph.parts.like, []

        def look(part: StreamedPart, leaves: list[Any]) -> Any:
            reducer, inputs = self._call.arguments(leaves)
            message, block = self._call.message, part.relation().block().with_loops(False)

            def reduce(message: MessageFn, reducer: Reducer, inputs: Inputs) -> Any:
                return choose_stages(part.incoming, message, reducer, inputs).reduce(block, inputs)

            results = count_winners(reduce, message, inputs, reduce(message, reducer, inputs))
            adjoint = reducer.adjoint(*results, results[0])
            chunk = part.incoming.chunk
            looks = looks_at_senders(message, reducer, inputs, adjoint, self.wanted, chunk)
            found.append((looks, row_bytes(adjoint)))
            return ()

        jax.eval_shape(look, part, types)
        looks, of_adjoint = found[0]
        places, wanted = self._inputs, self.wanted
        sent, received = (
            row_bytes([self._types[i] for i in jax.tree.leaves(each)])
            for each in (places.sender, places.receiver)
        )
        # An answer is read, added to and written.
        columns = looks * sent + 2 * wanted.sender * sent
        rows = received + of_adjoint + 2 * wanted.receiver * received
        order = self.graph.parts.pipeline.order
        if jax.tree.leaves(places.edge):
            return "columns", looks
        return order or ("rows" if rows <= columns else "columns"), looks

    # What is loaded.

    def _value(self, run: Run, place: int, turn: int) -> Any:
        operand = self._operands[place]
        if not isinstance(operand, int):
            return np.asarray(operand.val, self._types[place].dtype)
        return run.value(operand, turn)

    def _arguments(
        self, run: Run, turn: int, used: tuple[int, ...]
    ) -> tuple[PartOnDevice, Reducer, Inputs]:
        """A part, the reducer, and the inputs, with the part's own rows as senders.

        `used` are the leaves of the part that programs read.
        """
        places = (self._reducer, self._inputs)
        found = jax.tree.map(lambda place: self._value(run, place, turn), places)
        return run.part_on_device(turn, used), *run.devices.send(found)

    @functools.cached_property
    def _used(self) -> dict[str, tuple[int, ...]]:
        """The leaves of a part that each of the programs reads."""
        leaves: Any = tuple(jax.tree.leaves(self.graph.parts.like))
        count = len(leaves)
        part = PartOnDevice(leaves, tuple(range(count)), self.graph.parts.outline)
        types = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in self._types]
        reducer, inputs = self._call.arguments(types)
        step = jax.ShapeDtypeStruct((), np.int32)
        programs, executables = self._programs, Executables(self.graph.mesh, self.graph.axis)

        def used(program: Any, *arguments: Any, at: int = 0, **options: Any) -> frozenset[int]:
            places = executables.used(functools.partial(program, **options), arguments)
            before = len(jax.tree.leaves(arguments[:at]))
            return frozenset(i - before for i in places if before <= i < before + count)

        own, shape = (part, reducer, inputs), jax.eval_shape
        state = shape(programs.first, *own)
        outputs, kept = shape(programs.finish, *own, state)
        forward = used(programs.first, *own) | used(programs.finish, *own, state)
        has_others = self.graph.num_parts > 1
        if has_others:
            forward |= used(programs.more, state, *own, step, None, at=1, hands_on=False)
        found = {"forward": forward}
        if self.wanted.some:
            winners = _winners(self._call.message, kept, outputs)
            adjoint = shape(programs.adjoint, part, reducer, inputs, outputs, winners, outputs)
            grads = shape(programs.pull_own, part, reducer, inputs, adjoint)
            found["adjoint"] = used(programs.adjoint, *own, outputs, winners, outputs)
            if winners is not kept:
                found["adjoint"] |= frozenset(range(count))
            pulled = used(programs.pull_own, *own, adjoint)
            if has_others:
                by_column = self.order == "columns"
                left = dataclasses.replace(grads, **{"sender" if by_column else "receiver": []})
                program: Any = programs.pull_column if by_column else programs.pull_row
                rest = (left, *own, adjoint, step, None, [])
                pulled |= used(program, *rest, at=1, hands_on=False)
            found["pull"] = pulled
        return {name: tuple(sorted(places)) for name, places in found.items()}

    def _visit(
        self, run: Run, exchange: Exchange, turn: int, other: int, values: Callable[[], Pytree]
    ) -> _Visit:
        """Sends the tables of values that the parts of a turn need of another turn."""
        local = self.graph.parts.local
        rows, room = exchange.tables(other, turn), exchange.table_room(other, turn)
        rows = [rows[at] for at in local]
        moves = list(exchange.moves(other, turn))
        steps = [run.devices.numbers(tuple(each.steps[at] for at in local)) for each in moves]
        places = [each.places and Waiting(tuple(each.places[at] for at in local)) for each in moves]
        buffers: list[np.ndarray] = []
        if other == turn:
            tables = Waiting(tuple(padded(each, room) for each in rows))
        elif exchange.is_whole(other, turn):
            tables = values()
        else:
            tables = jax.tree.map(functools.partial(_packed, run, rows, room), values())
            buffers = [array for each in jax.tree.leaves(tables) for array in each.arrays]
        tables, places = run.devices.send((tables, places))
        return _Visit(tables, list(zip(steps, places, strict=True)), other == turn, buffers)

    def _sent(self, run: Run, places: Pytree, turn: int, other: int) -> _Visit:
        """Rows of another turn whose messages a turn receives."""
        values = lambda: jax.tree.map(lambda at: self._value(run, at, other), places)  # noqa: E731
        return self._visit(run, self.graph.parts.senders, turn, other, values)

    def _received(self, run: Run, turn: int, other: int) -> _Visit:
        """Inputs and adjoint of the rows of another turn that a turn sends messages to."""

        def values() -> Pytree:
            places = self._inputs.receiver
            receiver = jax.tree.map(lambda at: self._value(run, at, other), places)
            return receiver, self._stored_adjoint(run, other)

        return self._visit(run, self.graph.parts.receivers, turn, other, values)

    def _tables(self, run: Run, visit: _Visit, own: Pytree) -> Pytree:
        """The tables of a visit. Those of the turn itself are made of arrays on the devices."""
        if not visit.is_own:
            return visit.tables
        return run.devices.call(self._programs.own_tables, own, visit.tables)

    # Forward.

    def loads_of_fold(self, run: Run, turn: int) -> Loads:
        """See `fold`."""
        yield functools.partial(self._arguments, run, turn, self._used["forward"])
        for other in self.graph.parts.senders.visits(turn):
            yield functools.partial(self._sent, run, self._inputs.sender, turn, other)

    def fold(self, run: Run, turn: int, feed: Feed) -> Folded:
        """The state of parts after all messages, with what `finish` reads."""
        shard, reducer, inputs = feed.take()
        state = self._fold(self._programs, run, turn, shard, reducer, inputs, feed.take)
        return shard, reducer, inputs, state

    def finish(self, folded: Folded) -> tuple[list[Any], Pytree]:
        """The leaves of the outputs, and residuals; traced in the program that reads them."""
        outputs, residuals = self._programs.finish(*folded)
        return jax.tree.leaves(outputs), residuals

    def _fold(
        self,
        programs: ChunkPrograms,
        run: Run,
        turn: int,
        shard: PartOnDevice,
        reducer: Reducer,
        inputs: Inputs,
        take: Callable[[], _Visit],
    ) -> Pytree:
        call = run.devices.call
        state = call(programs.first, shard, reducer, inputs)
        for _ in self.graph.parts.senders.visits(turn):
            visit = take()
            tables = self._tables(run, visit, inputs.sender)
            for hands_on, move in _with_rest(visit.moves):
                remote = dataclasses.replace(inputs, sender=tables)
                arguments = (state, shard, reducer, remote, *move)
                state, tables, token = call(
                    programs.more, *arguments, donates=True, hands_on=hands_on
                )
                run.devices.packing.read_by(token.array, [] if hands_on else visit.buffers)
        return state

    # Backward.

    def loads_of_adjoint(self, run: Run, turn: int) -> Loads:
        """See `adjoint`."""
        yield functools.partial(self._arguments_and_residuals, run, turn)

    def _arguments_and_residuals(self, run: Run, turn: int) -> Any:
        results = self.step.results
        outputs = self._call.outputs.unflatten([run.value(n, turn) for n in results])
        used = self._used["adjoint"]
        if self.order == "columns":
            used = tuple(sorted({*used, *self._used["pull"]}))
        results = run.devices.send((outputs, run.load(self._key("residuals"), turn)))
        return *self._arguments(run, turn, used), *results

    def _key(self, what: str) -> Any:
        return what, self.step.results[0]

    def save(self, run: Run, turn: int, residuals: Pytree) -> None:
        """Stores residuals of `finish` for the backward."""
        run.save(self._key("residuals"), turn, residuals)

    def forget(self, run: Run, what: str) -> None:
        """Drops the stored "residuals" or "adjoint" of all parts."""
        run.forget(self._key(what))

    def adjoint(self, run: Run, turn: int, feed: Feed, gradients: list[Any]) -> None:
        """Pulls the gradient of results to their receivers, and in columns to the operands."""
        shard, reducer, inputs, outputs, kept = feed.take()
        outputs, kept = self._with_winners(run, turn, shard, inputs, (outputs, kept))
        gradient = self._call.outputs.unflatten(gradients)
        adjoint = run.devices.call(
            self._programs.adjoint, shard, reducer, inputs, outputs, kept, gradient
        )
        if self.order == "columns":
            self._pull_column(run, turn, shard, reducer, inputs, adjoint, feed)
        else:
            run.save(self._key("adjoint"), turn, adjoint)

    def _stored_adjoint(self, run: Run, turn: int) -> Pytree:
        return run.load(self._key("adjoint"), turn)

    def _with_winners(
        self, run: Run, turn: int, shard: PartOnDevice, inputs: Inputs, results: Any
    ) -> Any:
        """Results from which a gradient is pulled; see `count_winners`."""

        def reduce(message: MessageFn, reducer: Reducer, inputs: Inputs) -> Any:
            if self._counting is None:
                self._counting = self._programs_of(message)
            others = iter(self.graph.parts.senders.visits(turn))
            words = self._inputs.sender[1]
            take = lambda: self._sent(run, words, turn, next(others))  # noqa: E731
            state = self._fold(self._counting, run, turn, shard, reducer, inputs, take)
            return run.devices.call(self._counting.finish, shard, reducer, inputs, state)

        return count_winners(reduce, self._call.message, inputs, results)

    def loads_of_column(self, run: Run, turn: int) -> Loads:
        """See `adjoint`, in columns."""
        for other in self.graph.parts.senders.visits(turn):
            yield functools.partial(self._sent_again, run, turn, other)

    def _sent_again(self, run: Run, turn: int, other: int) -> _Visit:
        """Rows of another turn, or, where no program reads them, nothing in their shape."""
        places, exchange = self._inputs.sender, self.graph.parts.senders
        if self._plan[1]:
            return self._sent(run, places, turn, other)
        visit = self._visit(run, exchange, turn, other, lambda: ())
        room, devices = exchange.table_room(other, turn), self.graph.mesh.size

        def unread(place: int) -> Spread:
            aval = self._types[place]
            table = jax.ShapeDtypeStruct((room, *aval.shape[1:]), aval.dtype)
            return Spread(nothing(spread_type(table, devices).array))

        tables = jax.tree.map(unread, places)
        return dataclasses.replace(visit, tables=tables, is_own=False)

    def _pull_column(
        self,
        run: Run,
        turn: int,
        shard: PartOnDevice,
        reducer: Reducer,
        inputs: Inputs,
        adjoint: Pytree,
        feed: Feed,
    ) -> None:
        call, exchange = run.devices.call, self.graph.parts.senders
        grads = call(self._programs.pull_own, shard, reducer, inputs, adjoint)
        self._add(run, turn, self._inputs.sender, grads.sender)
        grads = dataclasses.replace(grads, sender=[])
        for other in exchange.visits(turn):
            visit, answers = feed.take(), []
            tables = self._tables(run, visit, inputs.sender)
            for hands_on, move in _with_rest(visit.moves):
                remote = dataclasses.replace(inputs, sender=tables)
                arguments = (grads, shard, reducer, remote, adjoint, *move, answers)
                reads_on = hands_on and self._plan[1]
                grads, answers, handed, token = call(
                    self._programs.pull_column, *arguments, donates=True, hands_on=reads_on
                )
                tables = handed if reads_on else tables
                run.devices.packing.read_by(token.array, [] if hands_on else visit.buffers)
            rows = exchange.answered(other, turn)
            self._add_rows(run, other, self._inputs.sender, rows, answers)
        self._add(run, turn, self._inputs.receiver, grads.receiver)
        self._add(run, turn, self._inputs.edge, grads.edge)
        self._add(run, turn, self._inputs.params, grads.params)

    def loads_of_row(self, run: Run, turn: int) -> Loads:
        """See `pull_row`."""
        yield lambda: (
            *self._arguments(run, turn, self._used["pull"]),
            run.devices.send(self._stored_adjoint(run, turn)),
        )
        for other in self.graph.parts.receivers.visits(turn):
            yield functools.partial(self._received, run, turn, other)

    @property
    def is_pulled_alone(self) -> bool:
        """True in rows where gradients of receivers come back, before any part can go on."""
        return self.order == "rows" and self.wanted.receiver

    def pull_row(self, run: Run, turn: int, feed: Feed) -> list[tuple[int, Any]]:
        """In rows: the gradients of parts' operands as senders; adds those of receivers."""
        call, exchange = run.devices.call, self.graph.parts.receivers
        shard, reducer, inputs, adjoint = feed.take()
        grads = call(self._programs.pull_own, shard, reducer, inputs, adjoint)
        self._add(run, turn, self._inputs.receiver, grads.receiver)
        grads = dataclasses.replace(grads, receiver=[])
        for other in exchange.visits(turn):
            visit, answers = feed.take(), []
            tables = self._tables(run, visit, (inputs.receiver, adjoint))
            for hands_on, move in _with_rest(visit.moves):
                receiver, there = tables
                remote = dataclasses.replace(inputs, receiver=receiver)
                arguments = (grads, shard, reducer, remote, there, *move, answers)
                grads, answers, tables, token = call(
                    self._programs.pull_row, *arguments, donates=True, hands_on=hands_on
                )
                run.devices.packing.read_by(token.array, [] if hands_on else visit.buffers)
            if self.wanted.receiver:
                rows = exchange.answered(other, turn)
                self._add_rows(run, other, self._inputs.receiver, rows, answers)
        self._add(run, turn, self._inputs.params, grads.params)
        found = self._floating(self._inputs.sender, grads.sender)
        return [(n, self._cast(run, place, gradient)) for place, n, gradient in found]

    def _cast(self, run: Run, place: int, gradient: Any) -> Any:
        dtype = self._types[place].dtype
        if gradient.dtype == dtype:
            return gradient
        return run.devices.call(_as_type, gradient, dtype=dtype)

    def _floating(self, places: Pytree, gradients: list[Any]) -> Iterator[tuple[int, int, Any]]:
        """Place, number and gradient of the active operands among some places."""
        found = [i for i in jax.tree.leaves(places) if is_floating(self._types[i])]
        for place, gradient in zip(found, gradients, strict=bool(gradients)):
            operand = self._operands[place]
            if isinstance(operand, int) and operand in self._active:
                yield place, operand, gradient

    def _add(self, run: Run, turn: int, places: Pytree, gradients: list[Any]) -> None:
        for place, number, gradient in self._floating(places, gradients):
            run.add(number, turn, self._cast(run, place, gradient))

    def _add_rows(
        self, run: Run, turn: int, places: Pytree, rows: list[np.ndarray] | None, answers: list[Any]
    ) -> None:
        """Adds the gradient of tables; `rows` of each part of a turn, None: all."""
        for place, number, gradient in self._floating(places, answers):
            if rows is None or number in self._own:
                run.add(number, turn, gradient, rows)
                continue
            room = gradient.array.shape[0] // self.graph.mesh.size
            numbers = Waiting(tuple(padded(rows[at], room) for at in self.graph.parts.local))
            aval = self._types[place]
            total = run.devices.call(
                _at_rows, gradient, run.devices.send(numbers), shape=aval.shape, dtype=aval.dtype
            )
            run.add_shared(number, total)


def _as_type(gradient: jax.Array, *, dtype: Any) -> jax.Array:
    return jnp.asarray(gradient, dtype)


def _at_rows(gradient: jax.Array, rows: jax.Array, *, shape: tuple[int, ...], dtype: Any) -> Summed:
    """Rows of a table as rows of an array that all parts share."""
    return Summed(jnp.zeros(shape, dtype).at[rows].add(gradient, mode="drop"))


def _packed(run: Run, rows: list[np.ndarray], room: int, value: Any) -> Waiting:
    """Some rows of an array of each part, or of one that they share."""
    arrays = value.arrays if isinstance(value, Waiting) else [value] * len(rows)
    packing = run.devices.packing
    return Waiting(
        tuple(packing.rows(array, some, room) for array, some in zip(arrays, rows, strict=True))
    )


def _with_rest(moves: Sequence[Any]) -> Iterator[tuple[bool, Any]]:
    """Each move, after whether another follows."""
    return ((at + 1 < len(moves), move) for at, move in enumerate(moves))


def _winners(message: MessageFn, kept: Pytree, outputs: Pytree) -> Pytree:
    """Residuals as `count_winners` returns them."""
    counts = [jax.ShapeDtypeStruct(leaf.shape, np.int32) for leaf in jax.tree.leaves(outputs)]
    return (kept, counts) if isinstance(message, ClassedMessage) else kept
