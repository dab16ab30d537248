"""Convolution modules: their parameters, which they pass to the functions unchanged."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from jaxgraph import layers, nn
from jaxgraph.nn.stack import Stack
from tests.oracles.models import ATTENTION, conv_params
from tests.strategies import NUM_FEATURES
from tests.tolerance import assert_close
from tests.training import crooked_features, crooked_graph

OUT, HEADS = 3, 2
WRONG_SIZE: Any = 3.0
KEY = jax.random.key(9)
GRAPH = crooked_graph(edges=True)
MODULES: dict[str, tuple[Any, dict[str, Any]]] = {
    "linear": (nn.Linear, {}),
    "gcn": (nn.GCNConv, {"add_self_loops": False}),
    "sage": (nn.SAGEConv, {"reduce": "max"}),
    "gat": (nn.GATConv, {"concat": False, "negative_slope": 0.7}),
    "gatv2": (nn.GATv2Conv, {"add_self_loops": False, "negative_slope": 0.7}),
    "transformer": (nn.TransformerConv, {"concat": False}),
    "gin": (nn.GINConv, {}),
    "gine": (nn.GINEConv, {"edge_features": 2}),
    "pna": (nn.PNAConv, {"delta": 1.3, "scalers": ("identity",)}),
}
"""The module of each kind, and options of both module and function, other than the defaults."""
FUNCTIONS = [name for name in MODULES if name != "linear"]


def make(name: str, seed: int = 0, **options: Any) -> Any:
    heads = {"num_heads": HEADS} if name in ATTENTION else {}
    chosen = MODULES[name][1] | heads | options
    return MODULES[name][0](NUM_FEATURES, OUT, rngs=nnx.Rngs(seed), **chosen)


def parameters(module: nnx.Module) -> dict[str, Any]:
    return {
        name: np.asarray(variable.get_value())
        for name, variable in vars(module).items()
        if isinstance(variable, nnx.Variable)
    }


@pytest.mark.parametrize("name", MODULES)
def test_initial_parameters(name: str) -> None:
    """Of the shapes that the reference has, drawn by the seed; biases and vectors start at 0."""
    options = MODULES[name][1]
    sizes = {"heads": HEADS if name in ATTENTION else 1, "concat": options.get("concat", True)}
    sizes |= {"edge_features": options.get("edge_features", 0), "blocks": 4}
    sizes["hidden"] = NUM_FEATURES if name == "pna" else None
    expected = conv_params(np.random.default_rng(0), name, NUM_FEATURES, OUT, **sizes)
    first, same, other = (parameters(make(name, seed)) for seed in (0, 0, 1))
    shapes = {key: value.shape for key, value in expected.items()}
    assert {key: value.shape for key, value in first.items()} == shapes
    jax.tree.map(np.testing.assert_array_equal, same, first)
    for key, value in first.items():
        if value.ndim == 2:
            limit = np.sqrt(1 / value.shape[0] if name == "sage" else 6 / sum(value.shape))
            assert 0.4 * limit < np.abs(value).max() <= limit, key
            assert (other[key] != value).any()
        else:
            assert not value.any(), key
    values = parameters(make(name, use_bias=False))
    assert values.keys() == {key for key in shapes if not key.endswith("bias")}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_module_is_its_function(name: str) -> None:
    conv, options = make(name), {k: v for k, v in MODULES[name][1].items() if "features" not in k}
    if name == "transformer":
        options["num_heads"] = HEADS
    has_edges = name == "gine"
    graph = GRAPH if has_edges else GRAPH.replace(edges=None)
    expected = getattr(layers, f"{name}_conv")(parameters(conv), graph, GRAPH.nodes, **options)
    np.testing.assert_array_equal(conv(graph, GRAPH.nodes), expected)
    assert np.abs(expected).max() > 0


def test_attention_drops_in_training_only() -> None:
    conv, graph, x = make("gat", dropout=0.5, concat=True), GRAPH.replace(edges=None), GRAPH.nodes
    kept = conv(graph, x)
    np.testing.assert_array_equal(conv(graph, x, key=KEY), kept)
    dropped: dict[str, Any] = {"dropout": 0.5, "key": KEY, "negative_slope": 0.7}
    given: Any = (parameters(conv), graph, x)
    expected = layers.gat_conv(*given, **dropped)
    np.testing.assert_array_equal(conv(graph, x, key=KEY, train=True), expected)
    assert np.abs(expected - kept).max() > 0.1
    with pytest.raises(ValueError, match="attention dropout needs a random key"):
        conv(graph, x, train=True)


def test_gin_starts_from_the_given_eps() -> None:
    conv = nn.GINConv(4, 3, eps=0.25, hidden_features=7, rngs=nnx.Rngs(0))
    assert float(conv.eps.get_value()) == 0.25
    assert conv.first_kernel.get_value().shape == (4, 7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda **o: nn.GATConv(4, 3, num_heads=0, **o), "num_heads is 0"),
        (lambda **o: nn.GCNConv(4, -1, **o), "out_features is -1"),
        (lambda **o: nn.GINConv(4, 3, hidden_features=0, **o), "hidden_features is 0"),
        (lambda **o: nn.GATv2Conv(4, 3, dropout=1.0, **o), "expected a probability"),
        (lambda **o: nn.SAGEConv(4, 3, reduce="median", **o), "'median'.*sum, mean, max, min"),
        (lambda **o: nn.Linear(0, 3, **o), "expected a positive integer"),
        (lambda **o: nn.Linear(WRONG_SIZE, 3, **o), "expected a positive integer"),
        (lambda **o: nn.Linear(True, 3, **o), "expected a positive integer"),
        (lambda **o: nn.GCN2Conv(4, layer=0, **o), "layer is 0"),
        (lambda **o: nn.GCN2Conv(4, layer=1, theta=0, **o), "theta is 0"),
        (lambda **o: nn.GCNII(4, 4, 2, alpha=2, **o), "alpha is 2"),
        (lambda **o: nn.APPNP(4, 4, 2, alpha=-1, **o), "alpha is -1"),
        (lambda **o: nn.SGC(4, 2, steps=0, **o), "steps is 0"),
        (lambda **o: nn.NodeEmbedding(0, 4, **o), "num_nodes is 0"),
        (lambda **_: nn.BatchNorm(0), "features is 0"),
        (lambda **_: nn.LayerNorm(0), "features is 0"),
    ],
)
def test_bad_options_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(rngs=nnx.Rngs(0))


def test_momentum_is_the_weight_of_the_past() -> None:
    norm = nn.BatchNorm(NUM_FEATURES, momentum=0.25)
    norm(GRAPH, GRAPH.nodes, True)
    expected = 0.75 * crooked_features().mean(0)
    assert_close(norm.mean.get_value(), expected, reduction_length=120)


def test_a_first_convolution_without_an_output_before_it_is_refused() -> None:
    options: dict[str, Any] = {"dropout": 0.0, "norm": None, "activation": jax.nn.relu}
    rngs = nnx.Rngs(0)
    with pytest.raises(ValueError, match="put another one before it, such as"):
        Stack([nn.GCN2Conv(4, layer=1, rngs=rngs)], [4, 4], rngs=rngs, **options)
    with pytest.raises(ValueError, match=r"layers have \[4, 3\] features; expected the same"):
        maps = [nn.Linear(5, 4, rngs=rngs), nn.Linear(4, 3, rngs=rngs), nn.Linear(3, 2, rngs=rngs)]
        Stack(maps, [5, 4, 3, 2], jumping="max", rngs=rngs, **options)


def test_initial_rows_that_do_not_fit_are_refused() -> None:
    graph, conv = crooked_graph(), nn.GCN2Conv(NUM_FEATURES, layer=1, rngs=nnx.Rngs(0))
    x: Any = np.asarray(graph.nodes)
    with pytest.raises(ValueError, match="GCN2Conv needs the first layer's output"):
        conv(graph, x)
    with pytest.raises(ValueError, match=r"initial has shape \(120, 2\); expected .* \[120, 5\]"):
        conv(graph, x, initial=x[:, :2])
