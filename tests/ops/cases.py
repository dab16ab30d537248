"""Every op with its oracle, and its runs on a block of edges and on shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph import Graph
from jaxgraph.ops import (
    aggregate,
    dot_attention,
    edge_softmax,
    gat_attention,
    gatv2_attention,
    sddmm,
)
from jaxgraph.ops.core.edges import with_implementation
from jaxgraph.parallel import make_mesh, shard, spmd
from jaxgraph.partition.assignment import Partition
from tests.ops.blocks import numbered, place_block, with_one
from tests.oracles import edge_ops
from tests.oracles.edges import Edges
from tests.oracles.randomness import edge_keep_mask
from tests.strategies import skewed_assignment
from tests.tolerance import assert_close

HEADS, FEATURES, RATE, SLOPE = 2, 3, 0.4, 0.3
KEY = jax.random.key(7)
Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class Case:
    """One op with one choice of its options.

    Attributes:
      name: name of the test.
      op: `op(neighborhood, *arrays, **options)`.
      arrays: for each argument "node", "edge" or "", the owner of its rows, and the other axes.
      oracle: `oracle(edges, *arrays) -> (y, backward)`; gradients may have further ones at the end.
      options: options of the op.
      per_edge: whether the result has a row per edge.
      loops: whether self-loops are added.
      kernels: the implementations other than XLA that compute it.
      jumps: whether rounding may change which edge has the gradient.
      ties: whether numbers are rounded, so that many are equal.
    """

    name: str
    op: Callable[..., jax.Array]
    arrays: tuple[tuple[str, tuple[int, ...]], ...]
    oracle: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    per_edge: bool = False
    loops: bool = False
    kernels: tuple[str, ...] = ("cpu", "mosaic_gpu")
    jumps: bool = False
    ties: bool = False

    def edges(self, graph: Graph) -> Edges:
        """The edges of the oracle."""
        edges = Edges.of(graph.senders, graph.receivers, graph.num_nodes)
        return edges.with_missing_self_loops() if self.loops else edges

    def draw(self, graph: Graph, dtype: Any) -> Arrays:
        """The arguments, and the gradient of the result."""
        rng = np.random.default_rng(1)
        sizes = {"node": (graph.num_nodes,), "edge": (graph.num_edges,), "": ()}
        drawn = [rng.standard_normal((*sizes[of], *rest)) for of, rest in self.arrays]
        drawn = [np.round(array) if self.ties else 2 * array for array in drawn]
        drawn = [array.astype(dtype) for array in drawn]
        y, _ = self.oracle(self.edges(graph), *(array.astype(np.float64) for array in drawn))
        return *drawn, rng.standard_normal(y.shape).astype(dtype)

    def check(self, graph: Graph, found: Any, dtype: Any) -> None:
        """Compares a result and its gradients with the oracle's."""
        y, *gradients = found
        *arrays, cotangent = (array.astype(np.float64) for array in self.draw(graph, dtype))
        expected, backward = self.oracle(self.edges(graph), *arrays)
        # The gradient of a vector that all edges share has an addend of each, which may cancel.
        same = partial(assert_close, dtype=dtype, reduction_length=600)
        assert y.dtype == dtype, y.dtype
        same(y, expected, name=f"{self.name} of {graph.name}")
        if self.jumps and jnp.dtype(dtype).itemsize == 2:
            return
        exact = backward(cotangent)[: len(gradients)]
        for place, (mine, right) in enumerate(zip(gradients, exact, strict=True)):
            assert mine.dtype == dtype, mine.dtype
            name = f"gradient {place} of {self.name} of {graph.name}"
            same(with_one(mine), with_one(right), name=name)


def _keep(edges: Edges) -> np.ndarray:
    words = tuple(int(word) for word in jax.random.key_data(KEY))
    ends = (edges.receivers, edges.senders, edges.repetitions())
    return edge_keep_mask((words[0], words[1]), *ends, HEADS, RATE)


