"""Convolution modules: their parameters, which they pass to the functions unchanged."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from jaxgraph import layers
from jaxgraph.nn import GATConv, GATv2Conv, GCNConv, GINConv, SAGEConv
from jaxgraph.parallel import spmd
from tests.strategies import NUM_FEATURES
from tests.training import crooked_sharded

OUT, HEADS = 3, 2
WIDTH = OUT * HEADS
KEY = jax.random.key(9)

SHAPES: dict[str, tuple[Any, dict[str, tuple[int, ...]]]] = {
    "GCNConv": (
        lambda **options: GCNConv(NUM_FEATURES, OUT, **options),
        {"kernel": (NUM_FEATURES, OUT), "bias": (OUT,)},
    ),
    "SAGEConv": (
        lambda **options: SAGEConv(NUM_FEATURES, OUT, **options),
        {
            "self_kernel": (NUM_FEATURES, OUT),
            "neighbor_kernel": (NUM_FEATURES, OUT),
            "bias": (OUT,),
        },
    ),
    "GATConv": (
        lambda **options: GATConv(NUM_FEATURES, OUT, num_heads=HEADS, **options),
        {
            "kernel": (NUM_FEATURES, WIDTH),
            "attention_sender": (HEADS, OUT),
            "attention_receiver": (HEADS, OUT),
            "bias": (WIDTH,),
        },
    ),
    "GATv2Conv": (
        lambda **options: GATv2Conv(NUM_FEATURES, OUT, num_heads=HEADS, **options),
        {
            "sender_kernel": (NUM_FEATURES, WIDTH),
            "receiver_kernel": (NUM_FEATURES, WIDTH),
            "sender_bias": (WIDTH,),
            "receiver_bias": (WIDTH,),
            "attention": (HEADS, OUT),
            "bias": (WIDTH,),
        },
    ),
    "GINConv": (
        lambda **options: GINConv(NUM_FEATURES, OUT, hidden_features=7, **options),
        {
            "eps": (),
            "first_kernel": (NUM_FEATURES, 7),
            "first_bias": (7,),
            "second_kernel": (7, OUT),
            "second_bias": (OUT,),
        },
    ),
}


def parameters(module: nnx.Module) -> dict[str, Any]:
    return {
        name: np.asarray(variable.get_value())
        for name, variable in vars(module).items()
        if isinstance(variable, nnx.Variable)
    }


@pytest.mark.parametrize("name", SHAPES)
def test_initial_parameters(name: str) -> None:
    make, shapes = SHAPES[name]
    values = parameters(make(rngs=nnx.Rngs(0)))
    assert {key: value.shape for key, value in values.items()} == shapes
    for key, value in values.items():
        if value.ndim == 2:
            is_sage = name.startswith("SAGE")
            limit = np.sqrt(1 / value.shape[0] if is_sage else 6 / sum(value.shape))
            assert 0.5 * limit < np.abs(value).max() <= limit, key
        else:
            assert not value.any(), key


@pytest.mark.parametrize("name", SHAPES)
def test_without_bias(name: str) -> None:
    make, shapes = SHAPES[name]
    values = parameters(make(use_bias=False, rngs=nnx.Rngs(0)))
    assert values.keys() == {key for key in shapes if not key.endswith("bias")}


def outputs_of(module: Any, **options: Any) -> np.ndarray:
    graphdef, state = nnx.split(module)

    def step(state: Any, shard: Any) -> jax.Array:
        return nnx.merge(graphdef, state)(shard, shard.nodes, **options)

    return np.asarray(spmd(step, outputs="rows")(state, crooked_sharded(1, "hash", "sar")))


def outputs_of_function(function: Any, module: Any, **options: Any) -> np.ndarray:
    def step(params: Any, shard: Any) -> jax.Array:
        return function(params, shard, shard.nodes, **options)

    sharded = crooked_sharded(1, "hash", "sar")
    return np.asarray(spmd(step, outputs="rows")(parameters(module), sharded))


@pytest.mark.parametrize(
    ("module", "function", "options"),
    [
        (GCNConv, layers.gcn_conv, {"add_self_loops": False}),
        (SAGEConv, layers.sage_conv, {"reduce": "max"}),
        (GATConv, layers.gat_conv, {"concat": False, "negative_slope": 0.7}),
        (GATv2Conv, layers.gatv2_conv, {"add_self_loops": False, "negative_slope": 0.7}),
        (GINConv, layers.gin_conv, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_module_is_its_function(module: Any, function: Any, options: dict[str, Any]) -> None:
    conv = module(NUM_FEATURES, OUT, rngs=nnx.Rngs(0), **options)
    expected = outputs_of_function(function, conv, **options)
    np.testing.assert_array_equal(outputs_of(conv), expected)
    assert np.abs(expected).max() > 0


def test_attention_drops_in_training_only() -> None:
    conv = GATConv(NUM_FEATURES, OUT, num_heads=HEADS, dropout=0.5, rngs=nnx.Rngs(0))
    kept = outputs_of(conv)
    np.testing.assert_array_equal(outputs_of(conv, key=KEY), kept)
    expected = outputs_of_function(layers.gat_conv, conv, dropout=0.5, key=KEY)
    np.testing.assert_array_equal(outputs_of(conv, key=KEY, train=True), expected)
    assert np.abs(expected - kept).max() > 0.1
    with pytest.raises(ValueError, match="attention dropout needs a random key"):
        outputs_of(conv, train=True)


def test_gin_starts_from_the_given_eps() -> None:
    conv = GINConv(4, 3, eps=0.25, rngs=nnx.Rngs(0))
    assert float(conv.eps.get_value()) == 0.25
    assert conv.first_kernel.get_value().shape == (4, 3)


@pytest.mark.parametrize("name", SHAPES)
def test_seeds_decide_the_parameters(name: str) -> None:
    make, _ = SHAPES[name]
    first, same, other = (parameters(make(rngs=nnx.Rngs(seed))) for seed in (0, 0, 1))
    for key in first:
        np.testing.assert_array_equal(same[key], first[key])
    assert any((other[key] != first[key]).any() for key in first)


def test_bad_options_are_refused() -> None:
    rngs = nnx.Rngs(0)
    with pytest.raises(ValueError, match="num_heads is 0; expected a positive integer"):
        GATConv(4, 3, num_heads=0, rngs=rngs)
    with pytest.raises(ValueError, match="out_features is -1"):
        GCNConv(4, -1, rngs=rngs)
    with pytest.raises(ValueError, match="hidden_features is 0"):
        GINConv(4, 3, hidden_features=0, rngs=rngs)
    with pytest.raises(ValueError, match="expected a probability of dropping"):
        GATv2Conv(4, 3, dropout=1.0, rngs=rngs)
    with pytest.raises(ValueError, match="reduce is 'median'; expected one of sum, mean, max, min"):
        SAGEConv(4, 3, reduce="median", rngs=rngs)
