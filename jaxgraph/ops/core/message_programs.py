"""The traced program of a message: the inputs that it reads, and its roundings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend import core

_COPIES = frozenset(
    (
        *("abs", "clamp", "cummax", "cummin", "iota", "max", "min", "neg", "reduce_max"),
        *("reduce_min", "select_n", "sign", "sort"),
        *("broadcast_in_dim", "concatenate", "copy", "copy_p", "dynamic_slice"),
        *("dynamic_update_slice", "expand_dims", "gather", "optimization_barrier", "pad", "pcast"),
        *("pvary", "reshape", "rev", "slice", "split", "squeeze", "transpose"),
    )
)
"""Primitives whose floating outputs are, up to their sign, numbers among their inputs."""

_STEPS = ("add", "sub", "mul")
_CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")


def needed_inputs(jaxpr: Any, outputs: list[Any] | None = None) -> set[Any]:
    """Finds the input variables on which outputs depend.

    Enters calls; in any other equation, every output depends on all inputs.
    """
    wanted = jaxpr.outvars if outputs is None else outputs
    needed = {var for var in wanted if isinstance(var, core.Var)}
    for equation in reversed(jaxpr.eqns):
        used = [i for i, var in enumerate(equation.outvars) if var in needed]
        if not used:
            continue
        inner = equation.params.get("jaxpr")
        inputs = equation.invars
        if equation.primitive.name in ("jit", "pjit", "shard_map") and inner is not None:
            body = getattr(inner, "jaxpr", inner)
            needed_inside = needed_inputs(body, [body.outvars[i] for i in used])
            pairs = zip(body.invars, inputs, strict=True)
            inputs = [outside for inside, outside in pairs if inside in needed_inside]
        needed |= {var for var in inputs if isinstance(var, core.Var)}
    return needed & set(jaxpr.invars)


def rounds_alike(jaxpr: Any) -> bool:
    """Tells whether a program returns the same bits wherever it is compiled.

    Where no number is computed from a computed one, the compiler has no steps to reorder or to
    fuse.
    """
    return _roundings(jaxpr, [0] * len(jaxpr.invars)) is not None


def _roundings(jaxpr: Any, of_inputs: list[int]) -> list[int] | None:
    """The number of roundings of each output, 0 or 1; None: more, or the choice of XLA."""
    known = dict(zip(jaxpr.invars, of_inputs, strict=True))
    for equation in jaxpr.eqns:
        given = [_known(known, var) for var in equation.invars]
        found = _roundings_of(equation, given)
        if found is None:
            return None
        known |= dict(zip(equation.outvars, found, strict=True))
    return [_known(known, var) for var in jaxpr.outvars]


def _known(known: dict[Any, int], var: Any) -> int:
    return 0 if isinstance(var, core.Literal) else known.get(var, 0)


def _roundings_of(equation: Any, given: list[int]) -> list[int] | None:
    most = max(given, default=0)
    bodies, name = inner_jaxprs(equation), equation.primitive.name
    if len(bodies) == 1 and len(bodies[0].invars) == len(given) and name in _CALLS:
        return _roundings(bodies[0], given)
    if bodies:
        is_exact = [_roundings(body, [0] * len(body.invars)) for body in bodies]
        exact = all(found is not None and not any(found) for found in is_exact)
        return [most] * len(equation.outvars) if exact else None
    floating = [var.aval.dtype for var in equation.outvars if _is_floating(var)]
    if name in _STEPS and floating:
        return [1] if not most and floating[0].itemsize >= 4 else None
    exact = not floating or name in _COPIES
    if name == "convert_element_type" and floating:
        # XLA may omit a rounding to fewer bits.
        source = equation.invars[0]
        exact = not _is_floating(source) or (
            jnp.promote_types(source.aval.dtype, floating[0]) == floating[0]
        )
    return [most] * len(equation.outvars) if exact else None


def inner_jaxprs(equation: Any) -> list[Any]:
    """The programs that an equation runs, such as the body of a loop."""
    found = []
    for value in equation.params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            program = getattr(each, "jaxpr", each)
            if hasattr(program, "eqns"):
                found.append(program)
    return found


def scan_sizes(equation: Any) -> tuple[int, int]:
    """The numbers of constants and of carries of a scan.

    An array that it scans over has one dimension more outside of its body. The parameters that
    state the numbers have other names in other versions of JAX.
    """

    def same(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        pairs = zip(outside, inside, strict=True)
        return sum(len(a.aval.shape) == len(b.aval.shape) for a, b in pairs)

    (body,) = inner_jaxprs(equation)
    carries = same(equation.outvars, body.outvars)
    return same(equation.invars, body.invars) - carries, carries


def _is_floating(var: Any) -> bool:
    return jnp.issubdtype(var.aval.dtype, jnp.inexact)
