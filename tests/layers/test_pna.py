"""PNA: gradients where nothing varies, columns of features, and what is refused."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgraph import Graph, nn, transforms
from jaxgraph.layers import pna_conv
from tests.layers.convolution_cases import columns_match_rows, draws, refused
from tests.oracles import convolutions
from tests.oracles.edges import Edges
from tests.strategies import NUM_FEATURES
from tests.tolerance import assert_close

normal = draws(8)

PARAMS: dict[str, Any] = {
    "sender_kernel": normal(NUM_FEATURES, 2),
    "receiver_kernel": normal(NUM_FEATURES, 2),
    "self_kernel": normal(NUM_FEATURES, 3),
    "kernel": normal(24, 3),
}


def test_gradients_where_all_messages_are_equal() -> None:
    """Of one edge, of equal ones and of none: finite, and those of the reference."""
    senders, receivers = np.array([0, 0, 0, 2]), np.array([1, 1, 2, 3])
    graph = Graph(senders=senders, receivers=receivers, num_nodes=20)
    x = normal(20, NUM_FEATURES)
    y, backward = convolutions.pna(PARAMS, Edges.of(senders, receivers, 20), x, delta=0.7)
    of_x, of_params = backward(np.ones(y.shape))

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.sum(pna_conv(params, graph, x, delta=0.7))

    params, found = jax.grad(loss, (0, 1))(PARAMS, jnp.asarray(x))
    assert_close(found, of_x, reduction_length=10_000)
    for name, gradient in of_params.items():
        assert_close(params[name], gradient, reduction_length=10_000, name=name)


@pytest.mark.slow
def test_columns_give_what_rows_give() -> None:
    options: dict[str, Any] = {"delta": 1.3, "aggregators": ("mean", "max", "min")}
    params = PARAMS | {"kernel": PARAMS["kernel"][:18]}
    columns_match_rows(partial(pna_conv, **options), params)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggregators": ("median",)}, r"aggregators is \('median',\); expected some of sum, mean"),
        ({"aggregators": ("mean", "mean")}, "each once"),
        ({"scalers": ()}, r"scalers is \(\); expected some of identity"),
        ({"delta": 0.0}, "delta is 0.0; expected a number greater than 0, such as"),
        ({"aggregators": ("mean",)}, r"kernel has shape \(24, 3\); expected 6 rows"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"delta": 1.0} | options
    refused(ValueError, message, lambda shard: pna_conv(PARAMS, shard, shard.nodes, **given))


def test_the_mean_of_the_degrees_logarithms() -> None:
    graph = Graph(senders=np.array([0, 1, 2]), receivers=np.array([1, 1, 0]), num_nodes=4)
    delta = transforms.mean_log_degree(graph)
    np.testing.assert_allclose(delta, (np.log(2) + np.log(3)) / 4, rtol=1e-12)
    assert nn.PNAConv(3, 2, delta=delta, rngs=nnx.Rngs(0)).delta == delta
    none = np.zeros(0, np.int32)
    with pytest.raises(ValueError, match="graph has no edge"):
        transforms.mean_log_degree(Graph(senders=none, receivers=none, num_nodes=2))
