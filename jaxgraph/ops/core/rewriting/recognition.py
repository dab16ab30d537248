"""Message functions that are one of the library's own messages, which kernels reduce.

x_j, and w_e x_j with one weight per edge: as written, or after everything else has moved to the
nodes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.message_functions import sum_message, weighted_message
from jaxgraph.ops.core.messages import MessageFn
from jaxgraph.ops.core.precision import accumulation_dtype
from jaxgraph.ops.core.rewriting.steps import Program

Pytree = Any
_RESHAPES = ("broadcast_in_dim", "reshape", "expand_dims", "copy", "copy_p", "pvary")


def recognized(
    program: Program, senders: dict[int, jax.Array], edges: dict[int, jax.Array]
) -> tuple[MessageFn, Pytree, Pytree] | None:
    """Finds the library's message that a function is."""
    if all(isinstance(each, int) and each in senders for each in program.outputs):
        rows = [senders[each] for each in program.outputs if isinstance(each, int)]
        return (sum_message, jax.tree.unflatten(program.structure, rows), None) if rows else None
    product = {result: step for step in program.steps for result in step.results}
    step = len(program.outputs) == 1 and product.get(_number(program.outputs[0]))
    if not step or step.name != "mul" or not jax.tree_util.treedef_is_leaf(program.structure):
        return None
    for sender, weight in (step.reads, step.reads[::-1]) if len(step.reads) == 2 else ():
        while weight not in edges and (made := product.get(weight)) and made.name in _RESHAPES:
            # A constant's is made of none.
            weight = made.reads[0] if made.reads else -1
        if sender in senders and weight in edges:
            x, w = senders[sender], edges[weight]
            is_exact = w.dtype == x.dtype == accumulation_dtype(x.dtype)
            is_one = w.size == len(w) and program.types[step.results[0]].ndim == x.ndim
            if is_exact and is_one and jnp.issubdtype(x.dtype, jnp.floating):
                return weighted_message, x, w.reshape(-1)
    return None


def _number(operand: Any) -> int:
    return operand if isinstance(operand, int) else -1
