"""Refuses functions of a shard whose result would depend on the partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

from jaxgraph.layout.schema import EDGE_DATA, node_fields
from jaxgraph.parallel.checks.row_flow import RowsError, follow_rows
from jaxgraph.parallel.checks.states import Along, Rows, RowState, Same, Share, Unknown

_FILLS = {field.name: field.fill for field in node_fields(num_classes=0)}
"""The numbers in the padding of a shard's arrays with a row per node."""

_NATURAL = frozenset(("in_degree", "node_ids"))
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
        "count": "multiplies rows by the number of rows of the shard, or divides them by it, which "
        "differs with the partition. shard.num_nodes is the number of nodes of the whole graph",
        "opaque": "calls Python with rows of the shard, where nothing tells whether it treats each "
        "row by itself. Write it with jax.numpy, or call it on the host with gathered rows",
        "tables": "combines arrays of two sharded graphs, which order their nodes and edges "
        "differently. Shard one graph that has the edges of both, with an array that tells them "
        "apart: graph.with_edges(is_negative=...), which shard.edge_data holds",
    }
)

_WHY_OF_EDGES: Mapping[str, str] = MappingProxyType(
    {
        "padding": "reduces over the slots of the shard's edges, slots of padding included. Mask "
        "them first: jnp.where(shard.edge_mask, x, 0), or where=shard.edge_mask and, of a maximum, "
        "initial=-jnp.inf; biases fill slots of padding: mask right before the reduction",
        "mean": "divides a sum over the slots of the shard's edges by their number, padding "
        "included. Complete it over the devices first: total, count = shard.sum((total, "
        "jnp.sum(shard.edge_mask))), then divide",
        "rows": "reduces an array with an entry per edge over the devices: it would combine slot e "
        "of every device, which are different edges. Reduce it over the slots first: "
        "shard.sum(jnp.sum(jnp.where(shard.edge_mask, x, 0)))",
        "mixes": "combines values of different edges of this device, or picks or reorders them. "
        "Reduce them at their receivers with jaxgraph.parallel.propagate, or with shard.sum over "
        "all edges",
        "position": "depends on the slot of an edge on its device, which differs with the "
        "partition. Arrays with an entry per edge belong to the Graph: graph.with_edges(name=...)",
    }
)

_OF_EDGES = frozenset((*EDGE_DATA, "edge_data", "kept_edges"))


def state_of_field(
    path: Sequence[Any], leaf: Any, graph: int, own: Set[tuple[str, ...]], *, of_edges: bool
) -> RowState:
    """Returns the state of an array of the shard on an axis that the fields `own` have."""
    if path[0].name not in ("tables", "edge_arrays"):
        return Unknown(graph)
    # A table or a relation, its name, and a field.
    owner, name, below = (path[0].name, path[1].key), path[2].name, path[3:]
    if of_edges:
        is_own = owner in own and name in _OF_EDGES
        return Rows(Along(1), 0, table=graph) if is_own else Unknown(graph)
    if owner in own and name == "node_data":
        return Rows(Along(1), 0, table=graph)
    of_table = owner in own
    if (*owner, name) in own:
        of_table, name, below = True, below[0].name, below[1:]
    if not of_table or name not in _FILLS or below:
        return Unknown(graph)
    # Classes are one number for each node; 0 says that a node has none of several labels.
    padding = _FILLS[name] if leaf.ndim == 2 else 0
    return Rows(Along(1), bool(padding) if leaf.dtype == bool else padding, name in _NATURAL, graph)


def check_rows(
    program: Any,
    inputs: Sequence[RowState],
    outputs: Sequence[str],
    num_rows: int,
    *,
    has_padding: bool,
    of_edges: bool = False,
) -> None:
    """Checks that a function of a shard gives the same result on any number of parts.

    It must treat every row separately, mask padding before it reduces over rows, and complete such
    reductions over the devices before it uses them. Its own use of `jax.lax.axis_index` and of
    collectives is not checked.
    """
    try:
        states = follow_rows(program, inputs, num_rows, has_padding=has_padding, of_edges=of_edges)
        followed = "edges" if of_edges else "rows"
        shapes = [tuple(shape.shape) for shape in program.out_avals]
        for word, state, shape in zip(outputs, states, shapes, strict=True):
            # An array of a shard has a dimension of size 1 before its rows.
            if word == followed and shape[:1] == (num_rows,):
                _check_output(state, f"an output of {word!r}")
    except RowsError as found:
        where = f" ({found.line})" if found.line else ""
        why = _WHY_OF_EDGES.get(found.why) if of_edges else None
        why = why or _WHY[found.why]
        raise ValueError(
            "the function that jaxgraph.parallel.spmd runs would give another result on another "
            f"number of parts: {found.operation}{where} {why}"
        ) from None


def _check_output(state: RowState, output: str) -> None:
    if isinstance(state, Share):
        raise RowsError("share", output, "")
    if isinstance(state, Rows) and state.along.axis != 0:
        raise RowsError("mixes", output, "")
    if isinstance(state, Same) and state.value is None and 0 not in state.uniform:
        raise RowsError("position", output, "")
