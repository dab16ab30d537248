"""Attention kernels, group after group: values and gradients against the oracle."""

import dataclasses
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.edges import EdgeGroup
from jaxgraph.ops.core.message_functions import DotMessage, GatMessage, GatV2Message
from jaxgraph.ops.core.messages import Inputs, Wanted
from jaxgraph.ops.core.reducers import HeadMean, Softmax
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.cpu.attention_messages import attention_stages
from jaxgraph.ops.cpu.attention_passes import MOST_HEADS
from tests.cpu_kernels import needs_kernels
from tests.ops.blocks import with_one
from tests.ops.cpu.groups import HUB, group_edges, hub_edges, node_ids, without_loop
from tests.oracles import edge_ops
from tests.oracles.edges import Edges
from tests.oracles.randomness import edge_keep_mask
from tests.tolerance import assert_close

pytestmark = needs_kernels

SEED = (17, 4_000_000_001)
PARAMETER = 0.3
SIZES = [(1, 1), (3, 7), (4, 16), (8, 5), (4, 23), (3, 41), (MOST_HEADS, 1), (17, 9)]
EVERY = ("sender", "receiver", "params")


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of attention.

    Attributes:
      message: its message.
      inputs: the inputs of the message, from three arrays.
      parts: the parts of the inputs, in the order of these arrays.
      oracle: their reference.
      shapes: of the arrays: "nodes" and "heads", and "features" where it has them.
    """

    message: Any
    inputs: Callable[..., Inputs]
    parts: tuple[str, ...]
    oracle: Callable[..., Any]
    shapes: tuple[str, str, str]

    def draw(self, nodes: int, heads: int, features: int, mean: bool = False) -> list[np.ndarray]:
        """The arrays, float64, and at the end a gradient of the output, or of its mean."""
        sizes = {"nodes": nodes, "heads": heads, "features": features}
        rng = np.random.default_rng(heads * features)
        shapes = [tuple(sizes[axis] for axis in axes.split()) for axes in self.shapes]
        output = (nodes, features) if mean else (nodes, heads, features)
        return [rng.standard_normal(shape) for shape in (*shapes, output)]


ROWS = "nodes heads features"
KINDS = {
    "gat": Kind(
        GatMessage(PARAMETER),
        lambda values, left, right: Inputs((), (values, left), right, ()),
        ("sender", "receiver"),
        partial(edge_ops.gat_attention, slope=PARAMETER),
        (ROWS, "nodes heads", "nodes heads"),
    ),
    "gatv2": Kind(
        GatV2Message(PARAMETER),
        lambda sender, receiver, vector: Inputs(vector, sender, receiver, ()),
        EVERY,
        partial(edge_ops.gatv2_attention, slope=PARAMETER),
        (ROWS, ROWS, "heads features"),
    ),
    "dot": Kind(
        DotMessage(PARAMETER),
        lambda queries, keys, values: Inputs((), (keys, values), queries, ()),
        ("receiver", "sender"),
        partial(edge_ops.dot_attention, scale=PARAMETER),
        (ROWS, ROWS, ROWS),
    ),
}
every_kind = pytest.mark.parametrize("name", KINDS)


def expected(kind: Kind, edges: Edges, arrays: list[np.ndarray], heads: int, rate: float) -> Any:
    """The output, or its mean over heads, and the gradients of the arrays, float64."""
    *inputs, grad = arrays
    ids, keep = node_ids(edges.num_nodes), None
    if rate:
        ends = (ids[edges.receivers], ids[edges.senders], edges.repetitions())
        keep = edge_keep_mask(SEED, *ends, heads, rate)
    y, backward = kind.oracle(edges, *inputs, keep=keep, rate=rate)
    if grad.ndim == 3:
        return y, backward(grad)
    return y.mean(1), backward(np.repeat(grad[:, None] / heads, heads, 1))


@partial(jax.jit, static_argnames=("name", "heads", "rate", "num_groups", "wanted"))
def compute(
    groups: Any,
    arrays: Any,
    missing: Any,
    *,
    name: str,
    heads: int,
    rate: float = 0.0,
    num_groups: int = 1,
    wanted: tuple[str, ...] = EVERY,
) -> tuple[jax.Array, list[jax.Array]]:
    """The same from the kernels; only the first group has the missing loops."""
    kind, (*inputs, gradient) = KINDS[name], arrays
    reduce = Softmax if gradient.ndim == 3 else HeadMean
    seed = (jnp.uint32(SEED[0]), jnp.uint32(SEED[1])) if rate else None
    over = [
        EdgeGroup(groups, jnp.int32(group), missing if group == 0 else None)
        for group in range(num_groups)
    ]
    given, state, found = kind.inputs(*inputs), None, Inputs([], [], [], [])
    stages = attention_stages(Stages(kind.message, reduce(seed, rate, heads), 1), given)
    assert stages is not None
    for each in over:
        state = stages.fold_over(each, given, state, len(gradient))
    y, kept = stages.finish(state, given)
    adjoint = stages.adjoint(y, kept, gradient)
    flags = Wanted(**{part: part in wanted for part in (*EVERY, "edge")})
    for each in over:
        found = stages.pull_over(each, given, adjoint, flags, found)
    return y, [leaf for part in kind.parts for leaf in getattr(found, part)]


def check(
    name: str,
    edges: Edges,
    heads: int,
    features: int,
    *,
    dtype: Any = np.float32,
    rate: float = 0.0,
    loops: bool = False,
    num_groups: int = 1,
    mean: bool = False,
    edit: Any = lambda arrays: None,
) -> None:
    kind, rng = KINDS[name], np.random.default_rng(2)
    arrays = kind.draw(edges.num_nodes, heads, features, mean)
    edit(arrays)
    rounded = [jnp.asarray(array, dtype) for array in arrays]
    exact = [np.asarray(array).astype(np.float64) for array in rounded]
    groups = group_edges(edges, rng.integers(0, num_groups, len(edges.senders)))
    missing = jnp.asarray(without_loop(edges)) if loops else None
    options: Any = {"name": name, "heads": heads, "rate": rate, "num_groups": num_groups}
    y, gradients = compute(groups, rounded, missing, **options)
    full = edges.with_missing_self_loops() if loops else edges
    exact_y, exact_gradients = expected(kind, full, exact, heads, rate)
    # 16-bit results are rounded once; sums accumulate in 32 bits.
    terms = 1 if dtype == jnp.bfloat16 else 30 * heads * features
    same = partial(assert_close, dtype=dtype, reduction_length=terms)
    same(with_one(y), with_one(exact_y), name="y")
    for index, (found, exact) in enumerate(zip(gradients, exact_gradients, strict=True)):
        same(with_one(found), with_one(exact), name=f"gradient {index}")


ALL: Any = {"rate": 0.3, "loops": True, "num_groups": 3}


@every_kind
@pytest.mark.parametrize("options", [{}, ALL, ALL | {"mean": True}], ids=["plain", "all", "mean"])
@pytest.mark.parametrize(("heads", "features"), SIZES)
def test_values_and_gradients_with_a_hub(name, heads, features, options):
    check(name, hub_edges(), heads, features, **options)


@every_kind
@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float64])
@pytest.mark.parametrize(
    ("heads", "features", "mean"), [(4, 16, False), (3, 7, False), (4, 40, True)]
)
def test_types(name, dtype, heads, features, mean):
    with jax.enable_x64(dtype == np.float64):
        check(name, hub_edges(4000), heads, features, dtype=dtype, rate=0.2, loops=True, mean=mean)


@pytest.mark.expensive
@every_kind
def test_wanted_gradients_are_the_same_alone(name):
    edges = hub_edges(3000)
    arrays = [jnp.asarray(array, jnp.float32) for array in KINDS[name].draw(edges.num_nodes, 2, 8)]
    given = group_edges(edges), arrays, jnp.asarray(without_loop(edges))
    parts = KINDS[name].parts
    alone = (compute(*given, name=name, heads=2, rate=0.2, wanted=(part,))[1] for part in parts)
    together = compute(*given, name=name, heads=2, rate=0.2)[1]
    jax.tree.map(np.testing.assert_array_equal, [*chain.from_iterable(alone)], together)


def test_logits_of_minus_infinity_have_no_weight():
    def edit(arrays: list[np.ndarray]) -> None:
        arrays[1][::3] = -np.inf
        arrays[2][HUB] = -np.inf

    check("gat", hub_edges(2000), 2, 5, edit=edit)


@every_kind
def test_large_logits_do_not_overflow(name):
    def edit(arrays: list[np.ndarray]) -> None:
        arrays[1] *= 40

    check(name, hub_edges(2000), 2, 4, edit=edit)


def test_more_heads_than_the_kernels_take_are_left_to_xla():
    kind = KINDS["gat"]
    for heads in (MOST_HEADS, MOST_HEADS + 1):
        *arrays, _ = map(jnp.float32, kind.draw(10, heads, 1))
        plain = Stages(kind.message, Softmax(heads=heads), 1)
        assert (attention_stages(plain, kind.inputs(*arrays)) is None) == (heads > MOST_HEADS)
