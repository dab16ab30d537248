"""Turns the values that a message function closes over into its arguments.

A message runs inside loops whose trip counts differ between devices, where no collective may run.
The gradient of a parameter that is the same on all devices ends in one, at the point where the
parameter meets values that differ between devices. `hoist` traces the function once and splits it
there: what depends on closed-over values alone is computed once, outside the loops, and enters the
rest as an argument that differs between devices. Its gradient is then summed over the mesh once.

JAX types every value by whether it differs between devices ("varies"), and demands equal types of
the carries of a loop and of the branches of `cond`. A program that was traced with other types is
evaluated with values that all vary; its loops and branches are retraced for them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jaxgraph.ops.core.edges import match_variation, varying_axes

Pytree = Any


def hoist(
    function: Callable[..., Pytree], *examples: Pytree
) -> tuple[Callable[..., Pytree], tuple[jax.Array, ...]]:
    """Splits a function into one without closed-over arrays and the values it needs instead."""

    def split(closed: Any, shape: Pytree) -> Any:
        structure = jax.tree.structure(shape)
        found = _Split(examples)
        program = found.run(closed.jaxpr, dict(enumerate(closed.consts)), {})
        params = tuple(found.params)

        def converted(params: tuple[jax.Array, ...], *arguments: Pytree) -> Pytree:
            return jax.tree.unflatten(structure, program(params, jax.tree.leaves(arguments)))

        # A difference that JAX does not accept shows here, not in a gradient.
        jax.eval_shape(converted, params, *examples)
        return converted, params

    return _traced(function, examples, split)


def trace_message(function: Callable[..., Pytree], *examples: Pytree) -> tuple[Any, Pytree]:
    """Traces a function of values that differ between devices; those it closes over need not."""
    return _traced(function, examples, lambda closed, shape: (closed, shape))


def _traced(function: Callable, examples: Pytree, use: Callable[[Any, Pytree], Any]) -> Any:
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


@dataclasses.dataclass(frozen=True)
class _Param:
    """A value known before the loops, as a position among the parameters."""

    index: int


class _Split:
    """Evaluates the known part of a jaxpr now, and makes a program of the rest."""

    def __init__(self, like: Pytree) -> None:
        self._like = like
        self.params: list[jax.Array] = []

    def _param(self, value: Any) -> _Param:
        self.params.append(match_variation(value, self._like))
        return _Param(len(self.params) - 1)

    def run(self, jaxpr: Any, consts: dict[int, Any], inputs: dict[int, Any]) -> Callable:
        """The program of a jaxpr whose constants, and inputs of the given positions, are known."""
        known: dict[Any, Any] = {jaxpr.constvars[i]: value for i, value in consts.items()}
        known |= {jaxpr.invars[i]: value for i, value in inputs.items()}
        unknown = [var for i, var in enumerate(jaxpr.invars) if i not in inputs]
        steps: list[tuple[Callable, list[Any], list[Any]]] = []
        for equation in jaxpr.eqns:
            self._visit(equation, known, steps)
        outputs = [self._operand(var, known, jaxpr.outvars) for var in jaxpr.outvars]

        def program(params: tuple[jax.Array, ...], arguments: list[Any]) -> list[Any]:
            env = dict(zip(unknown, arguments, strict=True))
            for apply, operands, results in steps:
                values = apply(params, [_read(env, params, operand) for operand in operands])
                env |= dict(zip(results, values, strict=True))
            return [_read(env, params, operand) for operand in outputs]

        return program

    def _operand(self, var: Any, known: dict[Any, Any], _: Any) -> Any:
        if isinstance(var, core.Literal):
            return var
        return self._param(known[var]) if var in known else var

    def _visit(self, equation: Any, known: dict[Any, Any], steps: list[Any]) -> None:
        is_known = [isinstance(v, core.Literal) or v in known for v in equation.invars]
        some_closed = any(not isinstance(v, core.Literal) and v in known for v in equation.invars)
        name = equation.primitive.name
        if all(is_known) and some_closed:
            values = [v.val if isinstance(v, core.Literal) else known[v] for v in equation.invars]
            known |= dict(zip(equation.outvars, evaluate(equation, values), strict=True))
        elif some_closed and name in CALLS:
            inner = equation.params[CALLS[name]]
            inputs = {
                i: v.val if isinstance(v, core.Literal) else known[v]
                for i, v in enumerate(equation.invars)
                if is_known[i]
            }
            program = self.run(inner.jaxpr, dict(enumerate(inner.consts)), inputs)
            rest = [v for i, v in enumerate(equation.invars) if not is_known[i]]
            steps.append((program, rest, equation.outvars))
        else:
            operands = [self._operand(v, known, None) for v in equation.invars]
            apply = functools.partial(evaluate, equation)
            steps.append((lambda _, values: apply(values), operands, equation.outvars))


def _read(env: dict[Any, Any], params: tuple[jax.Array, ...], operand: Any) -> Any:
    if isinstance(operand, _Param):
        return params[operand.index]
    return operand.val if isinstance(operand, core.Literal) else env[operand]


def _run(jaxpr: core.Jaxpr, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """Evaluates a jaxpr with values whose variation may differ from that of its trace."""
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))
    for equation in jaxpr.eqns:
        values = [_read(env, (), v) for v in equation.invars]
        env |= dict(zip(equation.outvars, evaluate(equation, values), strict=True))
    return [_read(env, (), v) for v in jaxpr.outvars]


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
        return _run(inner.jaxpr, inner.consts, values)
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
    varying = jax.make_jaxpr(lambda *values: matched(*_run(jaxpr, consts, values)))(*types)
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
        return match_variation(_run(inner.jaxpr, inner.consts, values), values)

    def backward(values: Any, cotangents: Any) -> tuple[Any, ...]:
        arguments = [*values, *floating(cotangents, outs)]
        types = [v.aval for v in variables], [v.aval for v in floating(equation.outvars, outs)]
        program = jax.make_jaxpr(pull)(*types)
        found = _run(program.jaxpr, program.consts, match_variation(arguments, arguments))
        grads = iter(match_variation(found, arguments))
        return tuple(next(grads) if is_float else None for is_float in ins)

    def forward(*values: Any) -> tuple[list[Any], Any]:
        # Not by `run`, which has no tangents: a product with a Hessian takes them.
        return match_variation(_run(inner.jaxpr, inner.consts, values), values), values

    run.defvjp(forward, backward)
    return run(*values)
