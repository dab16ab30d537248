"""Runs a function of a shard turn after turn, with what waits between its stages on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph.parallel.streaming.aggregation import AggregationOverParts
from jaxgraph.parallel.streaming.cutting import Piece, Stage
from jaxgraph.parallel.streaming.devices import Devices
from jaxgraph.parallel.streaming.feeding import Feed
from jaxgraph.parallel.streaming.flat_program import Step
from jaxgraph.parallel.streaming.graph import PartOnDevice, nothing
from jaxgraph.parallel.streaming.programs import Spread, Summed, Waiting, is_spread

Pytree = Any
StreamedFunction = Any
"""A `jaxgraph.parallel.streaming.function.StreamedFunction`, which makes the run."""
Values = dict[int, Any]
"""Arrays by the number that they have in the program."""
GRADIENT = "gradient"


class Run:
    """One call of a streamed function.

    Args:
      function: the function.
      shared: its arguments after the part.
      devices: where it runs.
      keep: whether a backward follows.
    """

    def __init__(
        self, function: StreamedFunction, shared: Sequence[Pytree], devices: Devices, *, keep: bool
    ) -> None:
        self._function, self._keep, self.devices = function, keep, devices
        self._stages, self._own = function.staged.stages, function.staged.own
        self._active = function.staged.active
        self._store, self._host = devices.store, function.graph.parts
        self._turns = self._host.turns
        values = devices.hold([leaf for tree in shared for leaf in jax.tree.leaves(tree)])
        self._shared: Values = dict(zip(function.shared_arguments, values, strict=True))
        nodes = devices.leaf(function.leaf_of_nodes, 0).arrays[0]
        self._shared |= devices.hold({function.number_of_nodes: nodes} | function.constants)
        self._gradients: Values = {}
        self._given: set[tuple[int, int]] = set()
        self._structures: dict[Any, Any] = {}
        self._last_use = dict(function.staged.last_use)
        for each in function.staged.program.outputs:
            if isinstance(each, int) and each in self._own:
                self._last_use[each] = len(self._stages)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: Any) -> None:
        self.devices.close()

    # Values of parts, on the host.

    def value(self, number: int, turn: int) -> Any:
        """A value, of each part of a turn or shared."""
        if number not in self._own:
            return self._shared[number]
        if number in self._function.graph_leaves:
            return self.devices.leaf(self._function.graph_leaves[number], turn)
        return self._stored(number, turn)

    def _stored(self, key: Any, turn: int) -> Waiting:
        parts = self._host.of_turn(turn)
        return Waiting(tuple(self._store.get(key, part) for part in parts))

    def part_on_device(self, turn: int, used: tuple[int, ...]) -> PartOnDevice:
        """The arrays of parts that programs use."""
        arrays = [self.devices.leaf(number, turn) for number in used]
        return PartOnDevice(tuple(self.devices.send(arrays)), used, self._host.outline)

    def zeros(self, aval: Any) -> Any:
        """An array of zeros on the devices."""
        return self.devices.call(_zeros, shape=tuple(aval.shape), dtype=aval.dtype)

    def _sum(self, one: Any, other: Any) -> Any:
        return other if one is None else self.devices.call(_plus, one, other)

    def _put(self, key: Any, turn: int, value: Spread) -> None:
        first = turn * self._host.devices
        self.devices.bring(value, lambda at, array: self._store.put(key, first + at, array))

    def _drop(self, keys: Iterable[Any], turns: Iterable[int] | None = None) -> None:
        """Drops what is stored by some keys, of the parts of some turns; None: of all."""
        for key in keys:
            for turn in self._turns if turns is None else turns:
                for part in self._host.of_turn(turn):
                    self._store.drop(key, part)

    def save(self, key: Any, turn: int, tree: Pytree) -> None:
        """Stores a pytree of the parts of a turn."""
        leaves, self._structures[key] = jax.tree.flatten(tree, is_leaf=is_spread)
        for index, leaf in enumerate(leaves):
            self._put((key, index), turn, leaf)

    def load(self, key: Any, turn: int) -> Pytree:
        """A pytree that was saved in an earlier pass."""
        structure = self._structures[key]
        leaves = [self._stored((key, i), turn) for i in range(structure.num_leaves)]
        return structure.unflatten(leaves)

    def forget(self, key: Any) -> None:
        """Drops pytrees that were saved, of all parts."""
        if key in self._structures:
            count = self._structures.pop(key).num_leaves
            self._drop((key, index) for index in range(count))

    def add(
        self, number: int, turn: int, gradient: Any, rows: list[np.ndarray] | None = None
    ) -> None:
        """Adds to the gradient of a value, of the parts of a turn or shared."""
        if number in self._function.graph_leaves:
            return
        if number not in self._own:
            self.add_shared(number, gradient)
            return
        like, first = self._function.staged.program.types[number], turn * self._host.devices

        def write(at: int, values: Any) -> None:
            some = None if rows is None else rows[at]
            self._store.add((GRADIENT, number), first + at, some, values, like)

        self._given.add((number, turn))
        self.devices.bring(gradient, write)

    def add_shared(self, number: int, gradient: Any) -> None:
        """Adds to the gradient of a shared value; that of each part is summed over the devices."""
        if is_spread(gradient):
            gradient = self.devices.call(Summed, gradient)
        self._gradients[number] = self._sum(self._gradients.get(number), gradient)

    def _await(self, results: Values) -> None:
        """Waits while too many programs run; at the end of a pass none does."""
        if results:
            first = next(iter(results.values()))
            self.devices.packing.read_by(jax.tree.leaves(first)[0], [])

    def _pass(
        self, loads: Callable[[int], Iterator[Any]], work: Callable[[int, Feed], None]
    ) -> None:
        """Takes all turns; a thread loads what the next programs read."""
        with self.devices.feed(load for turn in self._turns for load in loads(turn)) as feed:
            for turn in self._turns:
                work(turn, feed)
            self.devices.finish()

    # Forward.

    def forward(self) -> None:
        """Runs all stages."""
        for level, stage in enumerate(self._stages):
            self._run_shared(stage.shared)
            totals: Values = {}
            self._pass(
                functools.partial(self._forward_loads, level),
                functools.partial(self._forward_part, level, totals),
            )
            self._shared |= self.devices.call(_summed_over_devices, totals) if totals else {}
            if not self._keep:
                self._drop_after(level)

    def _run_shared(self, piece: Piece) -> None:
        if piece.writes:
            values = [self._shared[number] for number in piece.reads]
            written = self.devices.call(self._function.shared_programs[piece], values)
            self._shared |= dict(zip(piece.writes, written, strict=True))

    def _forward_loads(self, level: int, turn: int) -> Iterator[Any]:
        made: set[int] = set()
        for aggregation in self._function.before(level):
            yield from aggregation.loads_of_fold(self, turn)
            made |= set(aggregation.step.results)
        stage = self._stages[level]
        made |= set(stage.own.writes)
        reads = [n for n in (*stage.own.reads, *_summed(stage)) if n not in made]
        yield lambda: self.devices.send({n: self.value(n, turn) for n in reads})

    def _forward_part(self, level: int, totals: Values, turn: int, feed: Feed) -> None:
        stage, before = self._stages[level], self._function.before(level)
        folded = [aggregation.fold(self, turn, feed) for aggregation in before]
        values = feed.take()
        made = {n for aggregation in before for n in aggregation.step.results}
        made |= set(stage.own.writes)
        stored = {number for number in made if self._is_stored(number, level)}
        if self._keep:  # The backward reads all results of an aggregation, used or not.
            pulled = [aggregation for aggregation in before if aggregation.wanted.some]
            stored |= {number for each in pulled for number in each.step.results}
        if made:
            returned = tuple(sorted(stored | made.intersection(_summed(stage))))
            program = self._function.own_program(level, self._keep, returned)
            found, residuals = self.devices.call(program, folded, values)
            values |= found
            self._await(found)
            for aggregation, kept in zip(before, residuals, strict=True):
                if self._keep and aggregation.wanted.some:
                    aggregation.save(self, turn, kept)
        for step in stage.sums:
            (number,), (total,) = step.reads, step.results
            totals[total] = self._sum(totals.get(total), values[number])
        for number in stored:
            self._put(number, turn, values[number])

    def _is_stored(self, number: int, level: int) -> bool:
        """True for a value that is read after the pass of its stage."""
        if number not in self._last_use:
            return False
        later = self._last_use[number] > level or self._keep
        return later or any(number in s.reads for s in self._stages[level].aggregations)

    def _drop_after(self, level: int) -> None:
        """Forgets values that no later stage reads."""
        read_next = {n for step in self._stages[level].aggregations for n in step.reads}
        ended = (number for number, last in self._last_use.items() if last <= level)
        self._drop(number for number in ended if number not in read_next)

    def _first_use(self) -> dict[int, int]:
        """For each stored value, the first stage that reads it: the last one in the backward."""
        found: dict[int, int] = {}
        for level, stage in enumerate(self._stages):
            steps = [each.step for each in self._function.before(level)]
            reads = {number for step in steps for number in step.results}
            reads |= {number for step in stage.aggregations for number in step.reads}
            for number in reads | set(stage.own.reads):
                if number in self._own and number not in self._function.graph_leaves:
                    found.setdefault(number, level)
        return found

    def outputs(self) -> list[Any]:
        """The function's results, flat."""
        found, function = [], self._function
        for each, has_rows in zip(function.staged.program.outputs, function.has_rows, strict=True):
            if isinstance(each, int) and each in self._own:
                found.append(self._rows_of_all(each))
                continue
            if isinstance(each, int):
                value = self._shared[each]
            else:
                aval: Any = each.aval
                value = jnp.asarray(each.val, aval.dtype)
            # Rows that are the same for all parts.
            count = len(self._turns) * len(self._host.local)
            shape = (count, *value.shape) if has_rows else value.shape
            found.append(np.broadcast_to(value, shape) if has_rows else value)
        return found

    def _rows_of_all(self, number: int) -> np.ndarray:
        """[parts, rows, ...]: a value of the parts of this process."""
        waiting = [self.value(number, turn) for turn in self._turns]
        return np.stack([np.asarray(array) for each in waiting for array in each.arrays])

    # Backward.

    def backward(self) -> list[Any]:
        """The gradients of the differentiated arguments of the first output."""
        loss = self._function.staged.program.outputs[0]
        if isinstance(loss, int) and loss in self._active:
            self.add_shared(loss, self.devices.call(jnp.ones_like, self._shared[loss]))
        self._pulled: set[Step] = set()
        first_use = self._first_use()
        for level in reversed(range(len(self._stages))):
            rows = [self._function.aggregations[s] for s in self._stages[level].aggregations]
            rows = [each for each in rows if each.step in self._pulled and each.order == "rows"]
            for aggregation in rows:
                if aggregation.is_pulled_alone:
                    self._pass(
                        functools.partial(aggregation.loads_of_row, self),
                        functools.partial(self._pull_row, aggregation),
                    )
            self._backward_own(level, [each for each in rows if not each.is_pulled_alone])
            for aggregation in rows:
                aggregation.forget(self, "adjoint")
            for aggregation in self._function.before(level):
                aggregation.forget(self, "residuals")
            self._backward_shared(self._stages[level].shared)
            self._drop(number for number, first in first_use.items() if first == level)
        return [
            self._gradients[n] if n in self._gradients else self.zeros(self._shared[n])
            for n in self._function.wanted
        ]

    def _pull_row(self, aggregation: AggregationOverParts, turn: int, feed: Feed) -> None:
        for number, gradient in aggregation.pull_row(self, turn, feed):
            self.add(number, turn, gradient)

    def _backward_own(self, level: int, rows: list[AggregationOverParts]) -> None:
        """Pulls gradients through `rows`, a stage, and the aggregations before it in columns."""
        stage = self._stages[level]
        of_sums = [
            (step.reads[0], self._gradients[step.results[0]])
            for step in stage.sums
            if step.results[0] in self._gradients and step.reads[0] in self._active
        ]
        before = [each for each in self._function.before(level) if each.wanted.some]
        self._pulled |= {each.step for each in before}
        self._pass(
            functools.partial(self._backward_loads, level, rows, before),
            functools.partial(self._backward_part, level, rows, of_sums, before),
        )

    def _backward_loads(
        self,
        level: int,
        rows: list[AggregationOverParts],
        before: list[AggregationOverParts],
        turn: int,
    ) -> Iterator[Any]:
        piece = self._stages[level].own
        for aggregation in rows:
            yield from aggregation.loads_of_row(self, turn)
        yield lambda: self.devices.send(
            (
                {n: self.value(n, turn) for n in piece.reads},
                self._stored_gradients(piece.writes, turn),
            )
        )
        for aggregation in before:
            results = aggregation.step.results
            yield functools.partial(self._stored_gradients, results, turn)
            yield from aggregation.loads_of_adjoint(self, turn)
            if aggregation.order == "columns":
                yield from aggregation.loads_of_column(self, turn)

    def _stored_gradients(self, numbers: Iterable[int], turn: int) -> Values:
        """Gradients so far, which are forgotten; 0 for parts that no other reads a row of."""
        found = {}
        for number in numbers:
            if (number, turn) not in self._given:
                continue
            self._given.remove((number, turn))
            key, like = (GRADIENT, number), self._function.staged.program.types[number]
            found[number] = Waiting(
                tuple(
                    self._store.get(key, part) if self._store.has(key, part) else nothing(like)
                    for part in self._host.of_turn(turn)
                )
            )
            self._drop([key], [turn])
        return found

    def _backward_part(
        self,
        level: int,
        rows: list[AggregationOverParts],
        of_sums: list[tuple[int, Any]],
        before: list[AggregationOverParts],
        turn: int,
        feed: Feed,
    ) -> None:
        piece = self._stages[level].own
        of_senders = [pair for each in rows for pair in each.pull_row(self, turn, feed)]
        values, gradients = feed.take()
        of_results: Values = {}
        results = {n for aggregation in before for n in aggregation.step.results}

        def add(number: int, gradient: Any) -> None:
            if number in results:
                of_results[number] = self._sum(of_results.get(number), gradient)
            else:
                self.add(number, turn, gradient)

        for number, gradient in (*of_sums, *of_senders):
            if number in piece.writes:
                gradients[number] = self._sum(gradients.get(number), gradient)
            else:
                add(number, gradient)
        gradients = {n: g for n, g in gradients.items() if n in self._active}
        if gradients:
            program = self._function.backward_programs[piece]
            found = self.devices.call(program, [values[n] for n in piece.reads], gradients)
            self._await(found)
            for number, gradient in found.items():
                add(number, gradient)
        for aggregation in before:
            for number, gradient in feed.take().items():
                add(number, gradient)
            aggregation.adjoint(self, turn, feed, self._of_results(aggregation, of_results))

    def _of_results(self, aggregation: AggregationOverParts, found: Values) -> list[Any]:
        types = self._function.staged.program.types
        return [found[n] if n in found else self.zeros(types[n]) for n in aggregation.step.results]

    def _backward_shared(self, piece: Piece) -> None:
        gradients = {n: self._gradients.pop(n) for n in piece.writes if n in self._gradients}
        gradients = {n: g for n, g in gradients.items() if n in self._active}
        if gradients:
            values = [self._shared[number] for number in piece.reads]
            program = self._function.backward_programs[piece]
            found = self.devices.call(program, values, gradients)
            for number, gradient in found.items():
                self.add_shared(number, gradient)


def _zeros(*, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return jnp.zeros(shape, dtype)


def _plus(one: jax.Array, other: jax.Array) -> jax.Array:
    return one + other


def _summed_over_devices(tree: Pytree) -> Pytree:
    return jax.tree.map(Summed, tree)


def _summed(stage: Stage) -> list[int]:
    return [number for step in stage.sums for number in step.reads]
