"""Recomputation in the backward: its residuals, its order and its memory."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

from jaxgraph.analysis import traffic
from jaxgraph.layers.recompute import recompute
from jaxgraph.parallel import spmd
from tests.compilation import AS_USERS_DO
from tests.training import crooked_sharded

X = jnp.asarray(np.random.default_rng(2).standard_normal((5, 3)), jnp.float32)
W = jnp.asarray(np.random.default_rng(3).standard_normal((3, 4)), jnp.float32)


@jax.custom_vjp
def not_differentiable(x: jax.Array) -> jax.Array:
    return x


def _refuse(residuals: None, gradient: jax.Array) -> Any:
    raise AssertionError("a gradient that nobody asked for")


not_differentiable.defvjp(lambda x: (x, None), _refuse)


def test_no_gradient_is_computed_that_is_not_asked_for() -> None:
    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return not_differentiable(x) @ w

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(recompute(product, x, w, keep=()))

    np.testing.assert_allclose(jax.grad(loss)(W, X), np.tile(X.sum(0)[:, None], 4), rtol=1e-5)
    with pytest.raises(AssertionError, match="nobody asked for"):
        jax.grad(loss, (0, 1))(W, X)


@pytest.mark.parametrize(("keep", "times"), [(("total",), 1), ((), 2)])
def test_what_is_kept_is_not_reduced_again(keep: tuple[str, ...], times: int) -> None:
    def function(shard: Any, x: jax.Array) -> jax.Array:
        total = checkpoint_name(shard.sum(jnp.sum(jnp.sin(shard.mask_rows(x)), 0)), "total")
        return jnp.tanh(x * jnp.cos(total))

    def step(shard: Any) -> tuple[jax.Array, jax.Array]:
        def loss(x: jax.Array) -> jax.Array:
            return jnp.sum(recompute(function, shard, x, keep=keep))

        value, gradient = jax.value_and_grad(loss)(shard.nodes)
        return value[None], gradient

    sharded: Any = crooked_sharded(4, "hash", "sar")
    # The gradient of `total` is summed over the devices too.
    once = sharded.shards.nodes.shape[-1] * 4 * 2 * 3 / 4
    sent = traffic(spmd(step, outputs="rows").lower(sharded).compile())
    assert sent == {"all-reduce": (times + 1) * once}


def test_memory_is_that_of_one_block_and_the_inputs_of_all() -> None:
    """Six blocks with eight residual arrays each: in the compiled program, not in theory."""

    def block(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(4):
            x = jnp.sin(x) @ w
        return x

    def arrays(function: Any) -> float:
        def loss(x: jax.Array, w: jax.Array) -> jax.Array:
            for _ in range(6):
                x = function(x, w)
            return jnp.sum(x)

        shapes = jax.ShapeDtypeStruct((4096, 16), jnp.float32), jnp.ones((16, 16))
        compiled = (
            jax.jit(jax.grad(loss, (0, 1))).lower(*shapes).compile(compiler_options=AS_USERS_DO)
        )
        memory = compiled.memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes / (4096 * 16 * 4)

    assert arrays(partial(recompute, block, keep=())) < 6 + 8 + 3
    assert arrays(block) > 6 * 4
