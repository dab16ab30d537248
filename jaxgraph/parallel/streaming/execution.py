"""Runs a function of a shard part after part, with what waits between its stages on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph.ops.core.messages import is_floating
from jaxgraph.parallel.spmd import spmd
from jaxgraph.parallel.streaming.aggregation import AggregationOverParts, Folded
from jaxgraph.parallel.streaming.cutting import Piece, Stage, staged
from jaxgraph.parallel.streaming.device import Device, Executables, types_of
from jaxgraph.parallel.streaming.feeding import Feed
from jaxgraph.parallel.streaming.flat_program import Step, flattened
from jaxgraph.parallel.streaming.graph import PartOnDevice, StreamedGraph
from jaxgraph.parallel.streaming.rehearsal import Needs, Rehearsal

__all__ = ["Run", "StreamedFunction"]

Pytree = Any
Values = dict[int, Any]
GRADIENT = "gradient"


class StreamedFunction:
    """A function of a part and of arrays that all parts share, ready to run over all parts.

    Args:
      function: `(part, *shared) -> pytree`; its results are the same for all parts, or have rows.
      graph: the graph.
      shared: the other arguments, or their shapes.
      differentiated: whether the gradient of the first output with respect to the first of them is
        wanted.
      outputs: as for `jaxgraph.parallel.spmd`, "replicated" or "rows".

    Raises:
      ValueError: the function cannot be cut into stages, or as `jaxgraph.parallel.spmd`.
    """

    def __init__(
        self,
        function: Callable[..., Pytree],
        graph: StreamedGraph,
        shared: Sequence[Pytree],
        *,
        differentiated: bool = False,
        outputs: Pytree = "replicated",
    ) -> None:
        self.graph = graph
        # The checks of a function of shards are those of all schedules.
        in_order = lambda shard, *shared: function(shard, *shared)  # noqa: E731
        jax.eval_shape(spmd(in_order, outputs=outputs), graph.on_devices(), *types_of(shared))
        part = graph.parts.like
        trace = jax.make_jaxpr(lambda part, *shared: function(part, *shared), return_shape=True)
        try:
            closed, shapes = trace(part, *shared)
        except NotImplementedError as error:
            if "streamed_" not in str(error):
                raise
            raise ValueError(
                "the function differentiates, or maps by jax.vmap, an aggregation or a sum over "
                "all nodes, which mode='stream' runs from the host; call it on arrays with one "
                "more axis, or shard the graph in mode 'sar'"
            ) from error
        except NameError as error:
            if str(graph.axis) not in str(error):
                raise
            raise ValueError(
                f"the function uses the mesh axis {graph.axis!r} itself (jax.lax.psum, pmax, "
                "axis_index), and in mode 'stream' no mesh holds the parts; sum by shard.sum, or "
                "shard the graph in mode 'sar'"
            ) from error
        self._structure = jax.tree.structure(shapes)
        words = jax.tree.map(lambda word, some: jax.tree.map(lambda _: word, some), outputs, shapes)
        self.has_rows = [word == "rows" for word in jax.tree.leaves(words)]
        program = flattened(closed)
        of_part = len(jax.tree.leaves(part))
        own, self.shared_arguments = program.arguments[:of_part], program.arguments[of_part:]
        # The number of the graph's nodes is the same for all parts.
        at = _leaf_of_graph_nodes(part)
        self.number_of_nodes = own[at]
        self.graph_leaves = {number: leaf for leaf, number in enumerate(own) if leaf != at}
        first = len(jax.tree.leaves(shared[0])) if differentiated else 0
        leaves = self.shared_arguments[:first]
        self.wanted = tuple(n for n in leaves if is_floating(program.types[n]))
        self.staged = staged(program, self.graph_leaves, self.wanted)
        self.constants: Values = program.constants
        self._types = types_of(tuple(shared))
        self.executables = Executables(graph.mesh.devices.flat[0])
        self._own_programs: dict[Any, Any] = {}

    def __call__(self, *shared: Pytree) -> Pytree:
        """The function's results; those with rows are [parts, rows, ...] on the host."""
        with Run(self, shared, self._device(), keep=False) as run:
            run.forward()
            return self._structure.unflatten(run.outputs())

    def value_and_grad(self, *shared: Pytree) -> tuple[Pytree, Pytree]:
        """The results, and the gradient of the first output, a scalar, for the first argument."""
        with Run(self, shared, self._device(), keep=True) as run:
            run.forward()
            outputs = run.outputs()
            found = dict(zip(self.wanted, run.backward(), strict=True))
        leaves, structure = jax.tree.flatten(shared[0])
        numbers = self.shared_arguments[: len(leaves)]
        grads = [
            found[n] if n in found else np.zeros(np.shape(leaf), jax.dtypes.float0)
            for n, leaf in zip(numbers, leaves, strict=True)
        ]
        return self._structure.unflatten(outputs), structure.unflatten(grads)

    @functools.cached_property
    def needs(self) -> Needs:
        """The bytes that a run needs, with the backward if there is one; compiles the programs."""
        return self._rehearsed(self.executables)

    @functools.cached_property
    def least_needs(self) -> Needs:
        """`needs` without what programs take beside arguments and results; compiles nothing."""
        device = self.graph.mesh.devices.flat[0]
        return self._rehearsed(Executables(device, compile=False))

    def _rehearsed(self, executables: Executables) -> Needs:
        device, keep = Rehearsal(self.graph.parts, executables), bool(self.wanted)
        with Run(self, self._types, device, keep=keep) as run:
            run.forward()
            if keep:
                run.backward()
        return device.needs

    def _device(self) -> Device:
        return Device(self.graph.parts, self.executables)

    @functools.cached_property
    def aggregations(self) -> dict[Step, AggregationOverParts]:
        """The aggregation of each barrier."""
        steps = [step for stage in self.staged.stages for step in stage.aggregations]
        return {step: AggregationOverParts(step, self.staged, self.graph) for step in steps}

    @functools.cached_property
    def shared_programs(self) -> dict[Piece, Any]:
        """`[reads] -> [writes]`, of the shared steps of each stage."""
        return {stage.shared: self._shared(stage.shared) for stage in self.staged.stages}

    def before(self, level: int) -> list[AggregationOverParts]:
        """The aggregations whose results a stage reads."""
        if not level:
            return []
        return [self.aggregations[step] for step in self.staged.stages[level - 1].aggregations]

    @functools.cached_property
    def backward_programs(self) -> dict[Piece, Any]:
        """`([reads], {write: gradient}) -> {read: gradient}`, of active values of each piece."""
        return {piece: self._backward(piece) for piece in self._pieces()}

    def _pieces(self) -> Iterator[Piece]:
        for stage in self.staged.stages:
            yield from (stage.shared, stage.own)

    def _shared(self, piece: Piece) -> Any:
        return jax.jit(lambda values: piece.run(values, self.constants))

    def own_program(self, level: int, keep: bool, returned: tuple[int, ...]) -> Any:
        """`(folded, {read: value}) -> ({number: value}, [residuals])`, of a stage.

        Args:
          level: the stage; `folded` are the results of `fold` of the aggregations before it.
          keep: whether to return residuals.
          returned: numbers of the values to return.
        """
        key = level, keep, returned
        if key not in self._own_programs:
            self._own_programs[key] = self._forward(*key)
        return self._own_programs[key]

    def _forward(self, level: int, keep: bool, returned: tuple[int, ...]) -> Any:
        before, piece = self.before(level), self.staged.stages[level].own

        def run(folded: list[Folded], values: Values) -> tuple[Values, list[Any]]:
            env, residuals = dict(values), []
            for aggregation, each in zip(before, folded, strict=True):
                results, kept = aggregation.finish(each)
                env |= dict(zip(aggregation.step.results, results, strict=True))
                residuals.append(kept if keep and aggregation.wanted.some else ())
            written = piece.run([env[n] for n in piece.reads], self.constants)
            env |= dict(zip(piece.writes, written, strict=True))
            return {n: env[n] for n in returned}, residuals

        return jax.jit(run)

    def _backward(self, piece: Piece) -> Any:
        reads = [n for n in piece.reads if n in self.staged.active]

        def run(values: list[Any], gradients: Values) -> Values:
            env = dict(zip(piece.reads, values, strict=True))

            def of_active(some: list[Any]) -> Values:
                given = env | dict(zip(reads, some, strict=True))
                written = piece.run([given[n] for n in piece.reads], self.constants)
                found = dict(zip(piece.writes, written, strict=True))
                return {n: found[n] for n in gradients}

            _, pull = jax.vjp(of_active, [env[n] for n in reads])
            return dict(zip(reads, pull(gradients)[0], strict=True))

        return jax.jit(run)