def _dropped(oracle: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return lambda edges, *arrays: oracle(edges, *arrays, keep=_keep(edges), rate=RATE, **options)


def _mean_of_heads(oracle: Callable[..., Any]) -> Callable[..., Any]:
    def mean(edges: Edges, *arrays: np.ndarray) -> Any:
        y, backward = oracle(edges, *arrays)
        spread = lambda grad: np.repeat(grad[:, None] / HEADS, HEADS, 1)  # noqa: E731
        return y.mean(1), lambda grad: backward(spread(grad))

    return mean


def _unweighted(reduce: str) -> Callable[..., Any]:
    return lambda edges, x: edge_ops.aggregate(edges, x, edges.weight, reduce)


def _weighted(reduce: str) -> Callable[..., Any]:
    return lambda edges, x, weight: edge_ops.aggregate(edges, x, weight, reduce)


WIDE, FLAT, NUMBER = (("node", (HEADS, FEATURES)), ("node", (FEATURES,)), ("node", (HEADS,)))
PER_EDGE, PER_HEAD = ("edge", ()), ("edge", (HEADS,))
DROPPED: Any = {"dropout": RATE, "key": KEY, "self_loops": True}
GAT, DOT = (WIDE, NUMBER, NUMBER), (WIDE, WIDE, WIDE)
GATV2 = (WIDE, WIDE, ("", (HEADS, FEATURES)))
SLOPES: Any = {"negative_slope": SLOPE}
_gat = partial(edge_ops.gat_attention, slope=SLOPE)
_gatv2 = partial(edge_ops.gatv2_attention, slope=SLOPE)
_dot = partial(edge_ops.dot_attention, scale=FEATURES**-0.5)
CASES = (
    Case("sum", aggregate, (WIDE, PER_HEAD), _weighted("sum")),
    Case("sum-loops", aggregate, (FLAT,), _unweighted("sum"), {"self_loops": True}, loops=True),
    Case("mean", aggregate, (WIDE, PER_EDGE), _weighted("mean"), {"reduce": "mean"}),
    Case(
        "mean-loops",
        aggregate,
        (FLAT,),
        _unweighted("mean"),
        {"reduce": "mean", "self_loops": True},
        loops=True,
    ),
    Case(
        "max",
        aggregate,
        (WIDE,),
        _unweighted("max"),
        {"reduce": "max", "self_loops": True},
        loops=True,
        jumps=True,
        ties=True,
    ),
    Case(
        "min",
        aggregate,
        (FLAT, PER_EDGE),
        _weighted("min"),
        {"reduce": "min"},
        kernels=(),
        jumps=True,
    ),
    Case("products", sddmm, (WIDE, WIDE), edge_ops.sddmm, per_edge=True),
    Case("products-flat", sddmm, (FLAT, FLAT), edge_ops.sddmm, per_edge=True),
    Case(
        "sums-of-ends",
        sddmm,
        (WIDE, WIDE),
        edge_ops.sum_of_ends,
        {"op": "add"},
        per_edge=True,
        kernels=("mosaic_gpu",),
    ),
    Case(
        "edge-softmax", edge_softmax, (PER_HEAD,), edge_ops.edge_softmax, per_edge=True, kernels=()
    ),
    Case("gat", gat_attention, GAT, _gat, SLOPES),
    Case("gat-dropped", gat_attention, GAT, _dropped(_gat), DROPPED | SLOPES, loops=True),
    Case(
        "gat-heads",
        gat_attention,
        GAT,
        _mean_of_heads(_dropped(_gat)),
        DROPPED | SLOPES | {"mean_heads": True},
        loops=True,
    ),
    Case("gatv2", gatv2_attention, GATV2, _dropped(_gatv2), DROPPED | SLOPES, loops=True),
    Case("dot", dot_attention, DOT, _dropped(_dot), DROPPED, loops=True),
)


def run_case(case: Case, neighborhood: Any, arrays: Any, cotangent: Any) -> Any:
    """The result of the op, and the gradients of its arrays."""
    y, pull = jax.vjp(partial(case.op, neighborhood, **case.options), *arrays)
    return y, *pull(cotangent)


compiled_case = jax.jit(run_case, static_argnums=0)


def on_block(
    case: Case, graph: Graph, implementation: str, dtype: Any, pad_to: Any = None
) -> list[np.ndarray]:
    """The result and its gradients by node or edge; NaN is in all padding."""
    placed = place_block(graph, pad_to=pad_to)
    kinds = [of for of, _ in case.arrays]
    put = {"node": placed.rows, "edge": placed.slots, "": jnp.asarray}
    get = {"node": placed.nodes, "edge": placed.edges, "": np.asarray}
    of_result = "edge" if case.per_edge else "node"
    *arrays, cotangent = case.draw(graph, dtype)
    block = with_implementation(placed.block, implementation)
    given = [put[of](array) for of, array in zip(kinds, arrays, strict=True)]
    found = compiled_case(case, block, given, put[of_result](cotangent))
    return [get[of](array) for of, array in zip([of_result, *kinds], found, strict=True)]


@lru_cache(maxsize=32)
def _sharded(graph: Graph, parts: int, mode: str, implementation: str) -> Any:
    owners = Partition(skewed_assignment(graph.num_nodes, parts), parts, "skewed")
    return shard(numbered(graph), owners, make_mesh(parts), mode, implementation=implementation)


def on_shards(
    case: Case, graph: Graph, implementation: str, dtype: Any, parts: int, mode: str
) -> list[np.ndarray]:
    """The same on the shards of a graph, of which one is empty."""
    kinds = [of for of, _ in case.arrays]
    of_result = "edge" if case.per_edge else "node"
    kinds, *drawn = [*kinds, of_result], *case.draw(graph, dtype)

    def run(sharded: Any, *tables: jax.Array) -> Any:
        numbers = sharded.edges[:, 0].astype(jnp.int32)
        places = {
            "node": (jnp.where(sharded.node_mask, sharded.node_ids, 0), sharded.node_mask),
            "edge": (numbers - 1, numbers > 0),
        }

        def put(of: str, table: jax.Array) -> jax.Array:
            if not of:
                return table
            rows, mask = places[of]
            return jnp.where(_spread(mask, table), table[rows], jnp.nan)

        def get(of: str, values: jax.Array, table: jax.Array) -> jax.Array:
            if of != "edge":
                return values
            # Values of slots without an edge are moved after the last edge.
            slots, mask = places[of]
            slots = jnp.where(mask, slots, len(table))
            empty = jnp.zeros((len(table) + 1, *values.shape[1:]), values.dtype)
            return sharded.sum(empty.at[slots].add(values))

        *arrays, cotangent = map(put, kinds, tables)
        found = run_case(case, sharded, arrays, cotangent)
        order = [-1, *range(len(arrays))]
        return [get(kinds[i], x, tables[i]) for i, x in zip(order, found, strict=True)]

    outputs = ["rows" if of == "node" else "replicated" for of in (of_result, *kinds[:-1])]
    placed = _sharded(graph, parts, mode, implementation)
    found = spmd(run, outputs=outputs)(placed, *map(jnp.asarray, drawn))
    mask = np.asarray(placed.shards.node_mask).reshape(-1)
    row_of_node = np.empty(graph.num_nodes, np.int64)
    row_of_node[np.asarray(placed.shards.node_ids).reshape(-1)[mask]] = np.flatnonzero(mask)
    results = []
    for of, array in zip([of_result, *kinds[:-1]], map(np.asarray, found), strict=True):
        padding = {"node": array[~mask] if of == "node" else (), "edge": array[-1:], "": ()}[of]
        assert not np.any(padding), f"{case.name}: padding holds {padding}"
        by = {"node": row_of_node, "edge": slice(-1), "": slice(None)}[of]
        results.append(array[by])
    return results


def _spread(mask: jax.Array, table: jax.Array) -> jax.Array:
    return mask.reshape(-1, *(1,) * (table.ndim - 1))
