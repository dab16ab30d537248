"""Traces message functions, to check that they treat every edge, or every column, by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.closures import trace_message
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.parallel.checks.row_flow import RowsError, follow_rows
from jaxgraph.parallel.checks.states import Along, Rows, RowState, Same, Share, Unknown

Pytree = Any
_LENGTH = 1009
"""A prime, so that the length of the axis is found as a factor of merged dimensions."""

_WHY = {
    "position": "its result depends on the position of {an_entry} ({operation}{line})",
    "count": "its result depends on the number of {entries} ({operation}{line})",
    "devices": "it waits for other devices ({operation}{line}), which call it another number of "
    "times. A derivative by a value that is the same on every device, such as a parameter, sums "
    "over them: differentiate by jax.lax.pcast(value, shard.axis, to='varying')",
}
_MIXES = "{operation}{line} combines {entries} with each other, or drops or reorders them"
_EDGE_ADVICE = (
    "The function is called with chunks of edges, which differ with the number of parts. Combine "
    "edges before it, in arrays of nodes (sums over all nodes: shard.sum), or after it, in the "
    "result of propagate; pass an array with a row, or a number, for each edge as edge=; drop "
    "edges at random with jaxgraph.parallel.keep_edges(shard, key, rate), passed as edge data"
)
_COLUMN_ADVICE = (
    "In mode 'p3' a device holds only some columns of the features. Write the message column by "
    "column, or shard the graph in mode 'sar' or 'domain' and use jaxgraph.parallel.propagate"
)


def check_each_edge(message_fn: Callable[..., Pytree], *examples: Pytree) -> None:
    """Checks that a message function computes the message of an edge from that edge alone."""
    try:
        found = _follow(message_fn, examples, 0, [True] * len(examples))
        for path, state, shape in found:
            is_alike = isinstance(state, Same) and (state.value is not None or 0 in state.uniform)
            if shape[:1] == (_LENGTH,) and isinstance(state, Same | Unknown) and not is_alike:
                raise RowsError("position", f"output{path}", "")
            if isinstance(state, Share):
                raise RowsError("mixes", f"reduce_{state.kind}", "")
            if isinstance(state, Rows) and state.along.positions:
                raise RowsError("position", f"output{path}", "")
            along = state.along if isinstance(state, Rows) else Along(0)
            if shape[:1] != (_LENGTH,) or (along.axis, along.outer, along.inner) != (0, 1, 1):
                raise ValueError(
                    f"message_fn returned an array{path} without a leading axis of edges; expected "
                    "[edges, ...], one message per edge that it was called with"
                )
    except RowsError as error:
        reason = _reason(error, "edges of a chunk", "an edge in the chunk")
        raise ValueError(
            f"message_fn does not act on every edge by itself: {reason}. {_EDGE_ADVICE}"
        ) from None


def check_each_column(
    message_fn: Callable[..., Pytree], examples: Sequence[Pytree], has_columns: Sequence[bool]
) -> None:
    """Checks that a message function computes every column from that column alone."""
    try:
        for _, state, _ in _follow(message_fn, examples, 1, has_columns):
            if isinstance(state, Share | Unknown):
                raise RowsError("mixes", "the function", "")
    except RowsError as error:
        reason = _reason(error, "columns of features", "a column on the device")
        raise ValueError(
            f"the message function does not act on every column by itself: {reason}. "
            f"{_COLUMN_ADVICE}"
        ) from None


def _reason(error: RowsError, entries: str, an_entry: str) -> str:
    line = f" ({error.line})" if error.line else ""
    return _WHY.get(error.why, _MIXES).format(
        operation=error.operation, line=line, entries=entries, an_entry=an_entry
    )


def _follow(
    function: Callable[..., Pytree], examples: Sequence[Pytree], axis: int, on: Sequence[bool]
) -> list[tuple[str, RowState, tuple[int, ...]]]:
    """Returns the path, the state and the shape of each of a function's outputs."""

    def resized(tree: Pytree) -> Pytree:
        def example(leaf: jax.Array) -> jax.Array:
            shape = (*leaf.shape[:axis], _LENGTH, *leaf.shape[axis + 1 :])
            return match_variation(jnp.zeros(shape, leaf.dtype), leaf)

        return jax.tree.map(example, tree)

    pairs = list(zip(examples, on, strict=True))
    try:
        program, made = trace_message(
            function, *(resized(tree) if changes else tree for tree, changes in pairs)
        )
    except Exception as error:
        # An error that does not depend on the number is raised as it is.
        trace_message(function, *examples)
        kind = ("edges of a chunk", "columns of features")[axis]
        raise ValueError(
            f"the message function fails for another number of {kind}, {_LENGTH}: {error}. "
            f"{(_EDGE_ADVICE, _COLUMN_ADVICE)[axis]}"
        ) from error
    inputs: list[RowState] = []
    for tree, changes in pairs:
        inputs += [Rows(Along(axis)) if changes else Same()] * len(jax.tree.leaves(tree))
    states = follow_rows(program, inputs, _LENGTH, has_padding=False, of_messages=True)
    leaves = jax.tree_util.tree_leaves_with_path(made)
    return [
        (jax.tree_util.keystr(path), state, tuple(leaf.shape))
        for (path, leaf), state in zip(leaves, states, strict=True)
    ]
