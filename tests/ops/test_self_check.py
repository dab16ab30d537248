"""The self-checks: a right implementation passes, and each kind of wrong one fails."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph import ops
from jaxgraph.ops.self_check import CASES, NUM_EDGES, NUM_NODES, check, example


def test_the_example_has_a_hub_isolated_nodes_and_repeated_edges() -> None:
    graph = example()
    assert len(graph.senders) == NUM_EDGES == 100
    degrees = np.bincount(graph.receivers, minlength=NUM_NODES)
    assert degrees.max() >= 25 and degrees.min() == 0
    repetition = graph.block.edges.repetition
    assert repetition is not None
    pairs = np.stack([graph.senders, graph.receivers, repetition[:NUM_EDGES]])
    assert len(np.unique(pairs[:2], axis=1).T) < len(np.unique(pairs, axis=1).T) == NUM_EDGES


@jax.custom_vjp
def _double_gradient(x: jax.Array) -> jax.Array:
    return x


_double_gradient.defvjp(lambda x: (x, None), lambda _, g: (2 * g,))


def wrong_value(result: jax.Array) -> jax.Array:
    return result.at[1].add(1e-3)


def not_a_number(result: jax.Array) -> jax.Array:
    return result.at[1].set(jnp.nan)


@pytest.mark.expensive
@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("spoil", [wrong_value, not_a_number, _double_gradient])
def test_a_wrong_implementation_fails(op: str, spoil: Any) -> None:
    right = getattr(ops, op)
    report = check(op, lambda *arguments, **options: spoil(right(*arguments, **options)))
    assert report.startswith("failed")


def test_a_result_of_another_shape_fails() -> None:
    report = check(
        "aggregate", lambda *arguments, **options: ops.aggregate(*arguments, **options)[:, :1]
    )
    assert report.startswith("failed: shape")
