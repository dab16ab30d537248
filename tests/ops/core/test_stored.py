"""Arrays that XLA's CPU compiler computes once: the same values, derivatives and shapes."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.randomness import node_keep_mask, seed_words
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.core.stored import stored, stored_branch
from tests.compilation import AS_USERS_DO

KEY = jax.random.key(5)
compiled_as_users_do = partial(jax.jit, compiler_options=AS_USERS_DO)


def computations(function: Any, *arguments: Any) -> list[str]:
    """The computations of a compiled program, as text."""
    text = compiled_as_users_do(function).lower(*arguments).compile().as_text()
    assert text is not None
    return text.split("\n}\n")


@pytest.mark.parametrize(
    "dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32, jnp.uint32, jnp.uint8, jnp.bool_]
)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 0), (2, 3, 4)])
def test_an_array_stays_what_it_is(dtype: Any, shape: tuple[int, ...]) -> None:
    x = jnp.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    for found in (stored(x), jax.jit(stored)(x)):
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(found, x)
    if shape:
        np.testing.assert_array_equal(jax.vmap(stored)(x), x)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_ends_the_loop_as_well(value: float) -> None:
    np.testing.assert_array_equal(jax.jit(stored)(jnp.full(3, value)), np.full(3, value))


@pytest.mark.slow
def test_it_is_the_identity_to_derivatives() -> None:
    x = jnp.linspace(-1.0, 1.0, 5)

    def total(x: jax.Array) -> jax.Array:
        keep = stored(x > 0)
        return jnp.sum(jnp.where(keep, stored(x) ** 3, 0))

    np.testing.assert_allclose(jax.grad(total)(x), jnp.where(x > 0, 3 * x**2, 0), rtol=1e-6)
    np.testing.assert_allclose(
        jax.hessian(total)(x), jnp.diag(jnp.where(x > 0, 6 * x, 0)), rtol=1e-6
    )


@pytest.mark.expensive
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32, jnp.bool_])
def test_its_users_do_not_make_it_again(dtype: Any) -> None:
    def made(keep: Any, x: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = keep(lambda: (jnp.floor(x) * 3).astype(dtype), number)
        return jnp.where(y > 0, x, 0), jnp.sum(y, axis=1)

    def in_a_branch(make: Any, number: jax.Array) -> jax.Array:
        return stored_branch(number, make, lambda: jnp.zeros((64, 64), dtype))

    def times(keep: Any) -> int:
        program = computations(partial(made, keep), jnp.ones((64, 64)), jnp.int32(0))
        return "".join(program).count(" floor(")

    assert times(lambda make, _: stored(make())) == 1
    assert times(in_a_branch) == 1
    assert times(lambda make, _: make()) > 1


def test_a_row_of_nodes_is_hashed_once_for_all_its_columns() -> None:
    rows, columns = 512, 64

    def dropped(key: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.where(node_keep_mask(key, jnp.arange(rows), columns, 0.5), x, 0)

    program = computations(dropped, KEY, jnp.ones((rows, columns)))
    at_columns = [part for part in program if f"u32[{rows},{columns}]{{1,0}} multiply(" in part]
    assert at_columns
    assert not any(re.search(rf"u32\[{rows}\]\S* multiply\(", part) for part in at_columns)


def test_an_edge_is_hashed_once_for_all_features_of_a_head() -> None:
    edges, heads, features = 256, 2, 16
    reducer = Softmax(seed_words(KEY), 0.5, heads)
    ids = jnp.arange(edges)

    def dropped(reducer: Softmax, x: jax.Array) -> jax.Array:
        keep = reducer.per_edge(ids, ids, 0)
        assert keep is not None
        return jnp.where(keep[..., None], x, 0)

    program = computations(dropped, reducer, jnp.ones((edges, heads, features)))
    of_features = [part for part in program if f"f32[{edges},{heads},{features}]" in part]
    assert of_features
    assert not any(" multiply(" in part for part in of_features)
