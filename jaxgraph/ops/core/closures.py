"""Traces of message functions, evaluated with values that may differ between devices.

JAX types every value by whether it differs between devices ("varies"), and demands equal types of
the carries of a loop and of the branches of `cond`. A program that was traced with other types is
evaluated with values that all vary; its loops and branches are retraced for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jaxgraph.ops.core.edges import match_variation, varying_axes

Pytree = Any


def trace_message(function: Callable[..., Pytree], *examples: Pytree) -> tuple[Any, Pytree]:
    """Traces a function of values that differ between devices; those it closes over need not."""
    return use_trace(function, examples, lambda closed, shape: (closed, shape))


def use_trace(function: Callable, examples: Pytree, use: Callable[[Any, Pytree], Any]) -> Any:
    """Uses a function's jaxpr and the shapes of its result."""
    with _variation_explained():
        try:
            return use(*_trace(function, examples))
        except (TypeError, ValueError) as error:
            if not _is_of_variation(error):
                raise
        # With arguments that are alike on all devices, a loop may start with zeros or parameters.
        alike = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), examples)
        return use(*_trace(function, alike))


def _trace(function: Callable, arguments: Pytree) -> tuple[Any, Pytree]:
    # A new function each time: JAX would reuse the trace of the same one.
    return jax.make_jaxpr(lambda *trees: function(*trees), return_shape=True)(*arguments)


def _is_of_variation(error: Exception) -> bool:
    return any(word in str(error) for word in ("pvary", "manual axes", "{V:"))


