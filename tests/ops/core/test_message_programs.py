"""Properties of messages that are derived from their traced programs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.input_classes import ClassExtremum, extremum_of
from jaxgraph.ops.core.message_programs import rounds_alike
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Extremum

ROWS = jnp.ones((4, 6))


@pytest.mark.parametrize(
    ("message", "alike"),
    [
        (lambda a, b: a, True),
        (lambda a, b: (a[:, ::-1], jax.nn.relu(-a), jnp.where(a > b, a, b)), True),
        (lambda a, b: jax.nn.relu(a - b), True),
        (lambda a, b: jnp.concatenate([a * b, a], 1)[:, jnp.asarray([1, 7])], True),
        (lambda a, b: a.astype(jnp.bfloat16).astype(jnp.float32), False),
        (lambda a, b: a.astype(jnp.bfloat16) + b.astype(jnp.bfloat16), False),
        (lambda a, b: 0.7 * a + b, False),
        (lambda a, b: jnp.sum(a, 1), False),
        (lambda a, b: jnp.tanh(a), False),
        (lambda a, b: jax.jit(lambda c: c + b)(a * b), False),
        (lambda a, b: jax.lax.fori_loop(0, 3, lambda _, c: c * b, a), False),
        (lambda a, b: jnp.floor(a * b + a).astype(jnp.int32), False),
        (lambda a, b: (a > 0).astype(jnp.int32) * 7 + 1, True),
    ],
)
def test_messages_that_are_rounded_in_one_way(message: Any, alike: bool) -> None:
    assert rounds_alike(jax.make_jaxpr(message)(ROWS, ROWS).jaxpr) is alike


@pytest.mark.expensive
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8", "bool"])
def test_classes_are_those_of_equal_bits(dtype: str) -> None:
    """Every array of a message has the classes of its inputs."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        sender = (rng.integers(0, 2, (500, 1, 2)), rng.integers(-1, 1, (500, 1)))
        edge = rng.integers(0, 2, 500).astype(np.int32)

        def message(params: Any, sender: Any, receiver: Any, edge: Any) -> Any:
            total = (sender[0] * 1.0).sum((1, 2))
            return total, total + edge, sender[1][:, 0] * 1.5 + total

        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf.astype(dtype)), sender)
        inputs = Inputs((), rows, (), jnp.asarray(edge))
        classed, _, seen = extremum_of(message, inputs, 4, Extremum())
        _, classes = classed((), seen.sender, (), seen.edge)
        first, second = (leaf.reshape(500, -1) for leaf in rows)
        read = ([first], [first, edge[:, None]], [first, second])
        for words, columns in zip(classes, read, strict=True):
            bits = np.concatenate([np.asarray(each, np.float64) for each in columns], 1)
            of_bits = np.unique(bits, axis=0, return_inverse=True)[1].reshape(-1)
            of_words = np.unique(np.stack(words, 1), axis=0, return_inverse=True)[1].reshape(-1)
            pairs = np.unique(np.stack([of_bits, of_words]), axis=1)
            assert pairs.shape[1] == of_bits.max() + 1 == of_words.max() + 1


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
