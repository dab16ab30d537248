"""Checks of the outputs of a function on shards, before JAX's own checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.edges import varying_axes
from jaxgraph.ops.core.message_programs import inner_jaxprs
from jaxgraph.parallel.checks.authors import user_line

Pytree = Any

_ROW_OF = {"rows": "node", "edges": "edge slot"}


def check_outputs(result: Pytree, outputs: Pytree, sizes: Mapping[str, Sequence[int]]) -> None:
    """Checks that the result of a function fits `outputs`, of arrays of some sizes."""
    try:
        words = jax.tree.map(lambda word, part: jax.tree.map(lambda _: word, part), outputs, result)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"outputs is {outputs!r}, but the function returned {jax.tree.structure(result)}; "
            "expected a word, 'replicated', 'rows' or 'edges', for each output, or one for all"
        ) from error
    leaves = jax.tree_util.tree_leaves_with_path(result)
    for (path, leaf), word in zip(leaves, jax.tree.leaves(words), strict=True):
        name = f"output{jax.tree_util.keystr(path)}"
        shape = jnp.shape(leaf)
        if word == "rows":
            if not shape:
                raise ValueError(
                    f"{name} is one number, but outputs says 'rows', an array with a row per node; "
                    "use outputs='replicated' for it"
                )
        elif word == "edges":
            if shape[:1] not in [(size,) for size in sizes["edges"]]:
                raise ValueError(
                    f"{name} has shape {list(shape)}, but outputs says 'edges', an array with a "
                    f"row per edge slot of the shard, [{sizes['edges'][0]}, ...], as "
                    "jaxgraph.parallel.edge_messages returns it"
                )
        elif varying_axes(leaf):
            has = [kind for kind, some in sizes.items() if shape[:1] and shape[0] in some]
            advice = (
                f"It has a row per {_ROW_OF[has[0]]} of the shard: return it with "
                f"jaxgraph.parallel.spmd(function, outputs={has[0]!r}) (for several outputs, a "
                "word each), or reduce it over them"
                if has
                else "Reduce it first: shard.sum(value) of a sum over the shard's rows; of a mean, "
                "shard.sum((total, count)), then divide"
            )
            raise ValueError(
                f"{name}, {jnp.result_type(leaf)}{list(shape)}, differs between devices, but is "
                f"returned as 'replicated', the same on all. {advice}"
            )


def check_random_rows(jaxpr: Any, num_rows: int) -> None:
    """Refuses random numbers for the rows of a shard from one key for all devices.

    Row r of every device would get the same number, and a node's number would depend on the
    partition.
    """
    for equation in jaxpr.eqns:
        if equation.primitive.name == "random_bits":
            key, drawn = equation.invars[0].aval, equation.outvars[0].aval
            by_node = key.shape == (num_rows,) and key.manual_axis_type.varying
            if drawn.shape[:1] == (num_rows,) and not by_node:
                line = user_line(equation)
                raise ValueError(
                    f"the function draws random numbers {list(drawn.shape)}"
                    f"{f' ({line})' if line else ''} for the rows of its shard from one key: "
                    "a node's numbers would depend on the partition. "
                    "For dropout use jaxgraph.nn.dropout(shard, x, key, rate). Draw other "
                    "numbers by node: jax.vmap(lambda node: jax.random.normal(jax.random.fold_in("
                    "key, node), shape))(shard.node_ids). Draw an array that has as many rows by "
                    "chance before the call, and pass it as an argument"
                )
        for inner in inner_jaxprs(equation):
            check_random_rows(inner, num_rows)
