"""The kernels as functions of the edges of one group, with the shapes that they rely on.

The counterpart of `jaxgraph.ops.cpu.calls`. A result overwrites `before`. Without it, kernels write
every row of the first group themselves, and rows of other groups start from zeros; rows with a
self-message start from that. None is differentiable: ops define derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.edges import EdgeGroup, Orientation, match_variation
from jaxgraph.ops.core.elementwise import RegisterProgram
from jaxgraph.ops.core.program_messages import ProgramTables
from jaxgraph.ops.core.reducers import is_nan
from pallas_kernels import edge_products as products
from pallas_kernels import edge_program, extremum
from pallas_kernels import neighbor_sum as sums
from pallas_kernels.rows import RowList, Rows

Pytree = Any

KERNEL_TYPES = tuple(map(jnp.dtype, (jnp.float32, jnp.bfloat16, jnp.float16)))
"""The dtypes that the kernels support."""
LACKS = frozenset(("sqrt",))
"""Operations that programs cannot have here: Mosaic GPU of jax 0.10 has no square root."""
SUMS_BY_EDGE = False
"""True where a program also sums columns by edge."""


def row_schedule(over: EdgeGroup, side: str, *, every: bool = False) -> Rows:
    """The rows of a group, in the order in which kernels reduce them."""
    orientation, group = over.edges.orientation(side), jnp.asarray(over.group, jnp.int32)
    first, stop = _between(orientation.compressed_ptr, group)
    cut = orientation.cut
    if cut is None:
        return Rows(_in_row_order(orientation, first, stop, every))
    start, end = _between(cut.whole_ptr, group)
    begin, end = start + cut.counts[group], end if every else start + stop - first
    whole = _listed(cut.whole_rows, cut.whole_starts, cut.whole_lengths, (begin, end), 0)
    if not cut.partials:
        return Rows(whole)
    between = _between(cut.split_ptr, group)
    parts = (cut.split_rows, cut.split_starts, cut.split_lengths)
    return Rows(
        whole,
        _listed(*parts, between, cut.longest[group]),
        _listed(cut.rows, cut.firsts, cut.splits, _between(cut.row_ptr, group), 0),
        cut.partials,
        cut.spread,
    )


def has_every_row(over: EdgeGroup, side: str, num_rows: int) -> bool:
    """True where `row_schedule(every=True)` has all rows of a table: kernels write them all."""
    is_first = isinstance(over.group, int) and over.group == 0
    return is_first and over.edges.orientation(side).position.shape[0] == num_rows


def _between(pointers: jax.Array, group: jax.Array) -> tuple[jax.Array, jax.Array]:
    return pointers[group], pointers[group + 1]


def _listed(
    rows: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
    between: tuple[jax.Array, jax.Array],
    longest: jax.Array | int,
) -> RowList:
    bounds = jnp.stack([*between, jnp.asarray(longest, jnp.int32)])
    return RowList(rows, starts, lengths, bounds)


def _in_row_order(
    orientation: Orientation, first: jax.Array, stop: jax.Array, every: bool
) -> RowList:
    starts, rows = orientation.compressed_starts, orientation.compressed_rows
    lengths = starts[1:] - starts[:-1]
    place = jnp.arange(len(lengths), dtype=jnp.int32)
    own = (place >= first) & (place < stop)
    longest = jnp.max(jnp.where(own, lengths, 0), initial=0)
    if not every:
        return _listed(rows, starts, lengths, (first, stop), longest)
    # Rows without edges follow, each at its own index.
    position = orientation.position
    numbers = jnp.arange(len(position), dtype=jnp.int32)
    rows = jnp.concatenate([jnp.where(own, rows, -1), jnp.where(position < 0, numbers, -1)])
    no_edges = jnp.zeros(len(position), jnp.int32)
    lengths = jnp.concatenate([jnp.where(own, lengths, 0), no_edges])
    starts = jnp.concatenate([starts[:-1], no_edges])
    between = (jnp.int32(0), jnp.int32(len(rows)))
    return _listed(rows, starts, lengths, between, longest)


def match_operands(operands: Pytree) -> Pytree:
    """`match_variation` of the arrays among operands; shapes are unchanged."""
    leaves, structure = jax.tree.flatten(operands)
    arrays = [leaf for leaf in leaves if not isinstance(leaf, jax.ShapeDtypeStruct)]
    matched = iter(match_variation(arrays, arrays))
    found = [leaf if isinstance(leaf, jax.ShapeDtypeStruct) else next(matched) for leaf in leaves]
    return jax.tree.unflatten(structure, found)


def _reduced(
    kernel: Callable[..., Pytree],
    over: EdgeGroup,
    side: str,
    start: Pytree,
    operands: Callable[[Rows, Pytree], tuple[Any, ...]],
    *,
    fresh: bool,
    **options: Any,
) -> Pytree:
    """The rows at one end after a kernel has reduced their edges, from `start` on.

    `operands` are the kernel's, of its rows and of the tables that it writes; `fresh`: whether
    `start` is the result of no edges.
    """
    first = jax.tree.leaves(start)[0]
    if not first.size or not over.edges.orientation(side).neighbors.size:
        return start
    every = fresh and has_every_row(over, side, len(first))
    tables = jax.tree.map(_table, start)
    if every:
        tables = jax.tree.map(_uninitialized, tables)
    given = operands(row_schedule(over, side, every=every), tables)
    found = kernel(*match_operands(given), fresh=fresh, **options)
    return jax.tree.map(lambda new, old: new.reshape(old.shape), found, start)


def neighbor_sum(
    over: EdgeGroup,
    side: str,
    x: jax.Array,
    num_rows: int,
    *,
    weights: jax.Array | None = None,
    scale: jax.Array | None = None,
    before: jax.Array | None = None,
) -> jax.Array:
    """y_i = sum_{e: j -> i} w_e s_j x_j, added to `before`."""
    shape = (num_rows, *x.shape[1:])
    fresh = before is None and over.missing is None
    start = before if before is not None else _own_start(over, x, shape, scale)

    def operands(rows: Rows, table: Any) -> tuple[Any, ...]:
        return _neighbors(over, side, x, weights, scale), rows, table

    return _reduced(sums.neighbor_sum, over, side, start, operands, fresh=fresh)


def run_program(
    over: EdgeGroup,
    side: str,
    program: RegisterProgram,
    tables: ProgramTables,
) -> tuple[list[jax.Array], list[jax.Array]]:
    """y_i = sum_{e: j -> i} f_s(row i, neighbour j, edge e, parameters) for each sum f_s."""
    shape = (tables.num_rows, program.columns)
    start = tables.before or [jnp.zeros(shape, jnp.float32) for _ in program.sums]
    orientation = over.edges.orientation(side)
    given = edge_program.Tables(
        tables.rows,
        tables.neighbors,
        tables.edges,
        [each.reshape(1, -1) for each in tables.parameters],
        orientation.neighbors,
        orientation.edge_ids,
    )

    def function(own: Any, others: Any, numbers: Any, parameters: Any) -> list[jax.Array]:
        by_name = {"row": own, "neighbor": others, "edge": numbers, "parameter": parameters}
        return program.evaluate(lambda table, index: by_name[table][index])

    kernel = partial(edge_program.program_sums, function)
    operands = lambda rows, found: (given, rows, found)  # noqa: E731
    return _reduced(kernel, over, side, start, operands, fresh=not tables.before), []


def neighbor_mean(
    over: EdgeGroup,
    x: jax.Array,
    num_rows: int,
    *,
    weights: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """y_i = sum_{e: j -> i} w_e x_j / n_i, n_i the number of edges that enter i, at least 1."""
    shape, missing = (num_rows, *x.shape[1:]), over.missing
    start = _own_start(over, x, shape, None)
    neighbors = _neighbors(over, "receiver", x, weights, None)
    ones = jnp.ones((num_rows, neighbors.heads))
    if not start.size or not over.edges.by_receiver.neighbors.size:
        return start.astype(x.dtype), ones[:, 0]
    start = _table(start)
    # Without edges, a row's self-message is the mean.
    results = (start.astype(x.dtype), ones)
    before = None
    if missing is not None:
        own = jnp.pad(missing.astype(jnp.float32), (0, num_rows - len(missing)))
        before = (start, ones * own[:, None])
    every = has_every_row(over, "receiver", num_rows)
    operands = (
        neighbors,
        row_schedule(over, "receiver", every=every),
        tuple(map(_uninitialized, results)) if every else results,
        before,
    )
    y, inverse = sums.neighbor_mean(*match_operands(operands))
    return y.reshape(shape), inverse[:, 0]


def _own_start(
    over: EdgeGroup, x: jax.Array, shape: tuple[int, ...], scale: jax.Array | None
) -> jax.Array:
    """The sums before any edge, in float32: a row itself where self-loops are added, else 0."""
    start = jnp.zeros(shape, jnp.float32)
    if over.missing is None:
        return start
    own = _own(over.missing, x, 0.0)
    if scale is not None:
        own = own * _like(scale[: len(own)], own)
    return start.at[: len(over.missing)].set(own)


def _neighbors(
    over: EdgeGroup,
    side: str,
    x: jax.Array,
    weights: jax.Array | None,
    scale: jax.Array | None,
) -> sums.Neighbors:
    orientation = over.edges.orientation(side)
    if weights is None:
        return sums.Neighbors(_table(x), orientation.neighbors, scale=scale)
    weights = weights.reshape(weights.shape[0], -1)
    return sums.Neighbors(_table(x), orientation.neighbors, weights, orientation.edge_ids, scale)


def _uninitialized(like: jax.Array) -> jax.ShapeDtypeStruct:
    """The shape of a result of which kernels write every row that is read."""
    return jax.ShapeDtypeStruct(like.shape, like.dtype)


def edge_products(
    over: EdgeGroup,
    x: jax.Array,
    z: jax.Array,
    *,
    heads: int = 1,
    before: jax.Array | None = None,
) -> jax.Array:
    """y_e = <x_i, z_j> for e: j -> i, per head."""
    dtype = jnp.promote_types(x.dtype, z.dtype)
    shape = (over.edges.by_receiver.neighbors.shape[0], heads)
    start = jnp.zeros(shape, dtype) if before is None else before
    return _by_edge(products.edge_products, over, x, z, start)


def _by_edge(
    kernel: Callable[..., jax.Array], over: EdgeGroup, x: jax.Array, z: jax.Array, start: jax.Array
) -> jax.Array:
    if not start.size or not x.size or not z.size:
        return start
    rows, neighbors = row_schedule(over, "receiver"), over.edges.by_receiver.neighbors
    operands = (_table(x), _table(z), rows, neighbors, _table(start))
    return kernel(*match_operands(operands)).reshape(start.shape)


def edge_sums(
    over: EdgeGroup,
    x: jax.Array,
    z: jax.Array,
    *,
    before: jax.Array | None = None,
) -> jax.Array:
    """y_e = x_i + z_j for e: j -> i."""
    dtype = jnp.promote_types(x.dtype, z.dtype)
    shape = (over.edges.by_receiver.neighbors.shape[0], *x.shape[1:])
    start = jnp.zeros(shape, dtype) if before is None else before
    return _by_edge(products.edge_sums, over, x, z, start)


def edge_total(
    over: EdgeGroup,
    side: str,
    values: jax.Array,
    num_rows: int,
) -> jax.Array:
    """y_i = sum_e v_e over the edges that enter i, or those that leave it."""
    start = jnp.zeros((num_rows, *values.shape[1:]), jnp.float32)
    if not values.size:
        return start
    neighbors = sums.Neighbors(_table(values), over.edges.orientation(side).edge_ids)
    operands = lambda rows, table: (neighbors, rows, table)  # noqa: E731
    return _reduced(sums.neighbor_sum, over, side, start, operands, fresh=True)


def neighbor_extremum(
    over: EdgeGroup,
    x: jax.Array,
    num_rows: int,
    *,
    maximum: bool,
    before: tuple[jax.Array, jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The state of `core.reducers.Extremum` after all messages m_ij = x_j of a group."""
    shape, worst = (num_rows, *x.shape[1:]), -jnp.inf if maximum else jnp.inf
    state = before
    if state is None:
        state = (jnp.full(shape, worst), jnp.zeros(shape))
    if over.missing is not None:
        rows = len(over.missing)
        own = jnp.broadcast_to(_like(over.missing, x), x[:rows].shape)
        heads = (_own(over.missing, x, worst), own.astype(jnp.float32))
        state = tuple(part.at[:rows].set(new) for part, new in zip(state, heads, strict=True))
    neighbors = over.edges.by_receiver.neighbors
    operands = lambda rows, tables: (_table(x), rows, neighbors, tables)  # noqa: E731
    fresh = before is None and over.missing is None
    kernel = extremum.neighbor_extremum
    best, count = _reduced(kernel, over, "receiver", state, operands, fresh=fresh, maximum=maximum)
    return best, count


