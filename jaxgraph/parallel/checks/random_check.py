"""Refuses random numbers that depend on the position of a row on its device."""

from __future__ import annotations

from typing import Any

from jaxgraph.ops.core.message_programs import inner_jaxprs
from jaxgraph.parallel.checks.authors import user_line

__all__ = ["check_random_rows"]


def check_random_rows(jaxpr: Any, num_rows: int) -> None:
    """Refuses random numbers for the rows of a shard from one key for all devices.

    Row r of every device would get the same number, and a node's number would depend on the
    partition.

    Args:
      jaxpr: of the function; its types say over which mesh axes values vary.
      num_rows: rows of the shard.

    Raises:
      ValueError: it draws an array [rows, ...] from a key that is the same on every device.
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
