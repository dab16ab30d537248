"""Reducers: any order of folding and merging gives the same outputs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.choice import choose_stages
from jaxgraph.ops.core.edges import with_implementation
from jaxgraph.ops.core.input_classes import ClassExtremum
from jaxgraph.ops.core.message_functions import GatMessage
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.randomness import seed_words
from jaxgraph.ops.core.reducers import Extremum, HeadMean, Mean, Softmax, Sum
from jaxgraph.ops.core.running import merge_at
from tests.ops.blocks import place_block, shared_shapes
from tests.strategies import SMALL_GRAPHS, complete
from tests.tolerance import assert_close

EDGES, HEADS, FEATURES = 13, 2, 3
REDUCERS = {
    "sum": Sum(),
    "mean": Mean(),
    "max": Extremum(1.0),
    "min": Extremum(-1.0),
    "softmax": Softmax(heads=HEADS),
    "softmax-dropout": Softmax(seed_words(jax.random.key(3)), 0.4, HEADS),
    "softmax-mean": HeadMean(seed_words(jax.random.key(3)), 0.4, HEADS),
}


def draw_messages(name: str) -> Any:
    rng = np.random.default_rng(0)
    values = jnp.asarray(rng.standard_normal((EDGES, HEADS, FEATURES)))
    if "softmax" not in name:
        return {"a": values, "b": jnp.round(values[:, 0])}
    logits = 3 * rng.standard_normal((EDGES, HEADS))
    logits[::4] = -np.inf
    return jnp.asarray(logits), values


def keep_of(reducer: Any, count: int = EDGES) -> Any:
    ids = jnp.arange(count, dtype=jnp.int32)
    return reducer.per_edge(ids, ids + 1, jnp.zeros_like(ids))


def merged_at_once(reducer: Any, messages: Any, mask: Any, keep: Any) -> Any:
    lifted = reducer.lift(messages, mask, keep)
    edges = range(len(mask))
    return reducer.merge(*(jax.tree.map(lambda leaf, e=e: leaf[e : e + 1], lifted) for e in edges))


def merged_one_by_one(reducer: Any, messages: Any, order: np.ndarray) -> Any:
    keep = keep_of(reducer)
    lifted = reducer.lift(messages, jnp.ones(len(order), bool), keep)
    state = reducer.empty(messages, 1)
    for edge in order:
        state = reducer.merge(state, jax.tree.map(lambda leaf, e=edge: leaf[e : e + 1], lifted))
    return state


def assert_same_state(reducer: Any, messages: Any, left: Any, right: Any) -> None:
    for a, b in zip(
        jax.tree.leaves(reducer.finish(left, messages)[0]),
        jax.tree.leaves(reducer.finish(right, messages)[0]),
        strict=True,
    ):
        assert_close(a, b, dtype=np.float64, reduction_length=EDGES)


@pytest.mark.expensive
@pytest.mark.parametrize("name", REDUCERS)
def test_order_and_grouping_do_not_matter(name: str) -> None:
    with jax.enable_x64(True):
        reducer, messages = REDUCERS[name], draw_messages(name)
        keep, everything = keep_of(reducer), jnp.ones(EDGES, bool)
        at_once = merged_at_once(reducer, messages, everything, keep)
        forward = merged_one_by_one(reducer, messages, np.arange(EDGES))
        shuffled = merged_one_by_one(reducer, messages, np.random.default_rng(1).permutation(EDGES))
        first = merged_at_once(reducer, messages, jnp.arange(EDGES) < 5, keep)
        second = merged_at_once(reducer, messages, jnp.arange(EDGES) >= 5, keep)
        halves = reducer.merge(first, second), reducer.merge(second, first)
        for state in (forward, shuffled, *halves):
            assert_same_state(reducer, messages, state, at_once)


@pytest.mark.parametrize("name", REDUCERS)
def test_an_empty_state_changes_nothing_and_finishes_as_zero(name: str) -> None:
    with jax.enable_x64(True):
        reducer, messages = REDUCERS[name], draw_messages(name)
        state = merged_at_once(reducer, messages, jnp.ones(EDGES, bool), keep_of(reducer))
        empty = reducer.empty(messages, 1)
        masked = merged_at_once(reducer, messages, jnp.zeros(EDGES, bool), keep_of(reducer))
        for nothing in (empty, masked):
            assert_same_state(reducer, messages, reducer.merge(state, nothing), state)
            assert_same_state(reducer, messages, reducer.merge(nothing, state), state)
            for leaf in jax.tree.leaves(reducer.finish(nothing, messages)[0]):
                np.testing.assert_array_equal(leaf, 0)


@pytest.mark.parametrize("name", REDUCERS)
def test_masked_messages_are_not_read(name: str) -> None:
    with jax.enable_x64(True):
        reducer, messages = REDUCERS[name], draw_messages(name)
        mask = jnp.arange(EDGES) % 3 > 0
        poisoned = jax.tree.map(lambda leaf: leaf.at[~mask].set(jnp.nan), messages)
        keep = keep_of(reducer)
        clean, dirty = (reducer.lift(each, mask, keep) for each in (messages, poisoned))
        jax.tree.map(np.testing.assert_array_equal, clean, dirty)


@pytest.mark.expensive
@pytest.mark.parametrize("name", ["softmax", "softmax-dropout", "softmax-mean"])
def test_adjoints_that_are_divided_later_give_the_same_gradients(name: str) -> None:
    """A mean over heads with one row for all heads, which XLA would repeat per edge."""
    with jax.enable_x64(True):
        reducer, messages = REDUCERS[name], draw_messages(name)
        everything, keep = jnp.ones(EDGES, bool), keep_of(reducer)
        state = merged_at_once(reducer, messages, everything, keep)
        outputs, kept = reducer.finish(state, messages)
        gradients = []
        for adjoint_of in (reducer.adjoint, reducer.undivided_adjoint):
            adjoint = adjoint_of(outputs, kept, jnp.sin(1 + outputs))
            heads = 1 if name == "softmax-mean" and gradients else HEADS
            assert adjoint[0].shape == (1, heads, FEATURES)
            per_edge = jax.tree.map(lambda leaf: jnp.repeat(leaf, EDGES, 0), adjoint)
            gradients.append(reducer.cotangent(messages, per_edge, keep))
        for divided, undivided in zip(*gradients, strict=True):
            assert_close(undivided, divided, dtype=np.float64, reduction_length=EDGES)


def test_softmax_of_nothing_but_minus_infinity_is_zero() -> None:
    reducer = Softmax(heads=HEADS)
    messages = jnp.full((EDGES, HEADS), -jnp.inf), jnp.ones((EDGES, HEADS, FEATURES))
    everything = jnp.ones(EDGES, bool)
    one_by_one = merged_one_by_one(reducer, messages, np.arange(EDGES))
    for state in (merged_at_once(reducer, messages, everything, None), one_by_one):
        outputs, kept = reducer.finish(state, messages)
        np.testing.assert_array_equal(outputs, np.zeros((1, HEADS, FEATURES)))
        adjoint = reducer.adjoint(outputs, kept, jnp.ones_like(outputs))
        per_edge = jax.tree.map(lambda leaf: jnp.repeat(leaf, EDGES, 0), adjoint)
        for gradient in reducer.cotangent(messages, per_edge, None):
            np.testing.assert_array_equal(gradient, np.zeros(gradient.shape))


@pytest.mark.expensive
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64])
@pytest.mark.parametrize("name", REDUCERS)
def test_states_are_of_thirty_two_bits_and_outputs_of_the_messages_type(
    name: str, dtype: Any
) -> None:
    with jax.enable_x64(True):
        reducer = REDUCERS[name]
        messages = jax.tree.map(lambda leaf: leaf.astype(dtype), draw_messages(name))
        state = merged_at_once(reducer, messages, jnp.ones(EDGES, bool), keep_of(reducer))
        wide = jnp.float64 if dtype == jnp.float64 else jnp.float32
        lifted = reducer.lift(messages, jnp.ones(EDGES, bool), keep_of(reducer))
        for leaf in jax.tree.leaves((state, lifted, reducer.empty(messages, 2))):
            assert leaf.dtype == wide
        outputs, kept = reducer.finish(state, messages)
        assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(outputs))
        rows = reducer.adjoint(outputs, kept, outputs)
        gradient = reducer.cotangent(messages, rows, keep_of(reducer))
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradient))


def test_sums_are_rounded_to_the_type_that_is_asked_for() -> None:
    messages = {"a": jnp.full((EDGES, 2), 1 / 3), "b": jnp.ones(EDGES, jnp.bfloat16)}
    reducer = Sum(jnp.dtype(jnp.bfloat16))
    outputs, kept = reducer.finish(
        merged_at_once(reducer, messages, jnp.ones(EDGES, bool), None), messages
    )
    assert outputs["a"].dtype == outputs["b"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(outputs["a"], jnp.full((1, 2), EDGES / 3, jnp.bfloat16))
    np.testing.assert_array_equal(outputs["b"], jnp.full(1, EDGES, jnp.bfloat16))
    assert reducer.adjoint(outputs, kept, outputs) is outputs


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("number", [3.0, np.nan])
def test_winners_are_counted(sign: float, number: float) -> None:
    values = jnp.asarray([[number], [sign], [number], [-2 * sign], [number]])
    reducer = Extremum(sign)
    values = values if np.isnan(number) else sign * values
    best, winners = merged_one_by_one(reducer, values, np.asarray([3, 1, 0, 4, 2]))
    np.testing.assert_array_equal(best, values[:1])
    np.testing.assert_array_equal(winners, 3)
    outputs, kept = reducer.finish((best, winners), values)
    adjoint = reducer.adjoint(outputs, kept, jnp.full((1, 1), 6.0))
    per_edge = jax.tree.map(lambda leaf: jnp.repeat(leaf, 5, 0), adjoint)
    shares = reducer.cotangent(values, per_edge, None)
    np.testing.assert_array_equal(shares[:, 0], [2, 0, 2, 0, 2])


def test_classes_that_win_do_not_depend_on_the_order() -> None:
    """Also where one class is rounded in two ways, and another one equals one of these."""
    values = jnp.asarray([[1.0], [1.0], [1.0 + 2e-7], [np.nan], [-np.inf], [0.5]])
    classes = [(jnp.asarray([4, 2, 4, 9, 1, 3], "uint32"), jnp.asarray([1] * 6, "uint32"))]
    reducer, rng = ClassExtremum(1.0), np.random.default_rng(0)
    for edges, winner in (([0, 1], 2), ([0, 1, 2, 5], 4), ([4], 1), (range(6), 9), ([], 0)):
        mask = jnp.isin(jnp.arange(6), jnp.asarray(list(edges)))
        lifted = reducer.lift((values, classes), mask, None)
        for order in (rng.permutation(6) for _ in range(4)):
            each = (jax.tree.map(lambda leaf, e=e: leaf[e : e + 1], lifted) for e in order)
            state = reducer.merge(reducer.empty((values, classes), 1), *each)
            outputs, ((high, _),) = reducer.finish(state, (values, classes))
            assert high[0, 0] == winner
            best = np.asarray(values)[list(edges)].max(initial=-np.inf) if edges else 0
            np.testing.assert_array_equal(outputs, [[best]])


@pytest.mark.slow
def test_a_state_resumes_where_another_subset_of_the_edges_ended() -> None:
    """Folding two halves of the edges and merging equals folding all: SAR's use of partitions."""
    graph = SMALL_GRAPHS[-1]
    rng = np.random.default_rng(0)
    values = rng.standard_normal((graph.num_nodes, HEADS, FEATURES)).astype(np.float32)
    left, right = rng.standard_normal((2, graph.num_nodes, HEADS)).astype(np.float32)
    message, reducer = GatMessage(0.2), Softmax(heads=HEADS)

    def outputs(*pieces: Any) -> np.ndarray:
        placed = [
            place_block(
                complete(graph.senders[p], graph.receivers[p], graph.num_nodes, "piece"),
                pad_to=shared_shapes(),
            )
            for p in pieces
        ]
        rows = placed[0].rows
        inputs = Inputs((), (rows(values), rows(left)), rows(right), ())
        # Only kernels know the states of kernels.
        blocks = [with_implementation(each.block, "xla").with_loops(False) for each in placed]
        stages = choose_stages(blocks[0].edges, message, reducer, inputs)
        states = [stages.fold(each, inputs) for each in blocks]
        state = states[0] if len(states) == 1 else reducer.merge(*states)
        shapes = (jnp.zeros((1, HEADS)), jnp.zeros((1, HEADS, FEATURES)))
        return placed[0].nodes(reducer.finish(state, shapes)[0])

    half = graph.num_edges // 2
    whole = outputs(slice(None))
    assert_close(outputs(slice(half), slice(half, None)), whole, reduction_length=20)


def test_compact_rows_are_merged_into_the_first_rows_of_a_state():
    state, compact = np.ones((5, 2), np.float32), np.array([[2, 3], [4, 5]], np.float32)
    (found,) = merge_at(Sum(), [jnp.asarray(state)], [jnp.asarray(compact)], jnp.array([1, -1, 0]))
    expected = state.copy()
    expected[0] += compact[1]
    expected[2] += compact[0]
    np.testing.assert_array_equal(found, expected)
