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
from jaxgraph.parallel.schedules.stream import ChunkPrograms, Own, Ring, Visit
from jaxgraph.parallel.streaming.cutting import StagedProgram
from jaxgraph.parallel.streaming.exchange import Exchange, padded
from jaxgraph.parallel.streaming.feeding import Feed
from jaxgraph.parallel.streaming.flat_program import Step
from jaxgraph.parallel.streaming.graph import PartOnDevice, StreamedGraph, empty
from jaxgraph.parallel.streaming.part import StreamedPart
from jaxgraph.parallel.streaming.programs import (
    Executables,
    Spread,
    Summed,
    Waiting,
    types_of,
)

Pytree = Any
Run = Any
"""A `jaxgraph.parallel.streaming.execution.Run`, which calls the methods of this module."""
Loads = Iterator[Callable[[], Any]]
RESIDUALS, ADJOINT = "residuals", "adjoint"
"""With an aggregation, the keys of what waits for its backward."""
Folded = tuple[Own, Pytree]
"""A part with the inputs of an aggregation, and the state into which messages were folded."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Tables:
    """The tables of a turn, on their way to the parts of another.

    Attributes:
      tables: on the devices; of the turn itself, numbers of own rows.
      moves: for each time that they are handed on, `step` and `places` of `Visit`.
      buffers: the memory of the host that the tables come from, or are.
    """

    tables: Pytree
    moves: Sequence[tuple[Spread, Spread | None]]
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
        self._call = step.equation.params["call"]
        self._own, self._active = program.own, program.active
        self._operands = step.operands
        types: dict[int, Any] = program.program.types
        self._types: list[Any] = types_of(
            [types[n] if isinstance(n, int) else n.aval for n in step.operands]
        )
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

        jax.eval_shape(look, part, self._types)
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

    def _values(self, run: Run, places: Pytree, turn: int) -> Pytree:
        """Operands of the parts of a turn, on the host."""

        def one(place: int) -> Any:
            operand = self._operands[place]
            if isinstance(operand, int):
                return run.value(operand, turn)
            return np.asarray(operand.val, self._types[place].dtype)

        return jax.tree.map(one, places)

    def _load_own(self, run: Run, turn: int, used: frozenset[int]) -> Own:
        """The values of parts that programs read in a turn, of which they use some leaves."""
        places = tuple(sorted(used))
        operands = self._values(run, (self._reducer, self._inputs), turn)
        arrays = tuple(run.devices.send([run.devices.leaf(leaf, turn) for leaf in places]))
        held = PartOnDevice(arrays, places, self.graph.parts)
        return Own(held, *run.devices.send(operands))

    @functools.cached_property
    def _used(self) -> dict[str, frozenset[int]]:
        """The leaves of a part that are read forward, for the adjoint, and to pull from it."""
        leaves: Any = tuple(jax.tree.leaves(self.graph.parts.like))
        every = range(len(leaves))
        held = PartOnDevice(leaves, tuple(every), self.graph.parts)
        own = Own(held, *self._call.arguments(self._types))
        step = jax.ShapeDtypeStruct((), np.int32)
        programs, executables = self._programs, Executables(self.graph.mesh, self.graph.axis)
        has_others = self.graph.num_parts > 1

        def forward(own: Own, step: Any) -> Any:
            state = programs.first(own)
            if has_others:
                visit = Visit(own.inputs.sender, step, None, [])
                state, *_ = programs.add(state, own, (), visit, way="fold", hands_on=False)
            return programs.finish(own, state)

        def pull(own: Own, step: Any, adjoint: Pytree) -> Any:
            found: list[Any] = [programs.pull_own(own, adjoint)]
            if has_others:
                left = dataclasses.replace(found[0], **{self._far: []})
                visit = Visit(_of_tables(self.order, own, adjoint), step, None, [])
                found += programs.add(left, own, adjoint, visit, way=self.order, hands_on=False)
            return found

        def used(program: Any, *arguments: Any) -> frozenset[int]:
            return executables.used(program, arguments).intersection(every)

        found = {"forward": used(forward, own, step)}
        if self.wanted.some:
            outputs, kept = jax.eval_shape(forward, own, step)
            winners = _winners(self._call.message, kept, outputs)
            results = own, outputs, winners, outputs
            found["adjoint"] = used(programs.adjoint, *results)
            if winners is not kept:
                found["adjoint"] = frozenset(every)
            found["pull"] = used(pull, own, step, jax.eval_shape(programs.adjoint, *results))
            if self.order == "columns":
                found["adjoint"] |= found["pull"]
        return found

    @property
    def _far(self) -> str:
        """The inputs whose rows come from other parts in the backward."""
        return "receiver" if self.order == "rows" else "sender"

    def _visit(
        self, run: Run, exchange: Exchange, turn: int, other: int, values: Callable[[], Pytree]
    ) -> _Tables:
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
        return _Tables(tables, list(zip(steps, places, strict=True)), buffers)

    def _exchange(self, way: str) -> Exchange:
        return self.graph.parts.receivers if way == "rows" else self.graph.parts.senders

    def _reads(self, way: str) -> bool:
        """True where programs read tables, and not their shapes alone."""
        return way != "columns" or self._plan[1]

    def _loads(self, run: Run, turn: int, way: str, senders: Pytree) -> Loads:
        """The tables that a turn needs of each turn; see `_add_visits`."""
        exchange, reads = self._exchange(way), self._reads(way)

        def values(other: int) -> Pytree:
            if not reads:
                return ()
            if way == "rows":
                receiver = self._values(run, self._inputs.receiver, other)
                return receiver, run.load((ADJOINT, self), other)
            return self._values(run, senders, other)

        for other in exchange.visits(turn):
            values_of = functools.partial(values, other)
            yield functools.partial(self._visit, run, exchange, turn, other, values_of)

    def _add_visits(
        self,
        run: Run,
        turn: int,
        programs: ChunkPrograms,
        way: str,
        own: Own,
        adjoint: Pytree,
        total: Pytree,
        visits: Iterator[_Tables],
    ) -> Pytree:
        """The total of a turn after all visits; see `ChunkPrograms.add`."""
        exchange, reads = self._exchange(way), self._reads(way)
        for other, visit in zip(exchange.visits(turn), visits, strict=False):
            tables, answers = visit.tables, []
            if not reads:
                unread = functools.partial(self._unread, exchange.table_room(other, turn))
                tables = jax.tree.map(unread, self._inputs.sender)
            elif other == turn:
                arrays = _of_tables(way, own, adjoint)
                tables = run.devices.call(self._programs.own_tables, arrays, tables)
            for at, move in enumerate(visit.moves):
                hands_on = at + 1 < len(visit.moves)
                arguments = total, own, adjoint, Visit(tables, *move, answers)
                options: Any = {"way": way, "hands_on": hands_on and reads}
                total, answers, handed, token = run.devices.call(
                    programs.add, *arguments, donates=True, **options
                )
                tables = handed if reads else tables
                run.devices.packing.read_by(token.array, [] if hands_on else visit.buffers)
            if answers:
                self._add_rows(run, other, exchange.answered(other, turn), answers)
        return total

    def _unread(self, room: int, place: int) -> Spread:
        """Nothing, in the shape of tables of an operand."""
        aval, devices = self._types[place], self.graph.mesh.size
        return Spread(empty((devices * room, *aval.shape[1:]), aval.dtype))

    # Forward.

    def loads_of_fold(self, run: Run, turn: int) -> Loads:
        """See `fold`."""
        yield functools.partial(self._load_own, run, turn, self._used["forward"])
        yield from self._loads(run, turn, "fold", self._inputs.sender)

    def fold(self, run: Run, turn: int, feed: Feed) -> Folded:
        """The values of parts that `finish` reads, and the state after all messages."""
        own = feed.take()
        return own, self._fold(self._programs, run, turn, own, iter(feed.take, None))

    def finish(self, folded: Folded) -> tuple[list[Any], Pytree]:
        """The leaves of the outputs, and residuals; traced in the program that reads them."""
        outputs, residuals = self._programs.finish(*folded)
        return jax.tree.leaves(outputs), residuals

    def _fold(
        self, programs: ChunkPrograms, run: Run, turn: int, own: Own, visits: Iterator[_Tables]
    ) -> Pytree:
        state = run.devices.call(programs.first, own)
        return self._add_visits(run, turn, programs, "fold", own, (), state, visits)

    # Backward.

    def loads_of_adjoint(self, run: Run, turn: int) -> Loads:
        """See `adjoint`."""
        used = self._used["adjoint"]
        yield lambda: (self._load_own(run, turn, used), self._load_results(run, turn))
        if self.order == "columns":
            yield from self._loads(run, turn, "columns", self._inputs.sender)

    def _load_results(self, run: Run, turn: int) -> Any:
        outputs = [run.value(number, turn) for number in self.step.results]
        residuals = run.load((RESIDUALS, self), turn)
        return run.devices.send((self._call.outputs.unflatten(outputs), residuals))

    def adjoint(self, run: Run, turn: int, feed: Feed, gradients: list[Any]) -> None:
        """Pulls the gradient of results to their receivers, and in columns to the operands."""
        own, results = feed.take()
        outputs, kept = self._with_winners(run, turn, own, results)
        gradient = self._call.outputs.unflatten(gradients)
        adjoint = run.devices.call(self._programs.adjoint, own, outputs, kept, gradient)
        if self.order == "rows":
            run.save((ADJOINT, self), turn, adjoint)
            return
        for number, found in self._pull(run, turn, feed, own, adjoint):
            run.add(number, turn, found)

    def _with_winners(self, run: Run, turn: int, own: Own, results: Any) -> Any:
        """Results from which a gradient is pulled; see `count_winners`."""

        def reduce(message: MessageFn, reducer: Reducer, inputs: Inputs) -> Any:
            if self._counting is None:
                self._counting = self._programs_of(message)
            counted = Own(own.held, reducer, inputs)
            loads = self._loads(run, turn, "fold", self._inputs.sender[1])
            visits = (load() for load in loads)
            state = self._fold(self._counting, run, turn, counted, visits)
            return run.devices.call(self._counting.finish, counted, state)

        return count_winners(reduce, self._call.message, own.inputs, results)

    def loads_of_row(self, run: Run, turn: int) -> Loads:
        """See `pull_row`."""
        used = self._used["pull"]
        yield lambda: (
            self._load_own(run, turn, used),
            run.devices.send(run.load((ADJOINT, self), turn)),
        )
        yield from self._loads(run, turn, "rows", ())

    @property
    def is_pulled_alone(self) -> bool:
        """True in rows where gradients of receivers come back, before any part can go on."""
        return self.order == "rows" and self.wanted.receiver

    def pull_row(self, run: Run, turn: int, feed: Feed) -> list[tuple[int, Any]]:
        """In rows: the gradients of parts' operands as senders; adds those of receivers."""
        own, adjoint = feed.take()
        return self._pull(run, turn, feed, own, adjoint)

    def _pull(
        self, run: Run, turn: int, feed: Feed, own: Own, adjoint: Pytree
    ) -> list[tuple[int, Any]]:
        """The gradients of rows that stay on the devices; adds those of rows that come."""
        grads = run.devices.call(self._programs.pull_own, own, adjoint)
        self._add(run, turn, grads, self._far)
        grads, visits = dataclasses.replace(grads, **{self._far: []}), iter(feed.take, None)
        grads = self._add_visits(run, turn, self._programs, self.order, own, adjoint, grads, visits)
        self._add(run, turn, grads, "edge", "params")
        near = "sender" if self._far == "receiver" else "receiver"
        return list(self._gradients(run, near, grads))

    def _add(self, run: Run, turn: int, grads: Inputs, *names: str) -> None:
        for name in names:
            for number, gradient in self._gradients(run, name, grads):
                run.add(number, turn, gradient)

    def _floating(
        self, of: str, gradients: list[Any]
    ) -> Iterator[tuple[jax.ShapeDtypeStruct, int, Any]]:
        """Type, number and gradient of the active operands among some inputs."""
        places = jax.tree.leaves(getattr(self._inputs, of))
        found = [i for i in places if is_floating(self._types[i])]
        for place, gradient in zip(found, gradients, strict=bool(gradients)):
            operand = self._operands[place]
            if isinstance(operand, int) and operand in self._active:
                yield self._types[place], operand, gradient

    def _gradients(self, run: Run, of: str, grads: Inputs) -> Iterator[tuple[int, Any]]:
        """Number and gradient of the active operands among some inputs, of their type."""
        for aval, number, gradient in self._floating(of, getattr(grads, of)):
            if gradient.dtype != aval.dtype:
                gradient = run.devices.call(_as_type, gradient, dtype=aval.dtype)
            yield number, gradient

    def _add_rows(
        self, run: Run, turn: int, rows: list[np.ndarray] | None, answers: list[Any]
    ) -> None:
        """Adds the gradient of tables; `rows` of each part of a turn, None: all."""
        for aval, number, gradient in self._floating(self._far, answers):
            if rows is None or number in self._own:
                run.add(number, turn, gradient, rows)
                continue
            room = gradient.array.shape[0] // self.graph.mesh.size
            numbers = Waiting(tuple(padded(rows[at], room) for at in self.graph.parts.local))
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


def _of_tables(way: str, own: Own, adjoint: Pytree) -> Pytree:
    """The own arrays of which other parts read rows."""
    return (own.inputs.receiver, adjoint) if way == "rows" else own.inputs.sender


def _winners(message: MessageFn, kept: Pytree, outputs: Pytree) -> Pytree:
    """Residuals as `count_winners` returns them."""
    counts = [jax.ShapeDtypeStruct(leaf.shape, np.int32) for leaf in jax.tree.leaves(outputs)]
    return (kept, counts) if isinstance(message, ClassedMessage) else kept
