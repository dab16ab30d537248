"""The aggregate of a streamed graph's features in a model's first layer, computed once."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.layers import AggregatedFeatures, FirstAggregation, aggregate_by_columns
from jaxgraph.parallel import Shard
from jaxgraph.parallel.streaming.function import StreamedFunction
from jaxgraph.parallel.streaming.graph import StreamedGraph

__all__ = ["StreamedAggregate"]


@dataclasses.dataclass(frozen=True, eq=False)
class StreamedAggregate:
    """A streamed graph whose parts hold the aggregate of their features, once it is computed.

    Attributes:
      graph: the graph with the aggregate.
      function: computes the aggregate from the graph without it.
      key: of the aggregate in the store of the parts.
    """

    graph: StreamedGraph
    function: StreamedFunction
    key: str

    @classmethod
    def of(cls, first: FirstAggregation, plain: StreamedGraph, width: int) -> StreamedAggregate:
        """Prepares the aggregate of a graph's features; nothing is computed.

        Args:
          first: the aggregation.
          plain: the graph, with dense features alone.
          width: columns that a pass over the parts aggregates.
        """
        joined = first.is_joined_with_features

        def on_part(part: Shard) -> jax.Array:
            x: Any = part.nodes
            aggregate = aggregate_by_columns(part, x, first.aggregation, width=width)
            return jnp.concatenate((part.mask_rows(x), aggregate), axis=1) if joined else aggregate

        def typed(x: Any) -> AggregatedFeatures:
            columns = x.shape[-1] * (2 if joined else 1)
            aggregate = x.update(shape=(*x.shape[:-1], columns))
            return AggregatedFeatures(x, aggregate, first.aggregation)

        key = f"aggregate {first.aggregation!r}, {joined}"

        def named(name: Any) -> AggregatedFeatures:
            aggregate: Any = key
            return AggregatedFeatures(name, aggregate, first.aggregation)

        function = StreamedFunction(on_part, plain, (), outputs="rows")
        return cls(plain.with_nodes(typed, named), function, key)

    def compute(self) -> StreamedGraph:
        """Computes the aggregate, unless the parts hold it already, and returns the graph."""
        store, parts = self.graph.parts.store, self.graph.parts.own
        if not all(store.has(self.key, part) for part in parts):
            self.function.write_rows(lambda part, rows: store.put(self.key, part, rows))
        return self.graph
