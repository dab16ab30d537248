"""What a message function closes over, made an argument of it.

A message runs inside loops whose trip counts differ between devices, where no collective may stand.
The gradient of a parameter that is the same on all devices ends in one, at the point where the
parameter meets values that differ between devices. `hoist` traces the function once and splits it
there: what depends on closed-over values alone is computed once, outside the loops, and enters the
rest as an argument that differs between devices. Its gradient is then summed over the mesh once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax.extend import core

from jaxgraph.ops.edges import match_variation, varying_axes

__all__ = ["hoist"]

Pytree = Any


def hoist(
    function: Callable[..., Pytree], *examples: Pytree
) -> tuple[Callable[..., Pytree], tuple[jax.Array, ...]]:
    """Splits a function into one without closed-over arrays and the values it needs instead.

    Args:
      function: of pytrees of arrays.
      *examples: arguments of the shapes, dtypes and device-variation of all later calls.

    Returns:
      `converted(params, *arguments)`, and `params`, which vary over devices as the examples do.

    Raises:
      ValueError: a closed-over value meets the arguments inside control flow.
    """
    with _variation_explained():
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*examples)
    structure = jax.tree.structure(shape)
    split = _Split(examples)
    known = {i: value for i, value in enumerate(closed.consts)}
    program = split.run(closed.jaxpr, known, {})
    params = tuple(split.params)

    def converted(params: tuple[jax.Array, ...], *arguments: Pytree) -> Pytree:
        with _variation_explained():
            values = program(params, jax.tree.leaves(arguments))
        return jax.tree.unflatten(structure, values)

    return converted, params


@contextmanager
def _variation_explained() -> Iterator[None]:
    """Gives JAX's errors about values that are alike on all devices, and should vary, our words."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if not any(word in str(error) for word in ("pvary", "manual axes", "{V:")):
            raise
        raise _in_control_flow("control flow or jax.vmap") from error


def _in_control_flow(name: str) -> ValueError:
    return ValueError(
        "the message function uses a value that it closes over or makes, such as the first carry "
        f"of a scan, inside {name} together with its arguments; use the value outside of it "
        "(multiply or add it before), or pass it through "
        "jax.lax.pcast(value, shard.axis, to='varying') first"
    )


_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}


@dataclasses.dataclass(frozen=True)
class _Param:
    """A value known before the loops, as a position among the parameters."""

    index: int


class _Split:
    """Evaluates what is known of a jaxpr now, and makes a program of the rest."""

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
            known |= dict(zip(equation.outvars, _bind(equation, values), strict=True))
        elif some_closed and name in _CALLS:
            inner = equation.params[_CALLS[name]]
            inputs = {
                i: v.val if isinstance(v, core.Literal) else known[v]
                for i, v in enumerate(equation.invars)
                if is_known[i]
            }
            program = self.run(inner.jaxpr, dict(enumerate(inner.consts)), inputs)
            rest = [v for i, v in enumerate(equation.invars) if not is_known[i]]
            steps.append((program, rest, equation.outvars))
        elif some_closed and not _varies_as_traced(equation, known, self._like):
            raise _in_control_flow(repr(name))
        else:
            operands = [self._operand(v, known, None) for v in equation.invars]
            steps.append((_apply(equation), operands, equation.outvars))


def _varies_as_traced(equation: Any, known: dict[Any, Any], like: Pytree) -> bool:
    """Whether the known inputs already differ between devices, or the equation has no body."""
    has_body = any(isinstance(p, core.Jaxpr | core.ClosedJaxpr) for p in equation.params.values())
    if not has_body:
        return True
    varying = [known[v] for v in equation.invars if not isinstance(v, core.Literal) and v in known]
    return all(
        match_variation(value, like) is value for value in varying if isinstance(value, jax.Array)
    )


def _read(env: dict[Any, Any], params: tuple[jax.Array, ...], operand: Any) -> Any:
    if isinstance(operand, _Param):
        return params[operand.index]
    return operand.val if isinstance(operand, core.Literal) else env[operand]


def _apply(equation: Any) -> Callable[[Any, list[Any]], list[Any]]:
    def apply(_: Any, values: list[Any]) -> list[Any]:
        # Parameters vary from the start; in the trace they vary later, or never.
        if equation.primitive.name == "pvary" and varying_axes(values[0]):
            return values
        return _bind(equation, match_variation(values, values))

    return apply


def _bind(equation: Any, values: list[Any]) -> list[Any]:
    """Evaluates one equation."""
    bound = {v: x for v, x in zip(equation.invars, values, strict=True) if isinstance(v, core.Var)}
    names = core.DebugInfo("message", "", None, None)
    single = core.Jaxpr([], list(bound), equation.outvars, [equation], equation.effects, names)
    return core.jaxpr_as_fun(core.ClosedJaxpr(single, ()))(*bound.values())
