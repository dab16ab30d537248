"""The layer of two functions: Scatter, ApplyEdge, Gather and ApplyVertex."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxgraph.kinds import kind_of
from jaxgraph.layers.dense import require_rows
from jaxgraph.nn import parameters
from jaxgraph.nn.module import Module
from jaxgraph.parallel import Shard, propagate
from jaxgraph.parallel.feature_protocol import Features
from jaxgraph.parallel.propagate import explain
from jaxgraph.parallel.rewriting_report import RewritingReport
from jaxgraph.parallel.whole_graph import on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph

Pytree = Any
ACCUMULATORS = ("sum", "mean", "max", "min", "softmax")
RANK = "edge_rank"
"""The named array that `jaxgraph.transforms.with_edge_rank` adds."""


@dataclasses.dataclass(frozen=True)
class Edge:
    """The argument of `apply_edge`: a chunk of edges.

    Attributes:
      sender: [edges, features], x at the node that each edge leaves.
      receiver: [edges, features], x at the node that it enters.
      data: [edges, ...], the edge's own data, or None.
    """

    sender: Pytree
    receiver: Pytree
    data: Pytree


@dataclasses.dataclass(frozen=True)
class Concatenation:
    """The accumulator that keeps messages apart: a_i is the first `bound` messages, then zeros.

    a_i [bound, ...] holds the messages of the edges that enter i, in the order of the graph's
    edges. Messages after the first `bound` are left out. The graph has `edge_rank`:
    `jaxgraph.transforms.with_edge_rank(graph)`.

    Attributes:
      bound: the number of messages.
    """

    bound: int

    def __post_init__(self) -> None:
        if isinstance(self.bound, bool) or not isinstance(self.bound, int) or self.bound < 1:
            raise ValueError(
                f"Gather: Concatenation(bound={self.bound!r}); expected the number of messages "
                "that a node keeps, a positive integer"
            )


Accumulator = str | Concatenation


class Layer(Module):
    """A layer of two functions and an accumulator.

    m_e = apply_edge(edge_e);  a_i = accumulate_{e: j -> i} m_e;  y_i = apply_vertex(x_i, a_i)

    A function that is a Flax module brings its parameters.

    Args:
      apply_edge: takes an `Edge` of arrays [edges, ...] and returns a message for each, a pytree of
        arrays [edges, ...]; for "softmax" (logits [edges, heads], values [edges, heads, ...]). It
        acts on every edge separately.
      apply_vertex: takes x [rows, features] and a [rows, ...], and returns y [rows, ...].
      accumulator: "sum", "mean", "max", "min", "softmax", or a `Concatenation`.
      data: the graph's array that is `edge.data`: "edges", "edge_weight", "edge_type", or the name
        of an array of its edges; None: none.
      dtype: floating type that x is cast to, such as jnp.bfloat16; None: that of x.
      rewrite: whether the steps that depend on one end run once per node. It changes results by
        rounding only.

    Raises:
      ValueError: an unknown accumulator, a concatenation without a bound, an argument that is no
        function, or a dtype that is no floating type.
    """

    def __init__(
        self,
        apply_edge: Callable[[Edge], Pytree],
        apply_vertex: Callable[[jax.Array, Pytree], jax.Array],
        accumulator: Accumulator = "sum",
        *,
        data: str | None = None,
        dtype: DTypeLike | None = None,
        rewrite: bool = True,
    ) -> None:
        for stage, function in (("ApplyEdge", apply_edge), ("ApplyVertex", apply_vertex)):
            if not callable(function):
                raise ValueError(f"{stage}: got {kind_of(function)}; expected a function")
        _check_accumulator(accumulator)
        self.apply_edge = apply_edge
        self.apply_vertex = apply_vertex
        self.accumulator = accumulator
        self.data = data
        self.dtype = parameters.checked_dtype(dtype, jnp.float32)
        self.rewrite = rewrite

    def __call__(
        self,
        shard: Graph | Shard,
        x: Features,
        *,
        key: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """Returns y [rows, ...] of x [rows, features].

        `key` and `train` have no effect: models call it like a convolution.

        Raises:
          ValueError: a function of the layer, or its accumulator, does not fit; the message starts
            with the stage.
        """
        shard, rows, own = self._rows(shard, x)
        message, edge, reduce = self._gather(shard)
        try:
            gathered = propagate(
                shard, message, rows, own, edge, reduce=reduce, rewrite=self.rewrite
            )
        except (TypeError, ValueError) as error:
            if type(error) not in (TypeError, ValueError):
                raise
            raise type(error)(f"{_stage(error)}: {error}") from error
        try:
            y = self.apply_vertex(own, gathered)
        except Exception as error:
            shapes = jax.tree.map(lambda leaf: leaf.shape, gathered)
            error.add_note(f"jaxgraph: ApplyVertex was given x {own.shape} and sums {shapes}")
            raise
        if not hasattr(y, "shape") or y.shape[:1] != own.shape[:1]:
            raise ValueError(
                f"ApplyVertex: returned {kind_of(y)} {getattr(y, 'shape', '')}; expected an array "
                f"with a row for each of the {len(own)} rows of x"
            )
        return shard.receivers.mask_rows(y)

    def explain(self, shard: Graph | Shard, x: Features) -> RewritingReport:
        """Says what of `apply_edge` moves to the nodes, what is fused, and what could not be.

        Args:
          shard, x: as of the call.

        Returns:
          The report, which prints as text.
        """
        shard, rows, own = self._rows(shard, x)
        message, edge, _ = self._gather(shard)
        return explain(shard, message, rows, own, edge)

    def lifted(self, x: jax.Array) -> jax.Array:
        """The rows that Scatter and `apply_vertex` are given for x [rows, features]: x itself."""
        return x

    def _check(self, shard: Any) -> None:
        """Refuses a graph that the layer is not made for."""

    def _rows(self, shard: Graph | Shard, x: Features) -> tuple[Shard, jax.Array, jax.Array]:
        """The neighbourhood, and the rows of its senders and of its receivers."""
        shard, x = on_device(shard, x)
        self._check(shard)
        rows = require_rows(x, "a SAGA layer")
        rows = self.lifted(parameters.in_dtype(rows, self.dtype))
        return shard, rows, shard.own_rows(rows)

    def _gather(self, shard: Shard) -> tuple[Callable[..., Pytree], Pytree, str]:
        """The message function, the data of the edges, and the reduction."""
        data = _data(shard, self.data)

        def message(sender: Pytree, receiver: Pytree, edge: Pytree) -> Pytree:
            return self.apply_edge(Edge(sender, receiver, edge))

        if not isinstance(self.accumulator, Concatenation):
            return message, data, self.accumulator
        bound = self.accumulator.bound

        def placed(sender: Pytree, receiver: Pytree, edge: tuple[Pytree, jax.Array]) -> Pytree:
            own = edge[1][:, None] == jnp.arange(bound)[None]

            def at_rank(leaf: jax.Array) -> jax.Array:
                mask = own.reshape(*own.shape, *(1,) * (leaf.ndim - 1))
                return jnp.where(mask, leaf[:, None], jnp.zeros((), leaf.dtype))

            return jax.tree.map(at_rank, message(sender, receiver, edge[0]))

        return placed, (data, _data(shard, RANK)), "sum"


layer = Layer
"""The name under which NeuGraph's layers are made: `jaxgraph.saga.layer(apply_edge, ...)`."""


