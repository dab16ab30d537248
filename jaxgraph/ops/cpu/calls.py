"""The kernels as functions of arrays, with the checks and shapes that they rely on.

Every function but `on_large_pages`, `row_product`, `row_products`, `taken_rows` and
`weight_gradient` reduces the edges of one group, stored in compressed rows
(`jaxgraph.ops.core.edges`). `before` is an earlier result to continue from (its memory is reused);
it excludes self-messages. Without it rows without edges are 0. None of these is differentiable: ops
define derivatives. The others have the derivatives of XLA's code.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph.ops.core.derivatives import differentiated_as
from jaxgraph.ops.core.edges import EdgeGroup
from jaxgraph.ops.core.elementwise import LOADS, OPERATIONS, RegisterProgram
from jaxgraph.ops.core.precision import accumulation_dtype
from jaxgraph.ops.core.program_messages import ProgramTables
from jaxgraph.ops.core.rows import take_rows
from jaxgraph.ops.cpu.custom_call import call_kernel, call_on_arrays, optional

KERNEL_TYPES = tuple(map(jnp.dtype, (jnp.float32, jnp.bfloat16, jnp.float64)))
"""The dtypes that the kernels support."""
LACKS: frozenset[str] = frozenset()
"""Operations that programs cannot have here."""
SUMS_BY_EDGE = True
"""True where a program also sums columns by edge."""


def neighbor_sum(
    over: EdgeGroup,
    side: str,
    x: jax.Array,
    num_rows: int,
    *,
    weights: jax.Array | None = None,
    before: jax.Array | None = None,
) -> jax.Array:
    """y_i = sum_{e: j -> i} w_e x_j, added to `before`."""
    heads = 1 if weights is None or weights.ndim == 1 else weights.shape[1]
    if weights is not None:
        x, weights = _of_one_type(x, weights)
    dtype = accumulation_dtype(x.dtype)
    arrays = (
        x,
        optional(weights, x.dtype),
        _own_rows(over, num_rows),
        optional(before, dtype),
    )
    results = [((num_rows, *x.shape[1:]), dtype)]
    return call_kernel("jaxgraph_sum", over, side, arrays, results, {0: 3}, heads=np.int64(heads))[
        0
    ]


def edge_products(
    over: EdgeGroup,
    x: jax.Array,
    z: jax.Array,
    *,
    heads: int = 1,
    before: jax.Array | None = None,
) -> jax.Array:
    """y_e = <x_i, z_j> for e: j -> i, per head."""
    x, z = _of_one_type(x, z)
    arrays = (x, z, optional(before, x.dtype))
    results = [((over.edges.by_receiver.neighbors.shape[0], heads), x.dtype)]
    return call_kernel(
        "jaxgraph_product", over, "receiver", arrays, results, {0: 2}, heads=np.int64(heads)
    )[0]


def neighbor_extremum(
    over: EdgeGroup,
    x: jax.Array,
    num_rows: int,
    *,
    maximum: bool,
    before: tuple[jax.Array, jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The state of `core.reducers.Extremum` after all messages m_ij = x_j of a group."""
    state = before or (None, None)
    dtype, shape = accumulation_dtype(x.dtype), (num_rows, *x.shape[1:])
    arrays = (x, _own_rows(over, num_rows), *(optional(part, dtype) for part in state))
    best, count = call_kernel(
        "jaxgraph_extremum",
        over,
        "receiver",
        arrays,
        [(shape, dtype)] * 2,
        {0: 2, 1: 3},
        maximum=np.bool_(maximum),
    )
    return best, count


def winner_gradient(
    over: EdgeGroup,
    x: jax.Array,
    adjoint: tuple[jax.Array, jax.Array],
    *,
    before: jax.Array | None = None,
) -> jax.Array:
    """dx_j = sum_{e: j -> i} g_i where x_j won at i, added to `before`."""
    dtype, num_rows = accumulation_dtype(x.dtype), x.shape[0]
    arrays = (x, _own_rows(over, num_rows), *adjoint, optional(before, dtype))
    return call_kernel("jaxgraph_winner", over, "sender", arrays, [(x.shape, dtype)], {0: 4})[0]


