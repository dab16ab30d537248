"""Notes on the errors of a message function: the likely cause, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax

Pytree = Any

_SHAPE = re.compile(r"\((\d+(?:, \d+)*),?\)")


def with_notes(
    message_fn: Callable[..., Pytree], all_rows: dict[str, set[int]]
) -> Callable[..., Pytree]:
    """Adds the likely cause to the errors of a message function."""

    def message(*ends: Pytree) -> Pytree:
        try:
            return message_fn(*ends)
        except Exception as error:
            for note in _causes(error, ends, all_rows):
                error.add_note(f"jaxgraph: {note}")
            raise

    return message


def _causes(
    error: Exception, ends: tuple[Pytree, ...], all_rows: dict[str, set[int]]
) -> Iterator[str]:
    given = dict(zip(all_rows, ends, strict=True))
    yield "the message function was called with " + ", ".join(
        f"{name} {_kind(value)}" for name, value in given.items()
    )
    missing = [name for name, value in given.items() if value is None]
    if missing and "NoneType" in str(error):
        yield (
            f"None stands for what was not given, {', '.join(f'{name}=' for name in missing)}; the "
            "order is propagate(graph, message_fn, sender, receiver, edge)"
        )
    shapes = [tuple(map(int, found.split(", "))) for found in _SHAPE.findall(str(error))]
    rows = {leaf.shape[0] for leaf in jax.tree.leaves(ends)}
    of_chunk = [shape for shape in shapes if shape[0] in rows]
    for name, numbers in all_rows.items():
        closed = [shape for shape in shapes if shape[0] in numbers - rows]
        if of_chunk and closed:
            yield (
                f"it closes over an array of shape {closed[0]}, and is called with a chunk of "
                f"{of_chunk[0][0]} edges at a time: pass the array as {name}="
            )
            return
    if len({len(shape) for shape in of_chunk}) > 1:
        yield (
            "a number for each edge has shape [edges], and rows have [edges, features]: multiply "
            "by e[:, None]"
        )


def _kind(value: Pytree) -> str:
    if value is None:
        return "None"
    leaves = jax.tree.leaves(value)
    kinds = [f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves]
    one = len(leaves) == 1 and leaves[0] is value
    return kinds[0] if one else f"{type(value).__name__} of {', '.join(kinds) or 'nothing'}"