def _check_accumulator(accumulator: Any) -> None:
    if isinstance(accumulator, Concatenation) or accumulator in ACCUMULATORS:
        return
    advice = ""
    if "concat" in str(accumulator).lower():
        advice = (
            "; a concatenation needs a bound, the number of messages that a node keeps: "
            "jaxgraph.saga.Concatenation(bound=8)"
        )
    raise ValueError(
        f"Gather: accumulator is {accumulator!r}; expected one of {', '.join(ACCUMULATORS)}, or a "
        f"Concatenation{advice}"
    )


def _data(shard: Any, name: str | None) -> Pytree:
    """The data of the edges by name, [slots, ...]."""
    if name is None:
        return None
    fields = {field: getattr(shard, field) for field in ("edges", "edge_weight", "edge_type")}
    arrays = {key: value for key, value in fields.items() if value is not None}
    arrays |= getattr(shard, "edge_data", {})  # a block has none
    found = arrays.get(name)
    if found is not None:
        return found
    if name == RANK:
        raise ValueError(
            "Gather: a Concatenation needs the order of the edges that enter a node; call "
            "jaxgraph.transforms.with_edge_rank(graph) before the graph is sharded"
        )
    way = "replace" if name in fields else "with_edges"
    raise ValueError(
        f"Scatter: the layer reads {name!r} of the edges, and the graph has "
        f"{', '.join(arrays) or 'no data of edges'}; add it with graph.{way}({name}=...), an array "
        "with an entry for each edge"
    )


def _stage(error: Exception) -> str:
    """The stage in which `propagate` failed: what it says of `reduce` is about Gather."""
    return "Gather" if "reduce=" in str(error) else "ApplyEdge"
