"""The graph transformer's convolution: columns of features, and what is refused."""

from functools import partial
from typing import Any

import pytest
from flax import nnx

from jaxgraph.layers import transformer_conv
from jaxgraph.nn import TransformerConv
from tests.layers.convolution_cases import columns_match_rows, draws, refused
from tests.strategies import NUM_FEATURES

normal = draws(8)

PARAMS: dict[str, Any] = {
    f"{name}_kernel": normal(NUM_FEATURES, 6) for name in ("query", "key", "value", "skip")
}


def test_columns_give_what_rows_give() -> None:
    columns_match_rows(partial(transformer_conv, num_heads=2), PARAMS)


@pytest.mark.parametrize(
    ("params", "options", "message"),
    [
        (PARAMS, {"num_heads": 4}, "num_heads is 4, and query_kernel has 6 columns"),
        (PARAMS, {"dropout": 0.5}, "attention dropout needs a random key"),
        (
            {**{n: v for n, v in PARAMS.items() if n != "skip_kernel"}, "gate": normal(3, 6)},
            {},
            "params have a gate and no skip_kernel",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    params: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    refused(ValueError, message, lambda s: transformer_conv(params, s, s.nodes, **options))


def test_a_gate_without_a_root_is_refused() -> None:
    with pytest.raises(ValueError, match="pass root_weight=True"):
        TransformerConv(4, 3, beta=True, root_weight=False, rngs=nnx.Rngs(0))