def run_program(
    over: EdgeGroup, side: str, program: RegisterProgram, tables: ProgramTables
) -> tuple[list[jax.Array], list[jax.Array]]:
    """y_i = sum_{e: j -> i} f_s(row i, neighbour j, edge e, parameters) for each sum f_s."""
    dtype, slots = program.dtype, over.edges.by_receiver.neighbors.shape[0]

    def beside(arrays: list[jax.Array]) -> jax.Array:
        """The columns of all arrays in one table."""
        arrays = [array.reshape(len(array), -1) for array in arrays]
        return arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays, 1)

    arrays = (
        beside(tables.rows) if tables.rows else jnp.zeros((1, 0), dtype),
        beside(tables.neighbors) if tables.neighbors else jnp.zeros((1, 0), dtype),
        beside(tables.edges) if tables.edges else jnp.zeros((1, 0), dtype),
        jnp.concatenate([*tables.parameters, jnp.zeros(0, dtype)]),
        jnp.asarray(program.constants or (0.0,), dtype),
        jnp.asarray(_code_of(program)),
        beside(tables.before) if tables.before else optional(None, dtype),
        beside(tables.edges_before) if tables.edges_before else optional(None, dtype),
    )
    sums, dots = len(program.sums), len(program.dots)
    results = [((tables.num_rows, sums * program.columns), dtype), ((slots, dots), dtype)]
    y, of_edges = call_kernel("jaxgraph_program", over, side, arrays, results, {0: 6, 1: 7})
    of_sums = jnp.split(y, sums, 1) if sums > 1 else [y][:sums]
    return of_sums, [of_edges[:, dot] for dot in range(dots)]


def _code_of(program: RegisterProgram) -> np.ndarray:
    """int32, as `ProgramHandler` of `handlers.cc` reads it."""
    lines = []
    for each in program.instructions:
        operands = list(each.operands)
        if each.operation in ("row", "neighbor", "parameter"):
            operands[0] *= program.columns
        # What an operation does not read names a register that exists.
        operands += [0 if each.operation in LOADS else operands[0]] * (3 - len(operands))
        lines += [OPERATIONS.index(each.operation), each.to, *operands]
    head = [program.of_row, len(program.instructions), program.registers]
    counts = [len(program.sums), len(program.dots), program.columns]
    return np.array([*head, *counts, *program.sums, *program.dots, *lines], np.int32)


def _portable_weight_gradient(
    x: jax.Array, gradient: jax.Array, beside: jax.Array | None
) -> jax.Array:
    dtype = accumulation_dtype(x.dtype)
    return jnp.matmul(x.T, _side_by_side(gradient, beside), preferred_element_type=dtype)


@partial(differentiated_as, _portable_weight_gradient)
def weight_gradient(
    x: jax.Array, gradient: jax.Array, beside: jax.Array | None = None
) -> jax.Array:
    """dW = x^T [g h], for tables with very many rows."""
    width = gradient.shape[1] + (0 if beside is None else beside.shape[1])
    results = [((x.shape[1], width), accumulation_dtype(x.dtype))]
    arrays = (x, gradient, optional(beside, x.dtype))
    return call_on_arrays("jaxgraph_weight_gradient", arrays, results)[0]


def _portable_row_product(x: jax.Array, kernel: jax.Array, beside: jax.Array | None) -> jax.Array:
    return _side_by_side(x, beside) @ kernel


@partial(differentiated_as, _portable_row_product)
def row_product(x: jax.Array, kernel: jax.Array, beside: jax.Array | None = None) -> jax.Array:
    """y = [x u] W"""
    arrays = (x, optional(beside, x.dtype), kernel)
    results = [((x.shape[0], kernel.shape[1]), x.dtype)]
    return call_on_arrays("jaxgraph_row_product", arrays, results)[0]


def _portable_row_products(
    x: jax.Array, kernel: jax.Array, other: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return x @ kernel, x @ other


@partial(differentiated_as, _portable_row_products)
def row_products(x: jax.Array, kernel: jax.Array, other: jax.Array) -> tuple[jax.Array, jax.Array]:
    """y = x W and z = x V, reading x once."""
    arrays = (x, jnp.concatenate([kernel, other], 1))
    results = [((x.shape[0], each.shape[1]), x.dtype) for each in (kernel, other)]
    y, z = call_on_arrays("jaxgraph_row_products", arrays, results)
    return y, z


def on_large_pages(x: jax.Array, num_bytes: int) -> jax.Array:
    """x, available only after large pages were requested for the program's temporary memory."""
    results = [(x.shape, x.dtype), ((num_bytes,), jnp.uint8)]
    return call_on_arrays("jaxgraph_large_pages", (x,), results, {0: 0})[0]


@partial(differentiated_as, take_rows)
def taken_rows(x: jax.Array, rows: jax.Array) -> jax.Array:
    """y_i = x_j for j = rows_i."""
    results = [((len(rows), *x.shape[1:]), x.dtype)]
    return call_on_arrays("jaxgraph_take_rows", (x, rows), results)[0]


def _side_by_side(left: jax.Array, right: jax.Array | None) -> jax.Array:
    return left if right is None else jnp.concatenate([left, right], 1)


def _of_one_type(left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Casts both to their common type: a kernel multiplies numbers of one type."""
    dtype = jnp.promote_types(left.dtype, right.dtype)
    return left.astype(dtype), right.astype(dtype)


def _own_rows(over: EdgeGroup, num_rows: int) -> jax.Array:
    """`over.missing` padded to all rows of a table."""
    if over.missing is None:
        return optional(None, jnp.bool_)
    return jnp.pad(over.missing, (0, num_rows - over.missing.shape[0]))
