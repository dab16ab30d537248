"""Moves what a message function computes from one end of an edge to the nodes at that end.

f(s_j, r_i, x_e) = g(a(s_j), b(r_i), x_e)

a and b are evaluated once per node, before rows travel or are gathered, and g for every edge. All
three are parts of the traced f, with the derivatives that f has.

References:
  Ma et al., "NeuGraph: parallel deep neural network computation on large graphs", 2019, section
  3.4.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from jaxgraph.ops.core.messages import MessageFn
from jaxgraph.ops.core.rewriting.cut import costs, is_elementwise, moved_values
from jaxgraph.ops.core.rewriting.products import split_products
from jaxgraph.ops.core.rewriting.recognition import recognized
from jaxgraph.ops.core.rewriting.steps import ENDS, Program, Step, abstract, traced

Pytree = Any


@dataclasses.dataclass(frozen=True)
class Moved:
    """The steps that moved to the nodes at one end.

    Attributes:
      end: "sender" or "receiver".
      steps: the steps, in order.
      bytes_before, bytes_after: bytes of a row that an edge reads at that end.
    """

    end: str
    steps: tuple[Step, ...]
    bytes_before: int
    bytes_after: int


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """A message function after its rewriting, its inputs, and where each of its steps runs.

    Attributes:
      message_fn: of sender, receiver and edge, for any number of edges.
      inputs: by end, what it is given: pytrees of arrays [rows, ...].
      moved: the steps that run once per node, by end.
      split: products of concatenations that became a product for each part.
      remaining: the steps that run for every edge.
      reason: why nothing moved; "" where something did.
      known: the message of a kernel that the function is, `(params, sender, receiver, edge)`, whose
        inputs are then `inputs`; None: it is another one.
    """

    message_fn: Callable[[Pytree, Pytree, Pytree], Pytree]
    inputs: dict[str, Pytree]
    moved: tuple[Moved, ...]
    split: tuple[Step, ...]
    remaining: tuple[Step, ...]
    reason: str
    known: MessageFn | None = None

    @property
    def is_elementwise(self) -> bool:
        """True where no step that remains combines features."""
        return all(is_elementwise(step) for step in self.remaining)


def rewritten(
    message_fn: Callable[[Pytree, Pytree, Pytree], Pytree],
    inputs: dict[str, Pytree],
    edges: int,
    lanes: int,
    real: Callable[[str, jax.Array], jax.Array] = lambda end, leaf: leaf,
) -> Rewritten:
    """Moves steps of a message function to the nodes at both ends of the edges."""
    types = abstract(inputs)
    program, split = _program(message_fn, types, lanes)
    values = {end: _moved(program, inputs[end], end, edges, lanes) for end in ENDS[:2]}
    tables, reason = _tables(message_fn, types, inputs, values, (program, lanes), real)
    known = [number for table in tables.values() for number in table]
    remaining = program.needed(program.outputs, known)
    read = {i for step in remaining for i in step.reads}
    read |= {each for each in program.outputs if isinstance(each, int)}
    leaves = {end: _leaves(program, end, inputs[end]) for end in ENDS}
    fewer, moved = dict(inputs), []
    for end, table in tables.items():
        fewer[end] = table | {i: leaf for i, leaf in leaves[end].items() if i in read}
        steps = tuple(step for step in program.needed(table) if program.ends_of(step))
        moved.append(Moved(end, steps, _row_bytes(inputs[end]), _row_bytes(fewer[end])))
    outline = program.outline

    def message(*ends: Pytree) -> Pytree:
        count = jax.tree.leaves(ends)[0].shape[0]
        program, _ = _program(message_fn, types, count)
        if program.outline != outline:
            raise ValueError(
                "the message function computes something else in every call; expected a function "
                "of its arguments, and of arrays that stay the same"
            )
        known: dict[int, Any] = {}
        for end, given in zip(ENDS, ends, strict=True):
            known |= given if end in tables else _leaves(program, end, given)
        return jax.tree.unflatten(program.structure, program.run(program.outputs, known))

    found = Rewritten(
        message if tables else message_fn,
        fewer,
        tuple(moved),
        split if tables else (),
        tuple(step for step in remaining if program.ends_of(step)),
        reason,
    )
    own = recognized(program, leaves["sender"] | tables.get("sender", {}), leaves["edge"])
    if own is None:
        return found
    known_message, sender, edge = own
    of_ends = {"sender": sender, "receiver": None, "edge": edge}
    return dataclasses.replace(found, known=known_message, inputs=of_ends)


def _leaves(program: Program, end: str, tree: Pytree) -> dict[int, Any]:
    """The leaves of an end's arrays, by number."""
    return dict(zip(program.arguments[end], jax.tree.leaves(tree), strict=True))


def _tables(
    message_fn: Callable[..., Pytree],
    types: dict[str, Pytree],
    inputs: dict[str, Pytree],
    values: dict[str, tuple[int, ...]],
    of_edges: tuple[Program, int],
    real: Callable[[str, jax.Array], jax.Array],
) -> tuple[dict[str, dict[int, jax.Array]], str]:
    """The values that edges read at each end, [rows, ...], by number; or why there are none."""
    tables: dict[str, dict[int, jax.Array]] = {}
    for end, numbers in values.items():
        if not numbers:
            continue
        rows = len(jax.tree.leaves(inputs[end])[0])
        program, _ = _program(message_fn, types, rows)
        if program.outline != of_edges[0].outline:
            return {}, "its program depends on the number of edges"
        # Shapes of one number of lanes do not say which axis is theirs.
        other = (program, rows)
        if rows == of_edges[1]:
            other = _program(message_fn, types, rows + 1)[0], rows + 1
        if not all(_has_rows_first(number, of_edges, other) for number in numbers):
            return {}, "a value at the nodes has its rows along another axis than the first"
        leaves = {i: real(end, leaf) for i, leaf in _leaves(program, end, inputs[end]).items()}
        found = program.run(numbers, leaves)
        tables[end] = dict(zip(numbers, found, strict=True))
    return tables, "" if tables else "no step is cheaper at the nodes"


def _has_rows_first(number: int, *programs: tuple[Program, int]) -> bool:
    """True for a value whose first axis alone is that of edges, by programs of several numbers."""
    shapes = [(program.types[number].shape, lanes) for program, lanes in programs]
    columns = shapes[0][0][1:]
    return all(shape[:1] == (lanes,) and shape[1:] == columns for shape, lanes in shapes)


def _program(
    message_fn: Callable[..., Pytree], types: dict[str, Pytree], lanes: int
) -> tuple[Program, tuple[Step, ...]]:
    return split_products(traced(message_fn, types, lanes))


def _moved(program: Program, table: Pytree, end: str, edges: int, lanes: int) -> tuple[int, ...]:
    leaves = jax.tree.leaves(table)
    if not leaves:
        return ()
    values = moved_values(program, end, lanes, len(leaves[0]) / max(edges, 1))
    steps = [step for step in program.needed(values) if program.ends_of(step)]
    return values if any(costs(step) for step in steps) else ()


def _row_bytes(tree: Pytree) -> int:
    leaves = jax.tree.leaves(tree)
    return sum(leaf.size // max(len(leaf), 1) * leaf.dtype.itemsize for leaf in leaves)
