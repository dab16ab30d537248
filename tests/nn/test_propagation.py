"""APPNP and GCNII: the arguments that are refused."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from jaxgraph import nn
from jaxgraph.nn.stack import Stack
from tests.strategies import NUM_FEATURES
from tests.training import crooked_graph


def test_a_first_convolution_without_an_output_before_it_is_refused() -> None:
    options: dict[str, Any] = {"dropout": 0.0, "norm": None, "activation": jax.nn.relu}
    rngs = nnx.Rngs(0)
    with pytest.raises(ValueError, match="put another one before it, such as"):
        Stack([nn.GCN2Conv(4, layer=1, rngs=rngs)], [4, 4], rngs=rngs, **options)
    with pytest.raises(ValueError, match=r"layers have \[4, 3\] features; expected the same"):
        maps = [nn.Linear(5, 4, rngs=rngs), nn.Linear(4, 3, rngs=rngs), nn.Linear(3, 2, rngs=rngs)]
        Stack(maps, [5, 4, 3, 2], jumping="max", rngs=rngs, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda **o: nn.GCN2Conv(4, layer=0, **o), "layer is 0; expected a positive integer"),
        (
            lambda **o: nn.GCN2Conv(4, layer=1, theta=0, **o),
            "theta is 0; expected a number",
        ),
        (lambda **o: nn.GCNII(4, 4, 2, alpha=2, **o), "alpha is 2; expected a number in"),
        (lambda **o: nn.APPNP(4, 4, 2, alpha=-1, **o), "alpha is -1; expected a number in"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(rngs=nnx.Rngs(0))


def test_initial_rows_that_do_not_fit_are_refused() -> None:
    graph, conv = crooked_graph(), nn.GCN2Conv(NUM_FEATURES, layer=1, rngs=nnx.Rngs(0))
    x: Any = np.asarray(graph.nodes)
    with pytest.raises(ValueError, match="GCN2Conv needs the first layer's output"):
        conv(graph, x)
    with pytest.raises(ValueError, match=r"initial has shape \(120, 2\); expected .* \[120, 5\]"):
        conv(graph, x, initial=x[:, :2])