def winner_gradient(
    over: EdgeGroup,
    x: jax.Array,
    adjoint: tuple[jax.Array, jax.Array],
    *,
    before: jax.Array | None = None,
) -> jax.Array:
    """dx_j = sum_{e: j -> i} g_i where x_j won at i, added to `before`."""
    y, gradient = adjoint
    start = jnp.zeros(x.shape, jnp.float32) if before is None else before
    if over.missing is not None:
        rows = len(over.missing)
        own = (x[:rows] == y[:rows]) | (is_nan(x[:rows]) & is_nan(y[:rows]))
        wins = _like(over.missing, x) & own
        start = start.at[:rows].set(jnp.where(wins, gradient[:rows], 0))
    if not gradient.size:
        return start
    neighbors, fresh = over.edges.by_sender.neighbors, before is None and over.missing is None

    def operands(rows: Rows, table: Any) -> tuple[Any, ...]:
        return _table(x), rows, neighbors, tuple(map(_table, adjoint)), table

    return _reduced(extremum.winner_gradient, over, "sender", start, operands, fresh=fresh)


def _table(x: jax.Array) -> jax.Array:
    return x.reshape(x.shape[0], -1)


def _like(values: jax.Array, x: jax.Array) -> jax.Array:
    """One value per row, with the axes of x."""
    return values.reshape(-1, *(1,) * (x.ndim - 1))


def _own(missing: jax.Array, x: jax.Array, otherwise: float) -> jax.Array:
    """The x of rows with a self-message, as float32, and `otherwise` in other rows."""
    own = x[: len(missing)].astype(jnp.float32)
    return jnp.where(_like(missing, x), own, otherwise)
