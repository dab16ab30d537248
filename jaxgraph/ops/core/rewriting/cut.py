"""The choice of the steps of a message function that move from the edges to the nodes.

A step that depends on one end only can run once per node; its results are then read once per edge.
Every step and every value that is read has a cost, and a minimum cut finds the cheapest choice. A
product moves but for rows of a few numbers, which it would widen; an element-wise step moves unless
more numbers would be read for it.

Nodes that no edge reads are computed too. Where their numbers are finite, and derivatives are, they
change nothing. So what may divide by 0 stays with the edges, as does what JAX cannot see into.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from jaxgraph.ops.core.closures import VALUE_CALLS
from jaxgraph.ops.core.message_programs import inner_jaxprs
from jaxgraph.ops.core.rewriting.steps import Program, Step

_OPERATIONS_PER_BYTE = 2
"""Operations that take the time of a byte that is gathered. Chosen, not measured: with it, products
of 16 numbers and more run at the nodes, which lets the rest be fused with the gather."""

_SMOOTH = frozenset(
    (
        *("add", "sub", "mul", "neg", "max", "min", "abs", "sign", "select_n", "and", "or", "not"),
        *("eq", "ne", "lt", "le", "gt", "ge", "clamp", "square", "floor", "ceil", "round", "copy"),
        *("is_finite", "xor", "stop_gradient", "copy_p", "integer_pow", "one_minus_square"),
    )
)
"""Element-wise primitives of one operation, whose derivatives are finite for finite operands."""
_SMOOTH_AND_COSTLY = frozenset(("tanh", "logistic", "sin", "cos", "erf", "erfc", "atan", "asinh"))
_SINGULAR = frozenset(
    (
        *("div", "exp", "exp2", "log", "log1p", "expm1", "sqrt", "rsqrt", "cbrt", "pow", "rem"),
        *("tan", "erf_inv", "atan2", "asin", "acos", "sinh", "cosh", "acosh", "atanh"),
        *("nextafter",),
    )
)
"""Element-wise primitives that some number takes to infinity, or their derivative."""
_SHAPES = frozenset(
    (
        *("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "convert_element_type"),
        *("slice", "concatenate", "transpose", "rev", "pad", "pvary", "pcast"),
    )
)
"""Primitives that XLA fuses into what reads them, at no cost."""
_PRODUCTS = frozenset(("dot_general", "conv_general_dilated"))
_SUMS = frozenset(("reduce_sum", "reduce_max", "reduce_min"))

_ELEMENTWISE = _SMOOTH | _SMOOTH_AND_COSTLY | _SINGULAR | _SHAPES
_MOVABLE = _SMOOTH | _SMOOTH_AND_COSTLY | _SHAPES | _PRODUCTS | _SUMS
"""Primitives that may run for nodes that no edge reads: they keep a gradient of 0 at 0."""

_MOST = 1 << 24
"""The largest finite capacity, so that sums of them stay below an int32."""
_NEVER = 1 << 30


def costs(step: Step) -> bool:
    """True for steps that compute numbers, rather than copy them into another shape."""
    return step.name not in _SHAPES


def is_elementwise(step: Step) -> bool:
    """True for steps whose every number depends on one number of each operand."""
    return _is_of(step.equation, step.name, _ELEMENTWISE)


def _can_move(step: Step) -> bool:
    is_power = step.name == "integer_pow" and step.equation.params["y"] < 0
    return _is_of(step.equation, step.name, _MOVABLE) and not is_power


def _is_of(equation: Any, name: str, primitives: frozenset[str]) -> bool:
    """True for one of some primitives, and for a call of a function that is made of them."""
    if name in primitives:
        return True
    if name not in VALUE_CALLS:
        return False
    (body,) = inner_jaxprs(equation)
    return all(_is_of(each, each.primitive.name, primitives) for each in body.eqns)


def moved_values(program: Program, end: str, lanes: int, nodes_per_edge: float) -> tuple[int, ...]:
    """The values that are computed once per node of one end, and read by edges."""
    alone = frozenset((end,))
    steps = [step for step in program.needed(program.outputs) if program.ends_of(step) == alone]
    if not steps:
        return ()
    places = {id(step): 2 + at for at, step in enumerate(steps)}
    makers = {result: places[id(step)] for step in steps for result in step.results}
    makers |= dict.fromkeys(program.arguments[end], _NODES)
    readers = _readers(program, places)
    arcs: list[tuple[int, int, int]] = []
    for step in steps:
        cost = _operations(program, step) / lanes / _OPERATIONS_PER_BYTE
        # An arc is paid for if it leads from the nodes to the edges.
        can_move = _can_move(step)
        stays = math.ceil(cost) + 1 if can_move else 0
        arcs.append((_NODES, places[id(step)], stays))
        moves = math.ceil(cost * nodes_per_edge) if can_move else _NEVER
        arcs.append((places[id(step)], _EDGES, moves))
        arcs += [
            (places[id(step)], makers[i], _NEVER)
            for i in step.reads
            if makers.get(i, _NODES) != _NODES
        ]
    values = [value for value in makers if readers.get(value)]
    for at, value in enumerate(values, 2 + len(steps)):
        # A result that moves is also written once per node, and read by the edges from there.
        passes = 1.0 if makers[value] == _NODES else 1.0 + 2.0 * nodes_per_edge
        arcs.append((makers[value], at, math.ceil(passes * _bytes(program, value, lanes))))
        arcs += [(at, reader, _NEVER) for reader in readers[value]]
    at_nodes = _side_of_nodes(arcs, 2 + len(steps) + len(values))
    return tuple(
        value
        for value in sorted(makers)
        if makers[value] != _NODES
        and makers[value] in at_nodes
        and any(reader not in at_nodes for reader in readers.get(value, ()))
    )


_NODES, _EDGES = 0, 1
"""Source and sink of the flow."""


def _readers(program: Program, places: dict[int, int]) -> dict[int, set[int]]:
    """For each value, the places where it is read; the results of the function, at the edges."""
    found: dict[int, set[int]] = {}
    for step in program.needed(program.outputs):
        for value in step.reads:
            found.setdefault(value, set()).add(places.get(id(step), _EDGES))
    for value in program.outputs:
        if isinstance(value, int):
            found.setdefault(value, set()).add(_EDGES)
    return found


def _side_of_nodes(arcs: list[tuple[int, int, int]], count: int) -> set[int]:
    """The places that a minimum cut leaves on the side of the nodes."""
    capacities: dict[tuple[int, int], int] = {}
    for start, stop, capacity in arcs:
        total = capacities.get((start, stop), 0) + min(capacity, _NEVER)
        capacities[start, stop] = min(total, _NEVER if capacity == _NEVER else _MOST)
    pairs = [(arc, capacity) for arc, capacity in capacities.items() if capacity]
    starts, stops = np.array([arc for arc, _ in pairs], np.int32).reshape(-1, 2).T
    values = np.array([capacity for _, capacity in pairs], np.int32)
    network = csr_array((values, (starts, stops)), (count, count))
    flow = maximum_flow(network, _NODES, _EDGES).flow
    left = csr_array(network - flow)
    left.eliminate_zeros()
    return set(breadth_first_order(left, _NODES, return_predecessors=False).tolist())


def _bytes(program: Program, value: int, lanes: int) -> int:
    aval = program.types[value]
    return min(math.ceil(aval.size / lanes) * aval.dtype.itemsize, _MOST)


def _operations(program: Program, step: Step) -> float:
    """The operations of a step, of all lanes."""
    results = sum(program.types[i].size for i in step.results)
    if step.name == "dot_general":
        (contracted, _), _ = step.equation.params["dimension_numbers"]
        of_left = step.operands[0]
        aval: Any = program.types[of_left] if isinstance(of_left, int) else of_left.aval
        # The parts of a product that was split contract less than the equation says.
        return 2.0 * results * math.prod(aval.shape[axis] for axis in contracted)
    if step.name in _SHAPES:
        return 0.0
    if step.name in _SMOOTH:
        return float(results)
    sizes = results + sum(program.types[i].size for i in step.reads)
    return (10.0 if is_elementwise(step) else 100.0) * sizes
