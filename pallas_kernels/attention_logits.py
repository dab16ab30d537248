"""The logits of attention, computed from the operands of a row and of its neighbor."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.edge_products import team_total
from pallas_kernels.lanes import Lanes
from pallas_kernels.rows import Item
from pallas_kernels.teams import Team

__all__ = ["DOT", "GAT", "GATV2", "Logits", "head_product", "read_row"]

GAT, GATV2, DOT = "gat", "gatv2", "dot"
"""Kinds of logits."""


@dataclasses.dataclass(frozen=True)
class Logits:
    """The equation of the logits, for l, x of one end of an edge and r, z of the other.

      GAT    e = leaky_relu(l + r)
      GATV2  e = <a, leaky_relu(x + z)>
      DOT    e = parameter <x, z>

    Attributes:
      kind: GAT, GATV2 or DOT.
      parameter: the slope of the leaky ReLU, or the scale of the products.
    """

    kind: str
    parameter: float

    def read(
        self, lanes: Lanes, team: Team, item: Item, table: Any, row: jax.Array, mask: jax.Array
    ) -> list[jax.Array]:
        """Reads the operand of one end: [lanes] for GAT, else a row, as `read_row` returns it."""
        if self.kind == GAT:
            return [lanes.read(table, row, item.head, mask=mask)[0]]
        return read_row(lanes, team, item, table, row, mask)

    def of_edge(
        self,
        lanes: Lanes,
        team: Team,
        one: Sequence[jax.Array],
        other: Sequence[jax.Array],
        vector: Sequence[jax.Array],
    ) -> tuple[jax.Array, jax.Array | float]:
        """The logit [lanes] of an edge, and its derivative.

        Args:
          lanes, team: those of the edge.
          one, other: the results of `read` at both ends.
          vector: a for GATV2, as a row.

        Returns:
          The logit, and its derivative in l + r for GAT, in <x, z> for DOT; 1 for GATV2.
        """
        if self.kind == GAT:
            hidden = one[0] + other[0]
            slope = self.slope(hidden)
            return hidden * slope, slope
        if self.kind == DOT:
            return head_product(lanes, team, one, other) * self.parameter, self.parameter
        rows = (x + z for x, z in zip(one, other, strict=True))
        return head_product(lanes, team, vector, [h * self.slope(h) for h in rows]), 1.0

    def slope(self, hidden: jax.Array) -> jax.Array:
        """The derivative of the leaky ReLU."""
        return jnp.where(hidden >= 0, 1.0, self.parameter)


def read_row(
    lanes: Lanes, team: Team, item: Item, table: Any, row: jax.Array, mask: jax.Array
) -> list[jax.Array]:
    """A head of a row, or the row that all heads share: [count, lanes] for each read of a lane.

    0 outside of the head.
    """
    columns = item.within if table.shape[1] == team.width else item.columns
    return [
        lanes.read(table, row, column, mask=mask & inside, count=team.count)
        for column, inside in zip(columns, item.inside, strict=True)
    ]


def head_product(
    lanes: Lanes, team: Team, left: Sequence[jax.Array], right: Sequence[jax.Array]
) -> jax.Array:
    """<x, z> of a head, [lanes], the same bits in all lanes of a team."""
    products = [a * b for a, b in zip(left, right, strict=True)]
    numbers = [number for each in products for number in lanes.split(each)]
    return team_total(lanes, team, functools.reduce(jnp.add, numbers))
