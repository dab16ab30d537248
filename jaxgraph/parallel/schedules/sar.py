"""Sequential aggregation and rematerialisation (SAR): the exchange with one part after another."""

from __future__ import annotations

from typing import Any

from jaxgraph.parallel.exchange import Exchange
from jaxgraph.parallel.relation import Relation
from jaxgraph.parallel.schedules.sequential import Sequential
from jaxgraph.parallel.schedules.together import propagate_together
from pallas_kernels.pytrees import pytree

Pytree = Any


@pytree
class Ring(Exchange):
    """The exchange with one remote part at a time; nothing that came is saved."""

    def schedule(self, relation: Relation, self_loops: bool) -> Sequential:
        """See `Exchange.schedule`."""
        return Sequential(relation, self_loops)

    def propagate_all(self, calls: Any) -> list[Pytree]:
        """See `Exchange.propagate_all`."""
        return propagate_together(calls)
