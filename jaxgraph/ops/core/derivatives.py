"""Derivatives of ops with their own backward, and second derivatives of kernels.

Ops define their gradients (`custom_vjp`): reverse mode, once. Forward mode over reverse mode, as in
products with a Hessian, `jax.jvp(jax.grad(f), ...)`, differentiates XLA's loops; in place of a
kernel it differentiates the loops that compute the same (`with_portable_tangents`). Forward mode
alone and reverse mode over reverse mode raise errors of this module: JAX's own would name a
function or a loop inside the library.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxgraph.ops.core.edges import with_implementation

Pytree = Any

_FORWARD = (
    "forward mode (jax.jvp, jax.linearize, jax.jacfwd) alone is not defined for the ops of "
    "jaxgraph, with any implementation: use jax.grad, jax.vjp or jax.jacrev. Forward mode of a "
    "gradient is defined: jax.jvp(jax.grad(f), (x,), (v,)), as in jax.hessian; where a kernel "
    "raises this error there, shard(..., implementation='xla')"
)
_REVERSE = (
    "reverse mode over reverse mode (jax.grad of jax.grad) is not defined for the ops of jaxgraph, "
    "with any implementation: use forward mode over reverse mode, which is "
    "jax.jvp(jax.grad(f), (x,), (v,)), or jax.hessian"
)


class custom_vjp:  # noqa: N801, it stands for jax's own
    """`jax.custom_vjp` whose missing derivatives raise errors of this library.

    Args:
      function: computes the value.
      nondiff_argnums: as for `jax.custom_vjp`.
      loops: whether the backward runs loops over edges, which reverse mode cannot differentiate.

    Attributes:
      value: the function itself, for the forward function to call: forward mode over reverse mode
        differentiates it.
    """

    def __init__(
        self,
        function: Callable[..., Pytree],
        nondiff_argnums: Sequence[int] = (),
        *,
        loops: bool = True,
    ) -> None:
        functools.update_wrapper(self, function)
        self.value = function
        self._static = frozenset(nondiff_argnums)
        self._loops = loops
        self._function = jax.custom_vjp(function, nondiff_argnums=tuple(nondiff_argnums))

    def defvjp(
        self,
        forward: Callable[..., tuple[Pytree, Pytree]],
        backward: Callable[..., Any],
        symbolic_zeros: bool = False,
    ) -> None:
        """Sets the forward and the backward function, as `jax.custom_vjp.defvjp` does."""

        def pull(*arguments: Any) -> Any:
            return _marked(_FORWARD_ONLY, backward(*arguments))

        self._function.defvjp(
            forward, pull if self._loops else backward, symbolic_zeros=symbolic_zeros
        )

    def __call__(self, *arguments: Any) -> Any:
        marked = (
            argument if index in self._static else _marked(_REVERSE_ONLY, argument)
            for index, argument in enumerate(arguments)
        )
        return self._function(*marked)


def forward_of(function: Callable[..., Pytree], *arrays: Pytree) -> Pytree:
    """`function(*arrays)` for use in a backward: forward mode over that can differentiate it."""
    return jax.vjp(function, *arrays)[0]


def differentiated_as(
    portable: Callable[..., Pytree], compute: Callable[..., Pytree]
) -> Callable[..., Pytree]:
    """Gives a function of arrays that calls a kernel the derivatives of another function."""
    run = jax.custom_jvp(compute)
    run.defjvp(lambda primals, tangents: (run(*primals), jax.jvp(portable, primals, tangents)[1]))
    return run


def with_portable_tangents(
    compute: Callable[[Pytree, Pytree], Pytree], portable: Callable[[Pytree, Pytree], Pytree]
) -> Callable[[Pytree, Pytree], Pytree]:
    """Makes a function that calls kernels differentiable in forward mode: XLA computes tangents."""

    @jax.custom_jvp
    def run(fixed: Pytree, moving: Pytree) -> Pytree:
        return compute(fixed, moving)

    @run.defjvp
    def tangents(primals: Any, directions: Any) -> tuple[Pytree, Pytree]:
        fixed, moving = primals
        results = run(fixed, moving)
        on_xla = functools.partial(portable, with_implementation(fixed, "xla"))
        found = jax.jvp(on_xla, (moving,), (directions[1],))[1]
        return results, (found, *jax.tree.map(_no_tangent, list(results[1:])))

    return run


def _no_tangent(leaf: jax.Array) -> Any:
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return jnp.zeros_like(leaf)
    return np.zeros(leaf.shape, jax.dtypes.float0)


def _marked(primitive: Primitive, tree: Pytree) -> Pytree:
    def mark(leaf: Any) -> Any:
        is_number = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact)
        return primitive.bind(leaf) if is_number else leaf

    return jax.tree.map(mark, tree)


def _identity(name: str) -> Primitive:
    """Makes a primitive that returns its one operand, also under `jax.vmap`."""
    primitive = Primitive(name)
    primitive.def_impl(lambda x: x)
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, lambda context, x: [x])
    batching.primitive_batchers[primitive] = lambda operands, axes: (
        primitive.bind(*operands),
        axes[0],
    )
    return primitive


def _refuse(words: str, error: type[Exception]) -> Callable[..., Any]:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise error(words)

    return refuse


# Marks operands of a function with its own backward. Reverse mode transposes their tangents;
# forward mode computes them, and raises an error there.
_REVERSE_ONLY = _identity("jaxgraph_reverse_only")
_TANGENT = _identity("jaxgraph_tangent")
_TANGENT.def_impl(_refuse(_FORWARD, TypeError))
mlir.register_lowering(_TANGENT, _refuse(_FORWARD, TypeError))
ad.primitive_jvps[_REVERSE_ONLY] = lambda primals, tangents: (
    primals[0],
    tangents[0] if isinstance(tangents[0], ad.Zero) else _TANGENT.bind(tangents[0]),
)
ad.primitive_jvps[_TANGENT] = lambda primals, tangents: (
    _TANGENT.bind(primals[0]),
    tangents[0] if isinstance(tangents[0], ad.Zero) else _TANGENT.bind(tangents[0]),
)
ad.primitive_transposes[_TANGENT] = lambda cotangent, x: [cotangent]

# Marks gradients of such a function, whose tangents must not be transposed again.
_FORWARD_ONLY = _identity("jaxgraph_forward_only")
ad.primitive_jvps[_FORWARD_ONLY] = lambda primals, tangents: (
    _FORWARD_ONLY.bind(primals[0]),
    tangents[0] if isinstance(tangents[0], ad.Zero) else _FORWARD_ONLY.bind(tangents[0]),
)
ad.primitive_transposes[_FORWARD_ONLY] = _refuse(_REVERSE, TypeError)
