"""One part of a streamed graph, as a function of a shard is traced on it.

Its aggregations and its sums over all parts are *barriers*: each becomes one equation of the traced
function, and a loop of the host computes it, part after part.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
from jax.extend import core

from jaxgraph.ops.core.choice import choose_stages
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.parallel.exchange import Call, Exchange
from jaxgraph.parallel.node_table import NodeTable
from jaxgraph.parallel.shard import NODES, Shard
from pallas_kernels.pytrees import pytree

Pytree = Any

messages_barrier = core.Primitive("streamed_messages")
"""Reduces messages over all parts; its parameter `call` is an `Aggregation`."""
messages_barrier.multiple_results = True

sum_barrier = core.Primitive("streamed_sum")
"""Sums an array over all parts."""


@messages_barrier.def_abstract_eval
def _types_of_messages(*operands: Any, call: Aggregation) -> tuple[Any, ...]:
    return call.results


@sum_barrier.def_abstract_eval
def _type_of_sum(operand: Any) -> Any:
    return operand


@dataclasses.dataclass(frozen=True, eq=False)
class Aggregation:
    """A reduction of messages over all parts, as `Relation.propagate` is called for it.

    Attributes:
      message: evaluated on chunks of edges.
      self_loops: whether nodes without an edge to themselves send themselves a message.
      operands: the structure of (reducer, inputs).
      outputs: the structure of the outputs.
      results: the types of the outputs' leaves.
    """

    message: MessageFn
    self_loops: bool
    operands: Any
    outputs: Any
    results: tuple[Any, ...]

    def arguments(self, leaves: Any) -> tuple[Reducer, Inputs]:
        """The reducer and the inputs whose leaves these are."""
        return jax.tree.unflatten(self.operands, leaves)


@pytree
class Streamed(Exchange):
    """The exchange of a streamed part: all messages are one barrier."""

    def propagate(self, call: Call) -> Pytree:
        """See `jaxgraph.parallel.relation.Relation.propagate`."""
        block = call.relation.block().with_loops(call.self_loops)

        def outputs(reducer: Reducer, inputs: Inputs) -> Pytree:
            stages = choose_stages(call.relation.incoming, call.message, reducer, inputs)
            return stages.reduce(block, inputs)[0]

        given = call.reducer, call.inputs
        traced, shapes = jax.make_jaxpr(outputs, return_shape=True)(*given)
        structure = jax.tree.structure(shapes)
        leaves, operands = jax.tree.flatten(given)
        made = tuple(traced.out_avals)
        found = Aggregation(call.message, call.self_loops, operands, structure, made)
        return structure.unflatten(messages_barrier.bind(*leaves, call=found))

    def pull_sum(self, call: Call, gradient: Pytree, wanted: Wanted) -> Inputs:
        """Raises: values of single edges do not leave a streamed part."""
        raise ValueError(
            "mode='stream' aggregates at the nodes, and this function returns or reads a value for "
            "every edge of the graph (edge_messages, edge_softmax, attention_weights); write it as "
            "a message of jaxgraph.parallel.propagate, or shard the graph in mode 'sar'"
        )


@pytree
class StreamedTable(NodeTable):
    """The nodes of one part of a streamed graph.

    Attributes:
      graph_nodes: int32 [], nodes of the whole graph.
    """

    graph_nodes: jax.Array | None = None

    @property
    def num_nodes(self) -> jax.Array:
        """Nodes of the whole graph, int32 []."""
        assert self.graph_nodes is not None
        return self.graph_nodes

    def sum(self, values: Pytree) -> Pytree:
        """Sums over all parts, see `jaxgraph.parallel.Shard.sum`."""
        return jax.tree.map(sum_barrier.bind, values)


@pytree
class StreamedPart(Shard):
    """One part of a streamed graph, in place of the shard of a device."""

    streamed: ClassVar[bool] = True

    @classmethod
    def of(cls, shard: Shard, graph_nodes: Any) -> StreamedPart:
        """A shard as a part of a graph of so many nodes."""
        table = StreamedTable(**_fields(shard.table()), graph_nodes=graph_nodes)
        changed = _fields(shard) | {
            "tables": {NODES: table},
            "exchanges": {NODES: Streamed(**_fields(shard.exchange))},
        }
        return cls(**changed)


def _fields(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
