"""A small example of every op, computed with an implementation and with NumPy.

`jaxgraph info --check` runs these. In a moment they tell an implementation that works from one that
loads but computes wrong numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.edges import EdgeGroups, Orientation

NUM_NODES, NUM_EDGES, CHUNK, PIECE = 24, 100, 8, 4
HEADS, FEATURES, SLOPE = 2, 5, 0.2
TOLERANCE = 1e-5
STEP = 1e-6

Reference = Callable[..., np.ndarray]


@dataclasses.dataclass(frozen=True)
class Example:
    """A graph of 100 edges, one node of which receives many.

    Attributes:
      block: the edges for the ops.
      senders, receivers: int [100], the same edges in the order of their slots.
    """

    block: Block
    senders: np.ndarray
    receivers: np.ndarray

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sums [100, ...] into [24, ...] by receiver."""
        total = np.zeros((NUM_NODES, *values.shape[1:]))
        np.add.at(total, self.receivers, values)
        return total

    def softmax(self, logits: np.ndarray) -> np.ndarray:
        """Normalises [100, heads] by receiver."""
        powers = np.exp(logits - logits.max(0))
        return powers / self.sums(powers)[self.receivers]


def example() -> Example:
    """Makes the graph; some nodes have no edges, one has many."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, NUM_NODES - 4, (2, NUM_EDGES))
    receivers[: NUM_EDGES // 4] = 3
    order = np.argsort(receivers, kind="stable")
    senders, receivers = senders[order], receivers[order]
    ids = jnp.arange(NUM_NODES, dtype=jnp.int32)
    edges = EdgeGroups(
        by_receiver=_orientation(receivers, senders, None),
        by_sender=_orientation(senders, receivers, np.arange(NUM_EDGES)),
        sender_ids=ids,
        sender_ptr=None,
        receiver_ids=ids,
        receiver_ptr=None,
        repetition=_repetitions(senders * NUM_NODES + receivers),
        receivers=_padded(receivers),
        chunk=CHUNK,
        piece=PIECE,
        receiver_capacity=NUM_NODES + CHUNK,
        sender_capacity=NUM_NODES + CHUNK,
    )
    return Example(Block(edges, ids, None), senders, receivers)


def _repetitions(pairs: np.ndarray) -> jax.Array:
    """The number of equal pairs before each pair, int32 [100 + 8]."""
    earlier = np.tril(pairs[:, None] == pairs, -1).sum(1)
    return jnp.asarray(np.pad(earlier, (0, CHUNK)), jnp.int32)


def _orientation(
    rows: np.ndarray, neighbors: np.ndarray, edge_ids: np.ndarray | None
) -> Orientation:
    """Edges in the order of their rows, and the rows by descending degree."""
    by_row = np.argsort(rows, kind="stable")
    degrees = np.bincount(rows, minlength=NUM_NODES)
    starts = np.cumsum(degrees) - degrees
    with_edges = np.flatnonzero(degrees)
    by_degree = with_edges[np.argsort(-degrees[with_edges], kind="stable")]
    position = np.full(NUM_NODES, -1)
    position[by_degree] = np.arange(len(by_degree))
    return Orientation(
        neighbors=_padded(neighbors[by_row]),
        edge_ids=None if edge_ids is None else _padded(edge_ids[by_row]),
        rows=_padded(by_degree),
        starts=_padded(starts[by_degree]),
        degrees=_padded(degrees[by_degree]),
        run_ptr=jnp.asarray([0, len(by_degree)], jnp.int32),
        heavy_rows=jnp.zeros(1, jnp.int32),
        position=jnp.asarray(position, jnp.int32),
        compressed_ptr=jnp.asarray([0, len(with_edges)], jnp.int32),
        compressed_rows=jnp.asarray(with_edges, jnp.int32),
        compressed_starts=jnp.asarray(np.append(starts[with_edges], NUM_EDGES), jnp.int32),
    )


def _padded(values: Any) -> jax.Array:
    return jnp.asarray(np.concatenate([values, np.zeros(CHUNK)]), jnp.int32)


def _error(actual: Any, expected: np.ndarray) -> float:
    scale = max(float(np.abs(expected).max()), 1e-30)
    return float(np.abs(np.asarray(actual, np.float64) - expected).max()) / scale


@dataclasses.dataclass(frozen=True)
class _Case:
    """One use of an op.

    Attributes:
      options: of the op.
      reference: a function of the example and float64 arrays.
      shapes: shapes of the arrays.
      per_edge: whether the result has a row per slot.
      optional: whether an implementation may lack it.
    """

    options: Mapping[str, Any]
    reference: Reference
    shapes: Sequence[tuple[int, ...]]
    per_edge: bool = False
    optional: bool = False


def check(op: str, function: Callable[..., jax.Array]) -> str:
    """Compares a function with an op."""
    lines = []
    for case in CASES[op]:
        with (
            contextlib.suppress(NotImplementedError) if case.optional else contextlib.nullcontext()
        ):
            lines.append(_compare(partial(function, **case.options), case))
    failed = [line for line in lines if line.startswith("failed")]
    return failed[0] if failed else max(lines, key=lambda line: float(line.split()[-1]))


def _compare(function: Callable[..., jax.Array], case: _Case) -> str:
    """Compares values, and gradients by differences of the reference along random directions.

    An array per edge holds NaN after the last edge.
    """
    graph, rng = example(), np.random.default_rng(1)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in case.shapes]
    rows = NUM_EDGES if case.per_edge else NUM_NODES
    reference = case.reference

    def run(*arrays: jax.Array) -> jax.Array:
        padded = [
            jnp.pad(x, ((0, CHUNK), *((0, 0),) * (x.ndim - 1)), constant_values=jnp.nan)
            if x.shape[0] == NUM_EDGES
            else x
            for x in arrays
        ]
        return function(graph.block, *padded)[:rows]

    doubles = [array.astype(np.float64) for array in arrays]
    expected = reference(graph, *doubles)
    actual, pull = jax.vjp(run, *map(jnp.asarray, arrays))
    if actual.shape != expected.shape:
        return f"failed: shape {actual.shape}, expected {expected.shape}"
    weights = rng.standard_normal(expected.shape)
    gradients = pull(jnp.asarray(weights, actual.dtype))
    worst = _error(actual, expected)
    for index, gradient in enumerate(gradients):
        direction = rng.standard_normal(case.shapes[index])
        above, below = (
            [d + sign * STEP * direction if i == index else d for i, d in enumerate(doubles)]
            for sign in (1, -1)
        )
        slope = (reference(graph, *above) - reference(graph, *below)) * weights / (2 * STEP)
        along = np.asarray(gradient, np.float64) * direction
        # Relative to the terms: the sum itself may cancel.
        size = np.sqrt(np.sum(along**2)) + np.sqrt(np.sum(slope**2)) + 1e-30
        worst = max(worst, float(abs(along.sum() - slope.sum()) / size))
    # Written so that NaN fails.
    return f"{'ok' if worst <= TOLERANCE else 'failed'}: largest error {worst:.1e}"


def _extreme(sign: float, graph: Example, x: np.ndarray) -> np.ndarray:
    best = np.full((NUM_NODES, FEATURES), -np.inf)
    np.maximum.at(best, graph.receivers, sign * x[graph.senders])
    return np.where(np.isneginf(best), 0.0, sign * best)


def _total(reduce: str, graph: Example, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    total = graph.sums(weight[:, None] * x[graph.senders])
    counts = np.maximum(graph.sums(np.ones(NUM_EDGES)), 1)
    return total / counts[:, None] if reduce == "mean" else total


def _products(graph: Example, sender: np.ndarray, receiver: np.ndarray) -> np.ndarray:
    return (sender[graph.senders] * receiver[graph.receivers]).sum(-1)


def _end_sums(graph: Example, sender: np.ndarray, receiver: np.ndarray) -> np.ndarray:
    return sender[graph.senders] + receiver[graph.receivers]


def _leaky(values: np.ndarray) -> np.ndarray:
    return np.where(values >= 0, values, SLOPE * values)


def _gat(graph: Example, values: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    alpha = graph.softmax(_leaky(left[graph.senders] + right[graph.receivers]))
    return graph.sums(alpha[..., None] * values[graph.senders])


def _gatv2(graph: Example, sender: np.ndarray, receiver: np.ndarray, a: np.ndarray) -> np.ndarray:
    hidden = _leaky(sender[graph.senders] + receiver[graph.receivers])
    alpha = graph.softmax((a * hidden).sum(-1))
    return graph.sums(alpha[..., None] * sender[graph.senders])


def _dot(graph: Example, queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    alpha = graph.softmax((queries[graph.receivers] * keys[graph.senders]).sum(-1))
    return graph.sums(alpha[..., None] * values[graph.senders])


ROWS, WIDE, NUMBERS = (NUM_NODES, FEATURES), (NUM_NODES, HEADS, FEATURES), (NUM_NODES, HEADS)
CASES: Mapping[str, tuple[_Case, ...]] = MappingProxyType(
    {
        "aggregate": (
            _Case({"reduce": "sum"}, partial(_total, "sum"), [ROWS, (NUM_EDGES,)]),
            _Case({"reduce": "mean"}, partial(_total, "mean"), [ROWS, (NUM_EDGES,)]),
            _Case({"reduce": "max"}, partial(_extreme, 1.0), [ROWS]),
            _Case({"reduce": "min"}, partial(_extreme, -1.0), [ROWS]),
        ),
        "sddmm": (
            _Case({"op": "dot"}, _products, [WIDE] * 2, per_edge=True),
            _Case({"op": "add"}, _end_sums, [WIDE] * 2, per_edge=True, optional=True),
        ),
        "edge_softmax": (_Case({}, Example.softmax, [(NUM_EDGES, HEADS)], per_edge=True),),
        "gat_attention": (_Case({"negative_slope": SLOPE}, _gat, [WIDE, NUMBERS, NUMBERS]),),
        "gatv2_attention": (
            _Case({"negative_slope": SLOPE}, _gatv2, [WIDE, WIDE, (HEADS, FEATURES)]),
        ),
        "dot_attention": (_Case({"scale": 1.0}, _dot, [WIDE] * 3),),
    }
)
"""The uses of each op that are compared."""
