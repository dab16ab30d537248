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
from tests.ops.blocks import Placed, numbered, place_block, with_one
from tests.oracles import edge_ops
from tests.oracles.edges import Edges
from tests.oracles.randomness import edge_keep_mask
from tests.oracles.tape import differentiate
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
      arrays: for each argument "node", "edge" or "", the owner of its rows, and the other axes, by
        the first letters of heads and features.
      oracle: `oracle(edges, *arrays) -> y`.
      options: options of the op.
      per_edge: whether the result has a row per edge.
      loops: whether self-loops are added.
      kernels: the implementations other than XLA that compute it.
      jumps: whether rounding may change which edge has the gradient.
      ties: whether numbers are rounded, so that many are equal.
      heads: of the arrays.
      features: of each head.
      scale: of the numbers.
    """

    name: str
    op: Callable[..., jax.Array]
    arrays: tuple[tuple[str, str], ...]
    oracle: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    per_edge: bool = False
    loops: bool = False
    kernels: tuple[str, ...] = ("cpu", "mosaic_gpu")
    jumps: bool = False
    ties: bool = False
    heads: int = HEADS
    features: int = FEATURES
    scale: float = 2.0

    @property
    def kinds(self) -> list[str]:
        """The owners of the rows of the arrays, and of the result at the end."""
        return [*(of for of, _ in self.arrays), "edge" if self.per_edge else "node"]

    def expected(self, graph: Graph, *arrays: np.ndarray) -> Any:
        """The oracle's result and the pull of its gradient."""
        edges = Edges.of(graph.senders, graph.receivers, graph.num_nodes)
        edges = edges.with_missing_self_loops() if self.loops else edges
        doubles = (array.astype(np.float64) for array in arrays)
        return differentiate(self.oracle, edges, *doubles)

    def draw(self, graph: Graph, dtype: Any) -> Arrays:
        """The arguments, and the gradient of the result."""
        rng = np.random.default_rng(1)
        rows = {"node": (graph.num_nodes,), "edge": (graph.num_edges,), "": ()}
        sizes = {"h": self.heads, "f": self.features}
        shapes = [(*rows[of], *(sizes[axis] for axis in axes)) for of, axes in self.arrays]
        drawn = [rng.standard_normal(shape) for shape in shapes]
        drawn = [np.round(array) if self.ties else self.scale * array for array in drawn]
        drawn = [array.astype(dtype) for array in drawn]
        y, _ = self.expected(graph, *drawn)
        return *drawn, rng.standard_normal(y.shape).astype(dtype)

    def check(self, graph: Graph, found: Any, dtype: Any, terms: int = 600) -> None:
        """Compares a result and its gradients with the oracle's."""
        y, *gradients = found
        *arrays, cotangent = self.draw(graph, dtype)
        expected, backward = self.expected(graph, *arrays)
        # The gradient of a vector that all edges share has an addend of each, which may cancel.
        same = partial(assert_close, dtype=dtype, reduction_length=max(terms, graph.num_edges))
        assert y.dtype == dtype, y.dtype
        same(y, expected, name=f"{self.name} of {graph.name}")
        if self.jumps and jnp.dtype(dtype).itemsize == 2:
            return
        exact = backward(cotangent.astype(np.float64))[1:]
        for place, (mine, right) in enumerate(zip(gradients, exact, strict=True)):
            assert mine.dtype == dtype, mine.dtype
            name = f"gradient {place} of {self.name} of {graph.name}"
            same(with_one(mine), with_one(right), name=name)


