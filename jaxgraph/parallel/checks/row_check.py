"""Refuses functions of a shard whose result would depend on the partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jaxgraph.parallel.checks.axis_states import Along
from jaxgraph.parallel.checks.row_flow import RowsError, follow_rows
from jaxgraph.parallel.checks.row_states import UNKNOWN, Number, Rows, RowState, Same, Share

__all__ = ["check_rows", "state_of_field"]

_PADDING: Mapping[str, Number | None] = MappingProxyType(
    {
        **dict.fromkeys(("node_mask", "missing_self_loop"), False),
        **dict.fromkeys(("train_mask", "val_mask", "test_mask"), False),
        **dict.fromkeys(("in_degree", "weighted_in_degree", "nodes", "graph_ids", "node_ids"), 0),
        "labels": None,
    }
)
"""Fields of a shard with a row per node, and the number in their padding; None: not known."""

_NATURAL = frozenset(("in_degree", "node_ids", "graph_ids"))
"""Integer fields without negative entries."""

_COMPLETE = (
    "Complete it over the devices first: shard.sum(total) of a sum; of a mean, total, count = "
    "shard.sum((total, count)), then divide; jax.lax.pmax(value, shard.axis) of a maximum"
)
_WHY: Mapping[str, str] = MappingProxyType(
    {
        "padding": "reduces over the rows of the shard, rows of padding included. Mask them first: "
        "shard.mask_rows(x), or where=shard.node_mask[:, None] and, of a maximum, "
        "initial=-jnp.inf. Layers and biases fill rows of padding: mask right before the reduction",
        "mean": "divides a sum over the rows of the shard by their number, padding included. "
        + _COMPLETE,
        "parts": "divides a sum over the devices by the number of parts. " + _COMPLETE,
        "share": "uses a reduction over this device's rows, which depends on the partition. "
        + _COMPLETE,
        "branch": "branches on a reduction over this device's rows, or on a row. " + _COMPLETE,
        "added": "adds a value that is the same on every device, such as a penalty on parameters, "
        "to a sum over this device's rows: it would be counted once per part. Add it after "
        "shard.sum",
        "counted": "reduces over the devices a value that is the same on all of them: it would be "
        "counted once per part. Use it as it is",
        "rows": "reduces an array with a row per node over the devices: it would combine row r of "
        "every device, which are different nodes. Reduce it over the rows first: "
        "shard.sum(jnp.sum(shard.mask_rows(x), axis=0))",
        "mixes": "combines rows of different nodes of this device, or picks or reorders them. "
        "Combine rows with jaxgraph.parallel.propagate along edges, or with shard.sum over all "
        "nodes",
        "position": "depends on the position of a row on its device, which differs with the "
        "partition. Number nodes by shard.node_ids; arrays with a row per node belong to the Graph",
    }
)


def state_of_field(path: Sequence[Any], dimensions: int) -> RowState:
    """Returns the state of an array of the shard.

    Args:
      path: from the shard to the array; columns of features are below a field.
      dimensions: their number, with a leading one of size 1 before the rows.

    Returns:
      Its state.
    """
    name = path[0].name
    if name == "node_data":
        return Rows(Along(1), 0)
    if name not in _PADDING or len(path) > 1:
        return UNKNOWN
    padding = (-1 if dimensions == 2 else 0) if name == "labels" else _PADDING[name]
    return Rows(Along(1), padding, natural=name in _NATURAL)


def check_rows(
    program: Any,
    inputs: Sequence[RowState],
    outputs: Sequence[str],
    num_rows: int,
    *,
    has_padding: bool,
) -> None:
    """Checks that a function of a shard gives the same result on any number of parts.

    It must treat every row separately, mask padding before it reduces over rows, and complete such
    reductions over the devices before it uses them. Its own use of `jax.lax.axis_index` and of
    collectives is not checked.

    Args:
      program: its jaxpr, closed, traced under `shard_map`.
      inputs: the states of its flat arguments.
      outputs: for each flat output, "rows" where it has a row per node.
      num_rows: rows of the shard.
      has_padding: whether any device has rows of padding.

    Raises:
      ValueError: the result would depend on the partition.
    """
    try:
        states = follow_rows(program, inputs, num_rows, has_padding=has_padding)
        shapes = [tuple(shape.shape) for shape in program.out_avals]
        for word, state, shape in zip(outputs, states, shapes, strict=True):
            # An array of a shard has a dimension of size 1 before its rows.
            if word == "rows" and shape[:1] == (num_rows,):
                _check_output(state)
    except RowsError as found:
        where = f" ({found.line})" if found.line else ""
        raise ValueError(
            "the function that jaxgraph.parallel.spmd runs would give another result on another "
            f"number of parts: {found.operation}{where} {_WHY[found.why]}"
        ) from None


def _check_output(state: RowState) -> None:
    if isinstance(state, Share):
        raise RowsError("share", "an output of 'rows'", "")
    if isinstance(state, Rows) and state.along.axis != 0:
        raise RowsError("mixes", "an output of 'rows'", "")
    if isinstance(state, Same) and state.value is None and 0 not in state.uniform:
        raise RowsError("position", "an output of 'rows'", "")
