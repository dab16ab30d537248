"""Reducers: any order of folding and merging gives the same outputs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.input_classes import ClassExtremum
from jaxgraph.ops.core.randomness import seed_words
from jaxgraph.ops.core.reducers import Extremum, HeadMean, Mean, Softmax, Sum
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
