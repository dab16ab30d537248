"""A function of a shard, traced and cut once, ready to run over all parts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxgraph.ops.core.messages import is_floating
from jaxgraph.parallel.spmd import spmd
from jaxgraph.parallel.streaming.aggregation import AggregationOverParts, Folded
from jaxgraph.parallel.streaming.cutting import Piece, StagedProgram
from jaxgraph.parallel.streaming.devices import Devices
from jaxgraph.parallel.streaming.execution import Run, Values
from jaxgraph.parallel.streaming.flat_program import flattened
from jaxgraph.parallel.streaming.graph import StreamedGraph
from jaxgraph.parallel.streaming.programs import Executables, Summed, types_of
from jaxgraph.parallel.streaming.rehearsal import Needs, Rehearsal

Pytree = Any


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
        closed, shapes = _traced(function, graph, shared)
        self._structure = jax.tree.structure(shapes)
        self.result_types = types_of(shapes)
        words = jax.tree.map(lambda word, some: jax.tree.map(lambda _: word, some), outputs, shapes)
        self.has_rows = [word == "rows" for word in jax.tree.leaves(words)]
        program = flattened(closed)
        of_part = len(jax.tree.leaves(part))
        own, self.shared_arguments = program.arguments[:of_part], program.arguments[of_part:]
        # The number of the graph's nodes is the same for all parts.
        self.leaf_of_nodes = at = graph.parts.numbers.table().graph_nodes
        self.number_of_nodes = own[at]
        self.graph_leaves = {number: leaf for leaf, number in enumerate(own) if leaf != at}
        first = len(jax.tree.leaves(shared[0])) if differentiated else 0
        leaves = self.shared_arguments[:first]
        self.wanted = tuple(n for n in leaves if is_floating(program.types[n]))
        self.staged = StagedProgram(program, self.graph_leaves, self.wanted)
        self.constants: Values = program.constants
        self._types = types_of(tuple(shared))
        self.executables = Executables(graph.mesh, graph.axis)

    def __call__(self, *shared: Pytree) -> Pytree:
        """The function's results; those with rows are [own parts, rows, ...] on the host."""
        with Run(self, shared, self._new_devices(), keep=False) as run:
            run.forward()
            return self._structure.unflatten(run.outputs())

    def value_and_grad(self, *shared: Pytree) -> tuple[Pytree, Pytree]:
        """The results, and the gradient of the first output, a scalar, for the first argument."""
        with Run(self, shared, self._new_devices(), keep=True) as run:
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

    def write_rows(self, write: Callable[[int, np.ndarray], None], *shared: Pytree) -> None:
        """Computes a function whose one result has rows, and hands on those of each part."""
        with Run(self, shared, self._new_devices(), keep=False) as run:
            run.forward()
            number: Any = self.staged.program.outputs[0]
            for turn in self.graph.parts.turns:
                parts = self.graph.parts.of_turn(turn)
                for part, rows in zip(parts, run.value(number, turn).arrays, strict=True):
                    write(part, rows)

    @functools.cached_property
    def needs(self) -> Needs:
        """The bytes that a run needs, with the backward if there is one; compiles the programs."""
        return self._rehearsed(self.executables)

    @functools.cached_property
    def least_needs(self) -> Needs:
        """`needs` without the temporary memory of programs; compiles nothing."""
        uncompiled = Executables(self.graph.mesh, self.graph.axis, compile=False)
        return self._rehearsed(uncompiled)

    def _rehearsed(self, executables: Executables) -> Needs:
        devices, keep = Rehearsal(self.graph.parts, executables), bool(self.wanted)
        with Run(self, self._types, devices, keep=keep) as run:
            run.forward()
            if keep:
                run.backward()
        return devices.needs

    def _new_devices(self) -> Devices:
        return Devices(self.graph.parts, self.executables)

    @functools.cached_property
    def aggregations(self) -> list[list[AggregationOverParts]]:
        """The aggregations before each stage, whose results it reads, and those after the last."""
        made = functools.partial(AggregationOverParts, program=self.staged, graph=self.graph)
        return [[], *([made(step) for step in stage.aggregations] for stage in self.staged.stages)]

    def reads(self, level: int) -> set[int]:
        """The own values that are read while a stage runs, or is pulled back."""
        stage, before = self.staged.stages[level], self.aggregations[level]
        found = {n for each in before if each.wanted.some for n in each.step.results}
        for step in (*stage.aggregations, *(each.step for each in before)):
            found |= set(step.reads)
        return (found | set(stage.own.reads)) & (self.staged.own - self.staged.graph_values)

    # Programs, each compiled for its options.

    def run_shared(self, values: Values, *, piece: Piece) -> Values:
        """The values that shared steps write."""
        return piece.run(values, self.constants)

    def run_own(
        self,
        folded: list[Folded],
        values: Values,
        *,
        level: int,
        keep: bool,
        returned: tuple[int, ...],
    ) -> tuple[Values, list[Any]]:
        """Some values that the own steps of a stage make, and residuals of those before it."""
        env, residuals = dict(values), []
        for aggregation, each in zip(self.aggregations[level], folded, strict=True):
            results, kept = aggregation.finish(each)
            env |= dict(zip(aggregation.step.results, results, strict=True))
            residuals.append(kept if keep and aggregation.wanted.some else ())
        env |= self.staged.stages[level].own.run(env, self.constants)
        return {n: env[n] for n in returned}, residuals

    def pull(self, values: Values, gradients: Values, *, piece: Piece) -> Values:
        """The gradients of the active values that a piece reads, from those that it writes."""

        def of_active(active: Values) -> Values:
            written = piece.run(values | active, self.constants)
            return {n: written[n] for n in gradients}

        _, pull = jax.vjp(of_active, {n: values[n] for n in values if n in self.staged.active})
        found, own = pull(gradients)[0], self.staged.own
        return {n: each if n in own else Summed(each) for n, each in found.items()}


def _traced(
    function: Callable[..., Pytree], graph: StreamedGraph, shared: Sequence[Pytree]
) -> tuple[Any, Pytree]:
    """The jaxpr of a function of a part, closed, and the types of its results."""
    trace = jax.make_jaxpr(lambda part, *shared: function(part, *shared), return_shape=True)
    try:
        return trace(graph.parts.like, *types_of(shared))
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