def _dropped(oracle: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """An attention with the library's draws of `KEY`."""
    first, second = (int(word) for word in jax.random.key_data(KEY))

    def run(edges: Edges, *arrays: Any) -> Any:
        ends = (edges.receivers, edges.senders, edges.repetitions())
        keep = edge_keep_mask((first, second), *ends, arrays[0].shape[1], RATE)
        return oracle(edges, *arrays, keep=keep, rate=RATE, **options)

    return run


def _mean_of_heads(oracle: Callable[..., Any]) -> Callable[..., Any]:
    return lambda edges, *arrays: oracle(edges, *arrays).mean(1)


def _aggregation(
    name: str, arrays: tuple[tuple[str, str], ...], reduce: str, *, loops: bool = False, **rest: Any
) -> Case:
    def oracle(edges: Edges, x: Any, weight: Any = None) -> Any:
        weight = edges.weight if weight is None else weight
        return edge_ops.aggregate(edges, x, weight, reduce)

    options = {"reduce": reduce, "self_loops": loops}
    return Case(name, aggregate, arrays, oracle, options, loops=loops, **rest)


WIDE, FLAT, NUMBER = ("node", "hf"), ("node", "f"), ("node", "h")
PER_EDGE, PER_HEAD = ("edge", ""), ("edge", "h")
DROPPED: Any = {"dropout": RATE, "key": KEY, "self_loops": True}
SLOPES: Any = {"negative_slope": SLOPE}
ATTENTION: dict[str, tuple[Any, Any, Any, Any]] = {
    "gat": (
        gat_attention,
        (WIDE, NUMBER, NUMBER),
        partial(edge_ops.gat_attention, slope=SLOPE),
        SLOPES,
    ),
    "gatv2": (
        gatv2_attention,
        (WIDE, WIDE, ("", "hf")),
        partial(edge_ops.gatv2_attention, slope=SLOPE),
        SLOPES,
    ),
    "dot": (
        dot_attention,
        (WIDE, WIDE, WIDE),
        partial(edge_ops.dot_attention, scale=SLOPE),
        {"scale": SLOPE},
    ),
}
"""The op, its arrays, its oracle and its options."""
EXTREMA: Any = {"jumps": True, "ties": True}
ON_EDGES: Any = {"per_edge": True}
CASES = (
    _aggregation("sum", (WIDE, PER_HEAD), "sum"),
    _aggregation("sum-loops", (FLAT,), "sum", loops=True),
    _aggregation("mean", (WIDE, PER_EDGE), "mean"),
    _aggregation("mean-loops", (FLAT,), "mean", loops=True),
    _aggregation("max", (WIDE,), "max", loops=True, **EXTREMA),
    _aggregation("min-plain", (FLAT,), "min", **EXTREMA),
    _aggregation("min", (FLAT, PER_EDGE), "min", kernels=(), jumps=True),
    Case("products", sddmm, (WIDE, WIDE), edge_ops.sddmm, **ON_EDGES),
    Case("products-flat", sddmm, (FLAT, FLAT), edge_ops.sddmm, **ON_EDGES),
    Case(
        "sums-of-ends",
        sddmm,
        (WIDE, WIDE),
        edge_ops.sum_of_ends,
        {"op": "add"},
        kernels=("mosaic_gpu",),
        **ON_EDGES,
    ),
    Case("edge-softmax", edge_softmax, (PER_HEAD,), edge_ops.edge_softmax, kernels=(), **ON_EDGES),
    Case("gat-plain", *ATTENTION["gat"]),
    *(
        Case(name, op, arrays, _dropped(oracle), DROPPED | options, loops=True)
        for name, (op, arrays, oracle, options) in ATTENTION.items()
    ),
    *(
        Case(
            f"{name}-heads",
            op,
            arrays,
            _mean_of_heads(_dropped(oracle)),
            DROPPED | options | {"mean_heads": True},
            loops=True,
        )
        for name, (op, arrays, oracle, options) in ATTENTION.items()
    ),
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
    get = {"node": placed.nodes, "edge": placed.edges, "": np.asarray}
    *given, cotangent = placed_arrays(case, placed, dtype)
    block = with_implementation(placed.block, implementation)
    found = compiled_case(case, block, given, cotangent)
    kinds = [case.kinds[-1], *case.kinds[:-1]]
    return [get[of](array) for of, array in zip(kinds, found, strict=True)]


def placed_arrays(case: Case, placed: Placed, dtype: Any) -> list[jax.Array]:
    """The arguments of the op and the gradient of its result, by row or slot."""
    put = {"node": placed.rows, "edge": placed.slots, "": jnp.asarray}
    drawn = case.draw(placed.graph, dtype)
    return [put[of](array) for of, array in zip(case.kinds, drawn, strict=True)]


@lru_cache(maxsize=32)
def _sharded(graph: Graph, parts: int, mode: str, implementation: str) -> Any:
    owners = Partition(skewed_assignment(graph.num_nodes, parts), parts, "skewed")
    return shard(numbered(graph), owners, make_mesh(parts), mode, implementation=implementation)


def on_shards(
    case: Case, graph: Graph, implementation: str, dtype: Any, parts: int, mode: str
) -> list[np.ndarray]:
    """The same on the shards of a graph, of which one is empty."""
    kinds, drawn = case.kinds, case.draw(graph, dtype)
    of_result = kinds[-1]

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
