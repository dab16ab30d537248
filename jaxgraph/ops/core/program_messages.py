"""Sums of element-wise messages, which a kernel computes from instructions on registers.

The gradient is made of the same kernel: the pullback of an element-wise function is element-wise.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.edge_outputs import EdgeOutputs
from jaxgraph.ops.core.edges import AllEdges, EdgeGroup, match_variation
from jaxgraph.ops.core.elementwise import Load, RegisterProgram, compiled
from jaxgraph.ops.core.kernel_stages import KernelStages
from jaxgraph.ops.core.message_kernels import CallStages
from jaxgraph.ops.core.messages import (
    GroupMessages,
    Inputs,
    Wanted,
    chunk_examples,
    evaluate_message,
    message_shapes,
)
from jaxgraph.ops.core.reducers import Sum
from jaxgraph.ops.core.stages import Stages

Pytree = Any
_PARTS = ("params", "sender", "receiver", "edge")
_ALL = Wanted(params=True, sender=True, receiver=True, edge=True)


@dataclasses.dataclass(frozen=True)
class ProgramTables:
    """The arrays that a program reads, and those that its sums continue from.

    Attributes:
      rows: [rows, columns] each, read at the row that is written.
      neighbors: [neighbors' rows, columns] each, read at the other end.
      edges: [slots] each.
      parameters: [columns] each.
      num_rows: rows of the result.
      before: [num_rows, columns] for each sum, or none.
      edges_before: [slots] for each dot, of the slots of other groups, or none.
    """

    rows: list[jax.Array]
    neighbors: list[jax.Array]
    edges: list[jax.Array]
    parameters: list[jax.Array]
    num_rows: int
    before: list[jax.Array]
    edges_before: list[jax.Array]


def program_stages(calls: Any, plain: Stages, inputs: Inputs) -> KernelStages | None:
    """The kernel for element-wise messages that are summed."""
    if type(plain.reducer) is not Sum or isinstance(plain.message, EdgeOutputs):
        return None
    shapes = jax.tree.leaves(message_shapes(plain.message, inputs, plain.chunk))
    columns, dtype = shapes[0].size // plain.chunk, shapes[0].dtype
    if columns < 2 or dtype not in (jnp.float32, jnp.float64) or not _fit(inputs, columns, dtype):
        return None
    if any(leaf.size != plain.chunk * columns or leaf.dtype != dtype for leaf in shapes):
        return None
    if dtype not in calls.KERNEL_TYPES:
        return None
    found = _ProgramStages(**vars(plain), calls=calls, columns=columns, dtype=dtype)
    sides, wanted = ("sender", "receiver"), dataclasses.replace(_ALL, edge=calls.SUMS_BY_EDGE)
    programs = [found.forward(inputs), *(found.pulled(side, inputs, wanted) for side in sides)]
    can_run = all(each is not None and not calls.LACKS & each.operations for each in programs)
    return found if can_run else None


def _fit(inputs: Inputs, columns: int, dtype: Any) -> bool:
    """True where nodes have rows of all columns, edges a number, and parameters either."""

    def width(leaf: jax.Array) -> int:
        return leaf.size // max(len(leaf), 1)

    ends = jax.tree.leaves((inputs.sender, inputs.receiver))
    edge, params = jax.tree.leaves(inputs.edge), jax.tree.leaves(inputs.params)
    return (
        bool(ends)
        and all(leaf.dtype == dtype for leaf in (*ends, *edge, *params))
        and all(width(leaf) == columns for leaf in ends)
        and all(width(leaf) == 1 for leaf in edge)
        and all(leaf.size in (1, columns) for leaf in params)
    )


@dataclasses.dataclass(frozen=True)
class _ProgramStages(CallStages):
    """y_i = sum_{e: j -> i} f(params, s_j, r_i, x_e), f element-wise.

    Attributes:
      columns, dtype: numbers of a row of a message, and their type.
    """

    columns: int
    dtype: Any

    def fold(self, block: AllEdges, inputs: Inputs) -> Pytree:
        # Messages of nodes to themselves are not the kernel's.
        plain = block.missing_self_loop is not None
        return Stages.fold(self, block, inputs) if plain else super().fold(block, inputs)

    def pull(self, block: AllEdges, inputs: Inputs, adjoint: Pytree, wanted: Wanted) -> Inputs:
        plain = block.missing_self_loop is not None
        pull = Stages.pull if plain else KernelStages.pull
        return pull(self, block, inputs, adjoint, wanted)

    def fold_over(self, over: EdgeGroup, inputs: Inputs, before: Pytree, num_rows: int) -> Pytree:
        program = self.forward(inputs)
        assert program is not None
        running = [] if before is None else self._rows(before)
        tables = self._tables("receiver", inputs, (), num_rows, running)
        sums, _ = self.calls.run_program(over, "receiver", program, tables)
        leaves, structure = jax.tree.flatten(message_shapes(self.message, inputs, self.chunk))
        return structure.unflatten(_shaped(sums, leaves))

    def pull_over(
        self, over: EdgeGroup, inputs: Inputs, adjoint: Pytree, wanted: Wanted, before: Inputs
    ) -> Inputs:
        gradients = before
        if wanted.sender:
            program = self.pulled("sender", inputs, wanted)
            assert program is not None
            rows = len(jax.tree.leaves(inputs.sender)[0])
            running = self._rows(before.sender)
            tables = self._tables("sender", inputs, adjoint, rows, running)
            sums, _ = self.calls.run_program(over, "sender", program, tables)
            of_sender = _shaped(sums, jax.tree.leaves(inputs.sender))
            gradients = dataclasses.replace(gradients, sender=of_sender)
        if wanted.edge and not self.calls.SUMS_BY_EDGE:
            wanted = dataclasses.replace(wanted, edge=False)
            totals = before.edge or [jnp.zeros_like(x) for x in jax.tree.leaves(inputs.edge)]
            totals = match_variation(totals, (over.edges, inputs, adjoint))
            messages = GroupMessages(over.edges, over.group, self.message, self.reducer, inputs)
            of_edges, _ = messages.pull_edges(adjoint, totals)
            gradients = dataclasses.replace(gradients, edge=of_edges)
        if wanted.receiver or wanted.edge or wanted.params:
            found = self._pulled_to_receivers(over, inputs, adjoint, wanted, before)
            gradients = dataclasses.replace(gradients, **found)
        return gradients

    def _pulled_to_receivers(
        self, over: EdgeGroup, inputs: Inputs, adjoint: Pytree, wanted: Wanted, before: Inputs
    ) -> dict[str, list[jax.Array]]:
        """The wanted gradients of receivers, edges and parameters, in one pass."""
        program = self.pulled("receiver", inputs, wanted)
        assert program is not None
        rows = len(jax.tree.leaves(adjoint)[0])
        tables = self._tables("receiver", inputs, adjoint, rows, [])
        if wanted.edge:
            edges_before = [each.reshape(-1) for each in before.edge]
            tables = dataclasses.replace(tables, edges_before=edges_before)
        sums, dots = self.calls.run_program(over, "receiver", program, tables)
        leaves = {part: jax.tree.leaves(getattr(inputs, part)) for part in _PARTS}
        count = len(leaves["receiver"]) if wanted.receiver else 0
        found: dict[str, list[jax.Array]] = {}
        if wanted.receiver:
            found["receiver"] = _shaped(sums[:count], leaves["receiver"])
        if wanted.params:
            found["params"] = [
                (total.sum() if leaf.size == 1 else total.sum(0)).reshape(leaf.shape)
                for total, leaf in zip(sums[count:], leaves["params"], strict=True)
            ]
        for part, new in found.items():
            if old := getattr(before, part):
                found[part] = [a + b for a, b in zip(old, new, strict=True)]
        if wanted.edge:
            found["edge"] = _shaped(dots, leaves["edge"])
        return found

    def forward(self, inputs: Inputs) -> RegisterProgram | None:
        """The program of the messages."""
        examples = chunk_examples(inputs, self.chunk)
        leaves, structure = jax.tree.flatten(examples)

        def messages(*leaves: jax.Array) -> list[jax.Array]:
            found = evaluate_message(self.message, structure.unflatten(leaves))
            return jax.tree.leaves(found)

        count = len(jax.tree.leaves(message_shapes(self.message, inputs, self.chunk)))
        loads = self._loads("receiver", inputs, 0)
        return compiled(messages, leaves, loads, [False] * count, self.columns, self.dtype)

    def pulled(self, side: str, inputs: Inputs, wanted: Wanted) -> RegisterProgram | None:
        """The program of the gradients that are summed by the rows of one end."""
        examples = chunk_examples(inputs, self.chunk)
        leaves, structure = jax.tree.flatten(examples)
        shapes, of_messages = jax.tree.flatten(message_shapes(self.message, inputs, self.chunk))
        gradients = [match_variation(jnp.zeros(x.shape, x.dtype), examples) for x in shapes]
        parts = ("sender",) if side == "sender" else ("receiver", "params", "edge")
        parts = tuple(part for part in parts if getattr(wanted, part))

        def pull(*arguments: jax.Array) -> list[jax.Array]:
            given = structure.unflatten(arguments[: len(leaves)])

            def evaluate(moving: list[Pytree]) -> Pytree:
                seen = dataclasses.replace(given, **dict(zip(parts, moving, strict=True)))
                return evaluate_message(self.message, seen)

            _, back = jax.vjp(evaluate, [getattr(given, part) for part in parts])
            return jax.tree.leaves(back(of_messages.unflatten(arguments[len(leaves) :]))[0])

        is_dot = [part == "edge" for part in parts for _ in jax.tree.leaves(getattr(inputs, part))]
        loads = self._loads(side, inputs, len(gradients))
        found = [*leaves, *gradients]
        return compiled(pull, found, loads, is_dot, self.columns, self.dtype)

    def _loads(self, side: str, inputs: Inputs, gradients: int) -> list[Load]:
        """Where the kernel finds the leaves of the inputs, and the gradients of the messages."""
        loads, found = [], {"row": 0, "neighbor": 0, "parameter": 0, "edge": 0}

        def add(table: str, kind: str) -> None:
            loads.append(Load(table, found[table], kind))
            found[table] += 1

        for leaf in jax.tree.leaves(inputs.params):
            add("parameter", "number" if leaf.size == 1 else "parameter")
        for end in ("sender", "receiver"):
            for _ in jax.tree.leaves(getattr(inputs, end)):
                add("row" if end == side else "neighbor", "columns")
        for _ in jax.tree.leaves(inputs.edge):
            add("edge", "edge")
        for _ in range(gradients):
            add("row" if side == "receiver" else "neighbor", "columns")
        return loads

    def _tables(
        self, side: str, inputs: Inputs, adjoint: Pytree, num_rows: int, before: list[jax.Array]
    ) -> ProgramTables:
        sender, receiver = self._rows(inputs.sender), self._rows((inputs.receiver, adjoint))
        return ProgramTables(
            rows=sender if side == "sender" else receiver,
            neighbors=receiver if side == "sender" else sender,
            edges=[leaf.reshape(-1) for leaf in jax.tree.leaves(inputs.edge)],
            parameters=[
                jnp.broadcast_to(leaf.reshape(-1), (self.columns,))
                for leaf in jax.tree.leaves(inputs.params)
            ],
            num_rows=num_rows,
            before=before,
            edges_before=[],
        )

    def _rows(self, tree: Pytree) -> list[jax.Array]:
        return [leaf.reshape(-1, self.columns) for leaf in jax.tree.leaves(tree)]


def _shaped(arrays: list[jax.Array], likes: list[Any]) -> list[jax.Array]:
    """Arrays [rows, columns] or [slots] in the shapes of others, which may have other rows."""
    return [a.reshape(-1, *like.shape[1:]) for a, like in zip(arrays, likes, strict=True)]
