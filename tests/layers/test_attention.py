"""GAT and GATv2 on features that are made of parts, or read again, in the backward."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxgraph.layers.derived import DerivedFeatures
from jaxgraph.parallel import spmd
from tests.layers.convolution_cases import TERMS, check_layers, refused
from tests.layers.neighborhood_cases import CASES, Case, of
from tests.strategies import NUM_FEATURES
from tests.tolerance import assert_close
from tests.training import crooked_sharded

NAMES = ("gat", "gatv2")


@pytest.mark.expensive
@pytest.mark.parametrize("keeps_products", [False, True])
def test_features_that_are_made_again(keeps_products: bool) -> None:
    """The layer's own references, on features made of parts."""

    def halves(shard: Any, x: jax.Array, rest: tuple[jax.Array]) -> jax.Array:
        return 2 * x + rest[0]

    def derived(case: Case, params: Any, shard: Any, x: jax.Array) -> jax.Array:
        made = DerivedFeatures(shard, (0.25 * x, (0.5 * x,)), halves, keeps_products)
        return case.conv(params, shard, made)

    cases = {name: of(name, dropout=True) for name in NAMES}
    check_layers(
        {n: Case(partial(derived, case), case.oracle, case.params) for n, case in cases.items()},
        num_parts=1,
    )


@pytest.mark.expensive
@pytest.mark.parametrize("name", NAMES)
def test_features_that_are_read_again(name: str) -> None:
    """Without a gradient of x, the gradients of the parameters are unchanged."""
    case, sharded = CASES[name], crooked_sharded(1, "hash", "sar")

    def gradients(is_derived: bool, shard: Any) -> Any:
        x = DerivedFeatures(shard, (), lambda shard: shard.nodes, False)

        def loss(params: Any) -> jax.Array:
            y = case.conv(params, shard, x if is_derived else shard.nodes)
            return shard.sum(jnp.sum(jnp.sin(y)))

        return jax.grad(loss)(case.params)

    mine, theirs = (spmd(partial(gradients, each))(sharded) for each in (True, False))
    for name, expected in theirs.items():
        assert_close(mine[name], expected, reduction_length=TERMS, name=name)


@pytest.mark.parametrize("name", NAMES)
def test_derived_features_of_another_width_are_refused(name: str) -> None:
    case, sharded = CASES[name], crooked_sharded(1, "hash", "sar")

    def step(shard: Any) -> jax.Array:
        x = DerivedFeatures(shard, (), lambda shard: shard.nodes[:, 1:], False)
        return case.conv(case.params, shard, x)

    refused(ValueError, f"x has {NUM_FEATURES - 1} features, but the kernel", step, sharded)


def test_derived_features_with_all_halos_are_refused() -> None:
    case, sharded = CASES["gat"], crooked_sharded(2, "hash", "domain")

    def step(shard: Any) -> jax.Array:
        x = DerivedFeatures(shard, (shard.nodes,), lambda shard, x: x, False)
        return case.conv(case.params, shard, x)

    refused(ValueError, "pass it the features", step, sharded)
