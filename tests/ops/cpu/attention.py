"""The attention kernels and their oracles, with one signature per kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph.ops.core.edges import EdgeGroup, EdgeGroups
from jaxgraph.ops.core.message_functions import DotMessage, GatMessage, GatV2Message
from jaxgraph.ops.core.messages import Inputs, Wanted
from jaxgraph.ops.core.reducers import HeadMean, Softmax
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.cpu.messages import cpu_stages
from tests.ops.cpu.groups import node_ids
from tests.oracles import edge_ops
from tests.oracles.edges import Edges
from tests.oracles.randomness import edge_keep_mask

SEED = (17, 4_000_000_001)
PARAMETER = 0.3


def dot_oracle(
    edges: Edges,
    keys: np.ndarray,
    values: np.ndarray,
    queries: np.ndarray,
    *,
    slope: float,
    keep: np.ndarray | None,
    rate: float,
) -> tuple[np.ndarray, Callable[[np.ndarray], tuple[np.ndarray, ...]]]:
    """y_i = sum_j dropout(softmax_j(scale <q_i, k_j>)) v_j; `slope` is the scale."""
    queries_by_edge, keys_by_edge = queries[edges.receivers], keys[edges.senders]
    logits = slope * (queries_by_edge * keys_by_edge).sum(-1)
    y, backward_attend = edge_ops.attend(edges, logits, values, keep, rate)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, ...]:
        grad_logits, grad_values = backward_attend(grad)
        scaled = slope * grad_logits[..., None]
        by_receiver = edges.sum_by_receiver(scaled * keys_by_edge)
        return edges.sum_by_sender(scaled * queries_by_edge), grad_values, by_receiver

    return y, backward


@dataclass(frozen=True)
class Kind:
    """One kind of attention.

    Attributes:
        message: Its message.
        inputs: The inputs of the message, from the three arrays.
        oracle: Their reference.
        shapes: Of the three inputs: "nodes" and "heads", and "features" where it has them.
        values: Which input holds the values.
    """

    message: Any
    inputs: Callable[..., Inputs]
    oracle: Callable[..., Any]
    shapes: tuple[str, str, str]
    values: int

    def draw(
        self, num_nodes: int, heads: int, features: int, *, mean: bool = False
    ) -> list[np.ndarray]:
        """The inputs, float64, and at the end a gradient of the output, or of its mean."""
        sizes = {"nodes": num_nodes, "heads": heads, "features": features}
        rng = np.random.default_rng(heads * features)
        shapes = [tuple(sizes[axis] for axis in axes.split()) for axes in self.shapes]
        output = (num_nodes, *((features,) if mean else (heads, features)))
        return [rng.standard_normal(shape) for shape in (*shapes, output)]


ROWS = "nodes heads features"
KINDS = {
    "gat": Kind(
        GatMessage(PARAMETER),
        lambda v, sender, r: Inputs((), (v, sender), r, ()),
        edge_ops.gat_attention,
        (ROWS, "nodes heads", "nodes heads"),
        0,
    ),
    "gatv2": Kind(
        GatV2Message(PARAMETER),
        lambda s, r, a: Inputs(a, s, r, ()),
        edge_ops.gatv2_attention,
        (ROWS, ROWS, "heads features"),
        0,
    ),
    "dot": Kind(
        DotMessage(PARAMETER),
        lambda k, v, q: Inputs((), (k, v), q, ()),
        dot_oracle,
        (ROWS, ROWS, ROWS),
        1,
    ),
}


def expected(
    kind: Kind, edges: Edges, arrays: list[np.ndarray], rate: float
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """The output, or its mean over heads, and the gradients of the inputs, float64."""
    *inputs, grad = arrays
    heads, keep = arrays[kind.values].shape[1], None
    if rate:
        ids = node_ids(edges.num_nodes)
        ends = (ids[edges.receivers], ids[edges.senders], edges.repetitions())
        keep = edge_keep_mask(SEED, *ends, heads, rate)
    y, backward = kind.oracle(edges, *inputs, slope=PARAMETER, keep=keep, rate=rate)
    if grad.ndim == 3:
        return y, backward(grad)
    return y.mean(1), backward(np.repeat(grad[:, None] / heads, heads, 1))


def compute(
    kind: Kind,
    groups: EdgeGroups,
    inputs: list[jax.Array],
    gradient: jax.Array,
    *,
    rate: float = 0.0,
    missing: jax.Array | None = None,
    num_groups: int = 1,
    wanted: tuple[str, ...] = ("sender", "receiver", "params"),
) -> tuple[jax.Array, dict[str, list[jax.Array]]]:
    """The same from the kernels, group after group; only the first gets the missing loops."""
    seed = (jnp.uint32(SEED[0]), jnp.uint32(SEED[1])) if rate else None
    reduce = Softmax if gradient.ndim == 3 else HeadMean
    reducer = reduce(seed=seed, rate=rate, heads=inputs[kind.values].shape[1])
    over = [
        EdgeGroup(groups, jnp.int32(group), missing if group == 0 else None)
        for group in range(num_groups)
    ]
    given, state, found = kind.inputs(*inputs), None, Inputs([], [], [], [])
    stages = cpu_stages(Stages(kind.message, reducer, 1), given)
    assert stages is not None
    for each in over:
        state = stages.fold_over(each, given, state, len(gradient))
    y, kept = stages.finish(state, given)
    adjoint = stages.adjoint(y, kept, gradient)
    flags = Wanted(**{part: part in wanted for part in ("params", "sender", "receiver", "edge")})
    for each in over:
        found = stages.pull_over(each, given, adjoint, flags, found)
    return y, {part: getattr(found, part) for part in wanted}


def in_order(gradients: dict[str, list[jax.Array]]) -> list[jax.Array]:
    """The gradients of the three arrays."""
    return [each for part in ("sender", "receiver", "params") for each in gradients[part]]
