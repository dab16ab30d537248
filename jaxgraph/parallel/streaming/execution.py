"""Runs a function of a shard turn after turn, with what waits between its stages on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph.parallel.streaming.aggregation import ADJOINT, RESIDUALS, AggregationOverParts
from jaxgraph.parallel.streaming.cutting import Piece, Stage
from jaxgraph.parallel.streaming.devices import Devices
from jaxgraph.parallel.streaming.feeding import Feed
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
        self._program, self._active = function.staged.program, function.staged.active
        self._store, self._host = devices.store, function.graph.parts
        self._turns = self._host.turns
        values = devices.hold([leaf for tree in shared for leaf in jax.tree.leaves(tree)])
        self._shared: Values = dict(zip(function.shared_arguments, values, strict=True))
        nodes = devices.leaf(function.leaf_of_nodes, 0).arrays[0]
        self._shared |= devices.hold({function.number_of_nodes: nodes} | function.constants)
        self._gradients: Values = {}
        self._structures: dict[Any, Any] = {}
        levels = range(len(self._stages))
        self._first_read = {n: at for at in reversed(levels) for n in function.reads(at)}
        self._last_read = {n: at for at in levels for n in function.reads(at)}
        outputs = {n for n in self._program.outputs if isinstance(n, int)}
        self._last_read |= dict.fromkeys(outputs & self._own, len(self._stages))

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
        return self.load(number, turn)

    def save(self, key: Any, turn: int, tree: Pytree) -> None:
        """Stores a value, or another pytree, of the parts of a turn."""
        leaves, self._structures[key] = jax.tree.flatten(tree, is_leaf=is_spread)
        for index, leaf in enumerate(leaves):
            self._bring(leaf, turn, functools.partial(self._store.put, (key, index)))

    def load(self, key: Any, turn: int) -> Pytree:
        """The values that an earlier pass saved."""
        structure = self._structures[key]
        leaves = [self._stored((key, i), turn) for i in range(structure.num_leaves)]
        return structure.unflatten(leaves)

    def forget(self, key: Any) -> None:
        """Drops what was saved of all parts."""
        if key in self._structures:
            for index in range(self._structures.pop(key).num_leaves):
                for part in self._host.own:
                    self._store.drop((key, index), part)

    def _bring(self, value: Spread, turn: int, write: Callable[[int, Any], None]) -> None:
        first = turn * self._host.devices
        self.devices.bring(value, lambda at, array: write(first + at, array))

    def _stored(self, key: Any, turn: int) -> Waiting:
        parts = self._host.of_turn(turn)
        return Waiting(tuple(self._store.get(key, part) for part in parts))

    def zeros(self, aval: Any) -> Any:
        """An array of zeros on the devices."""
        return self.devices.call(_zeros, shape=tuple(aval.shape), dtype=aval.dtype)

    def _sum(self, one: Any, other: Any) -> Any:
        return other if one is None else self.devices.call(_plus, one, other)

    def add(
        self, number: int, turn: int, gradient: Any, rows: list[np.ndarray] | None = None
    ) -> None:
        """Adds to the gradient of a value, of the parts of a turn or shared."""
        if number in self._function.graph_leaves:
            return
        if number not in self._own:
            self.add_shared(number, gradient)
            return
        first, like = turn * self._host.devices, self._program.types[number]

        def write(part: int, values: Any) -> None:
            some = None if rows is None else rows[part - first]
            self._store.add((GRADIENT, number), part, some, values, like)

        self._bring(gradient, turn, write)

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
            totals = self._run_own(level, stage)
            self._shared |= self.devices.call(_summed_over_devices, totals) if totals else {}
            if not self._keep:
                self._forget(self._last_read, level)

    def _forget(self, levels: dict[int, int], level: int) -> None:
        for number, each in levels.items():
            if each == level:
                self.forget(number)

    def _run_shared(self, piece: Piece) -> None:
        if piece.writes:
            values = {number: self._shared[number] for number in piece.reads}
            self._shared |= self.devices.call(self._function.run_shared, values, piece=piece)

    def _run_own(self, level: int, stage: Stage) -> Values:
        """Runs own steps, after the aggregations before them; returns the sums over all parts."""
        before, totals = self._function.aggregations[level], dict[int, Any]()
        made = {n for each in before for n in each.step.results} | set(stage.own.writes)
        summed = {n for step in stage.sums for n in step.reads}
        reads = {*stage.own.reads, *summed} - made
        read_later = {n for n, last in self._last_read.items() if self._keep or last > level}
        stored = made & read_later
        returned = tuple(sorted(stored | (made & summed)))

        def loads(turn: int) -> Iterator[Any]:
            for aggregation in before:
                yield from aggregation.loads_of_fold(self, turn)
            yield lambda: self.devices.send({n: self.value(n, turn) for n in reads})

        def work(turn: int, feed: Feed) -> None:
            folded = [aggregation.fold(self, turn, feed) for aggregation in before]
            values = feed.take()
            if made:
                options = {"level": level, "keep": self._keep, "returned": returned}
                found, kept = self.devices.call(self._function.run_own, folded, values, **options)
                values |= found
                self._await(found)
                for aggregation, residuals in zip(before, kept, strict=True):
                    self.save((RESIDUALS, aggregation), turn, residuals)
            for step in stage.sums:
                (number,), (total,) = step.reads, step.results
                totals[total] = self._sum(totals.get(total), values[number])
            for number in stored:
                self.save(number, turn, values[number])

        self._pass(loads, work)
        return totals

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
        for level, stage in reversed(list(enumerate(self._stages))):
            before, after = (
                [each for each in self._function.aggregations[at] if each.wanted.some]
                for at in (level, level + 1)
            )
            rows = [each for each in after if each.order == "rows"]
            for aggregation in rows:
                if aggregation.is_pulled_alone:
                    loads = functools.partial(aggregation.loads_of_row, self)
                    self._pass(loads, functools.partial(self._pull_row, aggregation))
            together = [each for each in rows if not each.is_pulled_alone]
            self._pull_own(stage, together, before)
            for aggregation in rows:
                self.forget((ADJOINT, aggregation))
            for aggregation in before:
                self.forget((RESIDUALS, aggregation))
            self._pull_shared(stage.shared)
            self._forget(self._first_read, level)
        return [
            self._gradients[n] if n in self._gradients else self.zeros(self._shared[n])
            for n in self._function.wanted
        ]

    def _pull_row(self, aggregation: AggregationOverParts, turn: int, feed: Feed) -> None:
        for number, gradient in aggregation.pull_row(self, turn, feed):
            self.add(number, turn, gradient)

    def _pull_own(
        self, stage: Stage, rows: list[AggregationOverParts], before: list[AggregationOverParts]
    ) -> None:
        """Pulls gradients through `rows`, own steps, and the aggregations before them."""
        piece, types = stage.own, self._program.types
        near = {*piece.writes, *(n for each in before for n in each.step.results)}
        of_sums = [
            (step.reads[0], self._gradients[step.results[0]])
            for step in stage.sums
            if step.results[0] in self._gradients and step.reads[0] in self._active
        ]

        def loads(turn: int) -> Iterator[Any]:
            for aggregation in rows:
                yield from aggregation.loads_of_row(self, turn)
            yield lambda: (
                self.devices.send({n: self.value(n, turn) for n in piece.reads}),
                self._take_gradients(piece.writes, turn),
            )
            for aggregation in before:
                results = aggregation.step.results
                yield functools.partial(self._take_gradients, results, turn)
                yield from aggregation.loads_of_adjoint(self, turn)

        def work(turn: int, feed: Feed) -> None:
            of_senders = [pair for each in rows for pair in each.pull_row(self, turn, feed)]
            values, gradients = feed.take()

            def add(number: int, gradient: Any) -> None:
                if number in near:
                    gradients[number] = self._sum(gradients.get(number), gradient)
                else:
                    self.add(number, turn, gradient)

            for number, gradient in (*of_sums, *of_senders):
                add(number, gradient)
            written = {n: gradients.pop(n) for n in piece.writes if n in gradients}
            found = self._pull(piece, values, written)
            self._await(found)
            for number, gradient in found.items():
                add(number, gradient)
            for aggregation in before:
                for number, gradient in feed.take().items():
                    add(number, gradient)
                results = aggregation.step.results
                of_results = [gradients.get(n) or self.zeros(types[n]) for n in results]
                aggregation.adjoint(self, turn, feed, of_results)

        self._pass(loads, work)

    def _take_gradients(self, numbers: Iterable[int], turn: int) -> Values:
        """Sends gradients so far, which are forgotten."""
        found, parts = {}, self._host.of_turn(turn)
        for number in numbers:
            key = GRADIENT, number
            if self._store.has(key, parts[0]):
                found[number] = self._stored(key, turn)
                for part in parts:
                    self._store.drop(key, part)
        return self.devices.send(found)

    def _pull(self, piece: Piece, values: Values, gradients: Values) -> Values:
        gradients = {n: gradient for n, gradient in gradients.items() if n in self._active}
        if not gradients:
            return {}
        reads = {n: values[n] for n in piece.reads}
        return self.devices.call(self._function.pull, reads, gradients, piece=piece)

    def _pull_shared(self, piece: Piece) -> None:
        written = {n: self._gradients.pop(n) for n in piece.writes if n in self._gradients}
        for number, gradient in self._pull(piece, self._shared, written).items():
            self.add_shared(number, gradient)


def _zeros(*, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return jnp.zeros(shape, dtype)


def _plus(one: jax.Array, other: jax.Array) -> jax.Array:
    return one + other


def _summed_over_devices(tree: Pytree) -> Pytree:
    return jax.tree.map(Summed, tree)
