"""GAT and GATv2 as functions, against the float64 references."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.layers import gat_conv, gatv2_conv
from jaxgraph.layers.derived import DerivedFeatures
from jaxgraph.parallel import gather_rows, make_mesh, shard, spmd
from jaxgraph.partition import Partition
from tests.layers.convolution_cases import (
    SPECIAL_GRAPHS,
    TERMS,
    check_convolution,
    columns_match_rows,
    draws,
    refused,
)
from tests.oracles import convolutions, randomness
from tests.oracles.edges import Edges
from tests.strategies import NUM_FEATURES, skewed_assignment
from tests.tolerance import assert_close
from tests.training import crooked_sharded, oracle_edges

normal = draws(8)

HEADS, OUT = 2, 3
WIDTH = HEADS * OUT
KEY = jax.random.key(21)


def gat_params(concat: bool = True) -> dict[str, Any]:
    return {
        "kernel": normal(NUM_FEATURES, WIDTH),
        "attention_sender": normal(HEADS, OUT),
        "attention_receiver": normal(HEADS, OUT),
        "bias": normal(WIDTH if concat else OUT),
    }


def gatv2_params(concat: bool = True) -> dict[str, Any]:
    return {
        "sender_kernel": normal(NUM_FEATURES, WIDTH),
        "receiver_kernel": normal(NUM_FEATURES, WIDTH),
        "sender_bias": normal(WIDTH),
        "receiver_bias": normal(WIDTH),
        "attention": normal(HEADS, OUT),
        "bias": normal(WIDTH if concat else OUT),
    }


def dropped(oracle: Callable[..., Any], rate: float) -> Callable[..., Any]:
    """A reference with the library's draws of attention dropout from `KEY`."""

    def run(params: Any, edges: Edges, x: np.ndarray) -> Any:
        words = tuple(np.asarray(jax.random.key_data(KEY)).tolist())
        used = edges.with_missing_self_loops()
        ends = used.receivers, used.senders, used.repetitions()
        keep = randomness.edge_keep_mask(words, *ends, HEADS, rate)
        return oracle(params, edges, x, attention_keep=keep, attention_rate=rate)

    return run


LAYERS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "gat": (gat_conv, convolutions.gat, gat_params),
    "gatv2": (gatv2_conv, convolutions.gatv2, gatv2_params),
}


@pytest.mark.expensive
@pytest.mark.parametrize("name", LAYERS)
def test_mean_of_heads_without_added_loops(name: str) -> None:
    conv, oracle, params = LAYERS[name]
    options = {"concat": False, "add_self_loops": False}
    check_convolution(partial(conv, **options), partial(oracle, **options), params(False))


@pytest.mark.expensive
@pytest.mark.parametrize("name", LAYERS)
def test_joined_heads_with_attention_dropout(name: str) -> None:
    conv, oracle, params = LAYERS[name]
    check_convolution(partial(conv, dropout=0.4, key=KEY), dropped(oracle, 0.4), params())


@pytest.mark.expensive
@pytest.mark.parametrize("keeps_products", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_features_that_are_made_again(name: str, keeps_products: bool) -> None:
    """The layer's own references, on features made of parts, and on plain features."""
    conv, oracle, params = LAYERS[name]

    def halves(shard: Any, x: jax.Array, rest: tuple[jax.Array]) -> jax.Array:
        return 2 * x + rest[0]

    def derived(params: Any, shard: Any, x: jax.Array) -> jax.Array:
        made = DerivedFeatures(shard, (0.25 * x, (0.5 * x,)), halves, keeps_products)
        return conv(params, shard, made, dropout=0.4, key=KEY)

    check_convolution(derived, dropped(oracle, 0.4), params(), num_parts=1)


@pytest.mark.expensive
@pytest.mark.parametrize("name", LAYERS)
def test_features_that_are_read_again(name: str) -> None:
    """Without a gradient of x, the gradients of the parameters are unchanged."""
    conv, _, params = LAYERS[name]

    def gradients(is_derived: bool, shard: Any) -> Any:
        x = DerivedFeatures(shard, (), lambda shard: shard.nodes, False)

        def loss(params: Any) -> jax.Array:
            y = conv(params, shard, x if is_derived else shard.nodes)
            return shard.sum(jnp.sum(jnp.sin(y)))

        return jax.grad(loss)(given)

    given, sharded = params(), crooked_sharded(1, "hash", "sar")
    mine, theirs = (spmd(partial(gradients, each))(sharded) for each in (True, False))
    for name, expected in theirs.items():
        assert_close(mine[name], expected, reduction_length=TERMS, name=name)


@pytest.mark.expensive
@pytest.mark.parametrize("graph", SPECIAL_GRAPHS, ids=lambda graph: graph.name)
def test_special_graphs(graph: Any) -> None:
    """A node without neighbours has the bias as output; one part is empty, one has half."""
    params = gat_params()

    def step(shard: Any) -> list[jax.Array]:
        return [gat_conv(params, shard, shard.nodes, add_self_loops=add) for add in (True, False)]

    parts = Partition(skewed_assignment(graph.num_nodes, 3), 3, "skewed")
    sharded = shard(graph, parts, make_mesh(3))
    edges, x = oracle_edges(graph), graph.nodes.astype(np.float64)
    for add, actual in zip((True, False), spmd(step, outputs="rows")(sharded), strict=True):
        expected, _ = convolutions.gat(params, edges, x, add_self_loops=add)
        assert_close(gather_rows(actual, sharded), expected, reduction_length=300)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_columns_give_what_rows_give(name: str) -> None:
    conv, _, params = LAYERS[name]
    columns_match_rows(conv, params())


def test_dropout_without_a_key_is_refused() -> None:
    message = "attention dropout needs a random key"
    refused(ValueError, message, lambda s: gat_conv(gat_params(), s, s.nodes, dropout=0.5))


@pytest.mark.parametrize("name", LAYERS)
def test_derived_features_of_another_width_are_refused(name: str) -> None:
    conv, _, params = LAYERS[name]

    def step(shard: Any) -> jax.Array:
        x = DerivedFeatures(shard, (), lambda shard: shard.nodes[:, 1:], False)
        return conv(params(), shard, x)

    with pytest.raises(ValueError, match=f"x has {NUM_FEATURES - 1} features, but the kernel"):
        spmd(step, outputs="rows")(crooked_sharded(1, "hash", "sar"))


def test_derived_features_with_all_halos_are_refused() -> None:
    def step(shard: Any) -> jax.Array:
        x = DerivedFeatures(shard, (shard.nodes,), lambda shard, x: x, False)
        return gat_conv(gat_params(), shard, x)

    with pytest.raises(ValueError, match="pass it the features"):
        spmd(step, outputs="rows")(crooked_sharded(2, "hash", "domain"))