@contextmanager
def _variation_explained() -> Iterator[None]:
    """Rewords JAX's errors about values that should vary over the devices and do not."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if not _is_of_variation(error):
            raise
        raise ValueError(
            "the message function uses values that differ between devices, such as ones passed "
            "through jax.lax.pcast, and values that do not, such as parameters or the first carry "
            "of a scan, together inside control flow or jax.vmap; use them outside of it (multiply "
            "or add them before), or pass all of them through "
            "jax.lax.pcast(value, shard.axis, to='varying'), or none"
        ) from error


CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
"""Calls without a derivative of their own, and the parameter that holds their program."""
VALUE_CALLS = (*CALLS, "custom_jvp_call")
"""Calls whose values their program computes, whatever their derivatives are."""

_CUSTOM = ("custom_jvp_call", "custom_vjp_call")
_WITH_BODY = (
    *("scan", "while", "cond", "checkpoint", "remat", "remat2"),
    *("custom_linear_solve", "linear_solve"),
)


def evaluate_all(
    jaxpr: core.Jaxpr, consts: Sequence[Any], arguments: Sequence[Any], by: Any = None
) -> list[Any]:
    """Evaluates a jaxpr equation by equation, by `evaluate` or another function like it."""
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))

    def read(variables: Sequence[Any]) -> list[Any]:
        return [v.val if isinstance(v, core.Literal) else env[v] for v in variables]

    for equation in jaxpr.eqns:
        results = (by or evaluate)(equation, read(equation.invars))
        env |= dict(zip(equation.outvars, results, strict=True))
    return read(jaxpr.outvars)


def evaluate(equation: Any, values: list[Any]) -> list[Any]:
    """Evaluates one equation; if any value varies, then all results do."""
    name = equation.primitive.name
    if name == "pvary" and varying_axes(values[0]):
        return values
    pairs = list(zip(equation.invars, values, strict=True))
    given = {v: x for v, x in pairs if isinstance(v, core.Var)}
    if all(_traced_axes(v) == varying_axes(x) for v, x in given.items()):
        return _alone(equation, list(given))(*given.values())
    arrays = [x if isinstance(v, core.Var) else jnp.asarray(x, v.aval.dtype) for v, x in pairs]
    values = match_variation(arrays, arrays)
    if name in CALLS:
        inner = equation.params[CALLS[name]]
        return evaluate_all(inner.jaxpr, inner.consts, values)
    if name in _CUSTOM:
        return _with_own_derivative(equation, values)
    params = equation.params
    if name in _WITH_BODY:
        is_body = lambda p: isinstance(p, core.Jaxpr | core.ClosedJaxpr)  # noqa: E731
        params = {
            key: jax.tree.map(
                lambda p: _varying_body(p, values) if is_body(p) else p, param, is_leaf=is_body
            )
            for key, param in params.items()
        }
    variables = [core.Var(v.aval) for v in equation.invars]
    return _alone(equation.replace(invars=variables, params=params), variables)(*values)


def _traced_axes(variable: Any) -> frozenset[str]:
    return variable.aval.manual_axis_type.varying


def _alone(equation: Any, variables: list[Any]) -> Callable[..., list[Any]]:
    """The function of one equation."""
    names = core.DebugInfo("message", "", None, None)
    single = core.Jaxpr([], variables, equation.outvars, [equation], equation.effects, names)
    return core.jaxpr_as_fun(core.ClosedJaxpr(single, ()))


def _varying_body(body: Any, like: list[Any]) -> Any:
    """A loop's or a branch's jaxpr, retraced for arguments and results that all vary."""
    is_closed = isinstance(body, core.ClosedJaxpr)
    jaxpr, consts = (body.jaxpr, body.consts) if is_closed else (body, ())
    matched = lambda *values: match_variation(values, like)  # noqa: E731
    types = jax.eval_shape(matched, *(v.aval for v in jaxpr.invars))
    varying = jax.make_jaxpr(lambda *values: matched(*evaluate_all(jaxpr, consts, values)))(*types)
    return varying if is_closed else varying.jaxpr


def _with_own_derivative(equation: Any, values: list[Any]) -> list[Any]:
    """Evaluates a call of a function that has a derivative of its own.

    JAX traces that derivative for the types which the function was traced with. So does the
    pullback here, which is then evaluated with the values.
    """
    axes = {_traced_axes(v) for v in equation.invars}
    if len(axes) > 1:
        # The pullback would add up over devices.
        raise ValueError(f"{equation.primitive.name} of values with different manual axes")
    inner = equation.params["call_jaxpr"]
    variables = [core.Var(v.aval) for v in equation.invars]
    call = _alone(equation.replace(invars=variables), variables)
    is_float = lambda v: jnp.issubdtype(v.aval.dtype, jnp.inexact)  # noqa: E731
    ins, outs = list(map(is_float, variables)), list(map(is_float, equation.outvars))

    def floating(values: Sequence[Any], chosen: list[bool]) -> list[Any]:
        return [value for value, is_chosen in zip(values, chosen, strict=True) if is_chosen]

    def pull(values: list[Any], cotangents: list[Any]) -> list[Any]:
        def of_floats(*floats: Any) -> list[Any]:
            rest = iter(floats)
            full = [next(rest) if f else value for f, value in zip(ins, values, strict=True)]
            return floating(call(*full), outs)

        return list(jax.vjp(of_floats, *floating(values, ins))[1](cotangents))

    @jax.custom_vjp
    def run(*values: Any) -> list[Any]:
        return match_variation(evaluate_all(inner.jaxpr, inner.consts, values), values)

    def backward(values: Any, cotangents: Any) -> tuple[Any, ...]:
        arguments = [*values, *floating(cotangents, outs)]
        types = [v.aval for v in variables], [v.aval for v in floating(equation.outvars, outs)]
        program = jax.make_jaxpr(pull)(*types)
        found = evaluate_all(program.jaxpr, program.consts, match_variation(arguments, arguments))
        grads = iter(match_variation(found, arguments))
        return tuple(next(grads) if is_float else None for is_float in ins)

    def forward(*values: Any) -> tuple[list[Any], Any]:
        # Not by `run`, which has no tangents: a product with a Hessian takes them.
        return match_variation(evaluate_all(inner.jaxpr, inner.consts, values), values), values

    run.defvjp(forward, backward)
    return run(*values)
