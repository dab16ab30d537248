"""Traces message functions, to check that they treat every edge, or every column, by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.closures import trace_message
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.parallel.checks.axis_flow import follow_axis
from jaxgraph.parallel.checks.axis_states import SHARED, Along, Mixed, State

__all__ = ["check_each_column", "check_each_edge"]

Pytree = Any
_LENGTHS = (1009, 1013)
"""Primes, so that the length of the axis is found as a factor of merged dimensions."""

_WHY = {
    "mixes": "{operation}{line} combines {entries} with each other, or drops or reorders them",
    "position": "its result depends on the position of {an_entry} ({operation}{line})",
    "random": "{operation}{line} draws random numbers by the position of {an_entry}",
    "count": "its result depends on the number of {entries} ({operation}{line})",
    "devices": "{operation}{line} depends on the device that computes {an_entry}",
}
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
    """Checks that a message function computes the message of an edge from that edge alone.

    Args:
      message_fn: takes pytrees of arrays [edges, ...].
      *examples: its arguments, with any number of edges.

    Raises:
      ValueError: a message depends on other edges of the chunk, or on the position of its edge, or
        an output has no leading axis of edges.
    """
    found = _follow(message_fn, examples, 0, [True] * len(examples))
    for path, state in found:
        if isinstance(state, Mixed):
            reason = _reason(state, "edges of a chunk", "an edge in the chunk")
            raise ValueError(
                f"message_fn does not act on every edge by itself: {reason}. {_EDGE_ADVICE}"
            )
        if not isinstance(state, Along) or (state.axis, state.outer, state.inner) != (0, 1, 1):
            raise ValueError(
                f"message_fn returned an array{path} without a leading axis of edges; expected "
                "[edges, ...], one message per edge that it was called with"
            )


def check_each_column(
    message_fn: Callable[..., Pytree], examples: Sequence[Pytree], has_columns: Sequence[bool]
) -> None:
    """Checks that a message function computes every column from that column alone.

    Args:
      message_fn: takes arrays [edges, ...].
      examples: its arguments.
      has_columns: for each argument, whether it is features [edges, columns].

    Raises:
      ValueError: a message depends on other columns, or on the position of a column.
    """
    for _, state in _follow(message_fn, examples, 1, has_columns):
        if isinstance(state, Mixed):
            reason = _reason(state, "columns of features", "a column on the device")
            raise ValueError(
                f"the message function does not act on every column by itself: {reason}. "
                f"{_COLUMN_ADVICE}"
            )


def _reason(state: Mixed, entries: str, an_entry: str) -> str:
    line = f" ({state.line})" if state.line else ""
    return _WHY[state.why].format(
        operation=state.operation, line=line, entries=entries, an_entry=an_entry
    )


def _follow(
    function: Callable[..., Pytree], examples: Sequence[Pytree], axis: int, on: Sequence[bool]
) -> list[tuple[str, State]]:
    """Returns the path and the state of each of a function's outputs."""

    def resized(tree: Pytree, length: int) -> Pytree:
        def example(leaf: jax.Array) -> jax.Array:
            shape = (*leaf.shape[:axis], length, *leaf.shape[axis + 1 :])
            return match_variation(jnp.zeros(shape, leaf.dtype), leaf)

        return jax.tree.map(example, tree)

    programs, structures = [], []
    for length in _LENGTHS:
        arguments = [
            resized(tree, length) if changes else tree
            for tree, changes in zip(examples, on, strict=True)
        ]
        try:
            closed, shape = trace_message(function, *arguments)
        except Exception as error:
            # An error that does not depend on the number is raised as it is.
            trace_message(function, *examples)
            kind = ("edges of a chunk", "columns of features")[axis]
            raise ValueError(
                f"the message function fails for another number of {kind}, {length}: {error}. "
                f"{(_EDGE_ADVICE, _COLUMN_ADVICE)[axis]}"
            ) from error
        programs.append(closed)
        structures.append(shape)
    inputs: list[State] = []
    for tree, changes in zip(examples, on, strict=True):
        inputs += [Along(axis) if changes else SHARED] * len(jax.tree.leaves(tree))
    states = follow_axis((programs[0], programs[1]), (_LENGTHS[0], _LENGTHS[1]), inputs)
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(structures[0])]
    return list(zip(paths, states, strict=True))