def _leaf_of_graph_nodes(part: Any) -> int:
    """The place of the number of the graph's nodes among the leaves of a part."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(part)]
    return [jax.tree_util.keystr(path) for path in paths].index(".graph_nodes")


class Run:
    """One call of a streamed function.

    Args:
      function: the function.
      shared: its arguments after the part.
      device: where it runs.
      keep: whether a backward follows.
    """

    def __init__(
        self, function: StreamedFunction, shared: Sequence[Pytree], device: Device, *, keep: bool
    ) -> None:
        self._function, self._keep, self.device = function, keep, device
        self._stages, self._own = function.staged.stages, function.staged.own
        self._active, host = function.staged.active, function.graph.parts
        self._store = device.store
        self._parts = range(function.graph.num_parts)
        values = device.hold([leaf for tree in shared for leaf in jax.tree.leaves(tree)])
        self._shared: Values = dict(zip(function.shared_arguments, values, strict=True))
        nodes = device.leaf(_leaf_of_graph_nodes(host.like), 0)
        self._shared |= {function.number_of_nodes: nodes} | function.constants
        self._gradients: Values = {}
        self._structures: dict[Any, Any] = {}
        self._last_use = dict(function.staged.last_use)
        for each in function.staged.program.outputs:
            if isinstance(each, int) and each in self._own:
                self._last_use[each] = len(self._stages)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: Any) -> None:
        self.device.close()

    # Values of parts, on the host.

    def value(self, number: int, part: int) -> Any:
        """A value, of a part or shared."""
        if number not in self._own:
            return self._shared[number]
        if number in self._function.graph_leaves:
            return self.device.leaf(self._function.graph_leaves[number], part)
        return self._store.get(number, part)

    def part_on_device(self, part: int, used: tuple[int, ...]) -> PartOnDevice:
        """The arrays of a part that programs use."""
        arrays = [self.device.leaf(number, part) for number in used]
        outline = self._function.graph.parts.outline
        return PartOnDevice(tuple(self.device.send(arrays)), used, outline)

    def zeros(self, aval: Any) -> Any:
        """An array of zeros on the device."""
        return self.device.apply(functools.partial(_zeros, tuple(aval.shape), aval.dtype))

    def _sum(self, one: Any, other: Any) -> Any:
        return other if one is None else self.device.apply(jnp.add, one, other)

    def _put(self, key: Any, part: int, value: Any) -> None:
        self.device.bring(value, functools.partial(self._store.put, key, part))

    def save(self, key: Any, part: int, tree: Pytree) -> None:
        """Stores a pytree of a part."""
        leaves, self._structures[key] = jax.tree.flatten(tree)
        for index, leaf in enumerate(leaves):
            self._put((key, index), part, leaf)

    def load(self, key: Any, part: int) -> Pytree:
        """A pytree that was saved in an earlier pass."""
        structure = self._structures[key]
        leaves = [self._store.get((key, i), part) for i in range(structure.num_leaves)]
        return structure.unflatten(leaves)

    def forget(self, key: Any) -> None:
        """Drops pytrees that were saved, of all parts."""
        if key in self._structures:
            for index in range(self._structures.pop(key).num_leaves):
                for part in self._parts:
                    self._store.drop((key, index), part)

    def add(self, number: int, part: int, gradient: Any, rows: np.ndarray | None = None) -> None:
        """Adds to the gradient of a value, of a part or shared; of a part's, to some rows."""
        if number in self._function.graph_leaves:
            return
        if number not in self._own:
            self.add_shared(number, gradient)
            return
        like = self._function.staged.program.types[number]

        def write(values: Any) -> None:
            self._store.add((GRADIENT, number), part, rows, values, like)

        self.device.bring(gradient, write)

    def add_shared(self, number: int, gradient: Any) -> None:
        """Adds to the gradient of a shared value."""
        self._gradients[number] = self._sum(self._gradients.get(number), gradient)

    def _await(self, results: Values) -> None:
        """Waits while too many programs run; at the end of a pass none does."""
        if results:
            self.device.packing.read_by(next(iter(results.values())), [])

    def _pass(
        self, loads: Callable[[int], Iterator[Any]], work: Callable[[int, Feed], None]
    ) -> None:
        """Visits all parts; a thread loads what the next programs read."""
        with self.device.feed(load for part in self._parts for load in loads(part)) as feed:
            for part in self._parts:
                work(part, feed)
            self.device.finish()

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
            self._shared |= totals
            if not self._keep:
                self._drop_after(level)

    def _run_shared(self, piece: Piece) -> None:
        if piece.writes:
            values = [self._shared[number] for number in piece.reads]
            written = self.device.call(self._function.shared_programs[piece], values)
            self._shared |= dict(zip(piece.writes, written, strict=True))

    def _forward_loads(self, level: int, part: int) -> Iterator[Any]:
        made: set[int] = set()
        for aggregation in self._function.before(level):
            yield from aggregation.loads_of_fold(self, part)
            made |= set(aggregation.step.results)
        stage = self._stages[level]
        made |= set(stage.own.writes)
        reads = [n for n in (*stage.own.reads, *_summed(stage)) if n not in made]
        yield lambda: self.device.send({n: self.value(n, part) for n in reads})

    def _forward_part(self, level: int, totals: Values, part: int, feed: Feed) -> None:
        stage, before = self._stages[level], self._function.before(level)
        folded = [aggregation.fold(self, part, feed) for aggregation in before]
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
            found, residuals = self.device.call(program, folded, values)
            values |= found
            self._await(found)
            for aggregation, kept in zip(before, residuals, strict=True):
                if self._keep and aggregation.wanted.some:
                    aggregation.save(self, part, kept)
        for step in stage.sums:
            (number,), (total,) = step.reads, step.results
            totals[total] = self._sum(totals.get(total), values[number])
        for number in stored:
            self._put(number, part, values[number])

    def _is_stored(self, number: int, level: int) -> bool:
        """True for a value that is read after the pass of its stage."""
        if number not in self._last_use:
            return False
        later = self._last_use[number] > level or self._keep
        return later or any(number in s.reads for s in self._stages[level].aggregations)

    def _drop_after(self, level: int) -> None:
        """Forgets values that no later stage reads."""
        read_next = {n for step in self._stages[level].aggregations for n in step.reads}
        for number, last in self._last_use.items():
            if last <= level and number not in read_next:
                for part in self._parts:
                    self._store.drop(number, part)

    def outputs(self) -> list[Any]:
        """The function's results, flat."""
        found, function = [], self._function
        for each, has_rows in zip(function.staged.program.outputs, function.has_rows, strict=True):
            if isinstance(each, int) and each in self._own:
                found.append(np.stack([np.asarray(self.value(each, p)) for p in self._parts]))
                continue
            if isinstance(each, int):
                value = self._shared[each]
            else:
                aval: Any = each.aval
                value = jnp.asarray(each.val, aval.dtype)
            # Rows that are the same for all parts.
            shape = (len(self._parts), *value.shape) if has_rows else value.shape
            found.append(np.broadcast_to(value, shape) if has_rows else value)
        return found

    # Backward.

    def backward(self) -> list[Any]:
        """The gradients of the differentiated arguments of the first output."""
        loss = self._function.staged.program.outputs[0]
        if isinstance(loss, int) and loss in self._active:
            self.add_shared(loss, self.device.apply(jnp.ones_like, self._shared[loss]))
        self._pulled: set[Step] = set()
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
        return [
            self._gradients[n] if n in self._gradients else self.zeros(self._shared[n])
            for n in self._function.wanted
        ]

    def _pull_row(self, aggregation: AggregationOverParts, part: int, feed: Feed) -> None:
        for number, gradient in aggregation.pull_row(self, part, feed):
            self.add(number, part, gradient)

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
        part: int,
    ) -> Iterator[Any]:
        piece = self._stages[level].own
        for aggregation in rows:
            yield from aggregation.loads_of_row(self, part)
        yield lambda: self.device.send(
            (
                {n: self.value(n, part) for n in piece.reads},
                self._stored_gradients(piece.writes, part),
            )
        )
        for aggregation in before:
            results = aggregation.step.results
            yield functools.partial(self._stored_gradients, results, part)
            yield from aggregation.loads_of_adjoint(self, part)
            if aggregation.order == "columns":
                yield from aggregation.loads_of_column(self, part)

    def _stored_gradients(self, numbers: Iterable[int], part: int) -> Values:
        """Gradients so far, which are forgotten."""
        found = {}
        for number in numbers:
            key = (GRADIENT, number)
            if self._store.has(key, part):
                found[number] = self._store.get(key, part)
                self._store.drop(key, part)
        return found

    def _backward_part(
        self,
        level: int,
        rows: list[AggregationOverParts],
        of_sums: list[tuple[int, Any]],
        before: list[AggregationOverParts],
        part: int,
        feed: Feed,
    ) -> None:
        piece = self._stages[level].own
        of_senders = [pair for each in rows for pair in each.pull_row(self, part, feed)]
        values, gradients = feed.take()
        of_results: Values = {}
        results = {n for aggregation in before for n in aggregation.step.results}

        def add(number: int, gradient: Any) -> None:
            if number in results:
                of_results[number] = self._sum(of_results.get(number), gradient)
            else:
                self.add(number, part, gradient)

        for number, gradient in (*of_sums, *of_senders):
            if number in piece.writes:
                gradients[number] = self._sum(gradients.get(number), gradient)
            else:
                add(number, gradient)
        gradients = {n: g for n, g in gradients.items() if n in self._active}
        if gradients:
            program = self._function.backward_programs[piece]
            found = self.device.call(program, [values[n] for n in piece.reads], gradients)
            self._await(found)
            for number, gradient in found.items():
                add(number, gradient)
        for aggregation in before:
            for number, gradient in feed.take().items():
                add(number, gradient)
            aggregation.adjoint(self, part, feed, self._of_results(aggregation, of_results))

    def _of_results(self, aggregation: AggregationOverParts, found: Values) -> list[Any]:
        types = self._function.staged.program.types
        return [found[n] if n in found else self.zeros(types[n]) for n in aggregation.step.results]

    def _backward_shared(self, piece: Piece) -> None:
        gradients = {n: self._gradients.pop(n) for n in piece.writes if n in self._gradients}
        gradients = {n: g for n, g in gradients.items() if n in self._active}
        if gradients:
            values = [self._shared[number] for number in piece.reads]
            program = self._function.backward_programs[piece]
            found = self.device.call(program, values, gradients)
            for number, gradient in found.items():
                self.add_shared(number, gradient)


def _zeros(shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return jnp.zeros(shape, dtype)


def _summed(stage: Stage) -> list[int]:
    return [number for step in stage.sums for number in step.reads]
