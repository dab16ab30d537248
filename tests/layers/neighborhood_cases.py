"""Every convolution with its reference and its stages, for tests of neighbourhoods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from jaxgraph import layers
from jaxgraph.layers.attention import gat_stages, gatv2_stages
from jaxgraph.layers.convolutions import gcn_stages, gin_stages, sage_stages
from jaxgraph.layers.transformer import transformer_stages
from jaxgraph.parallel.conv_stages import ConvStages
from tests.layers.convolution_cases import WIDE, draws
from tests.oracles import convolutions
from tests.strategies import NUM_FEATURES

normal = draws(8)

HEADS, OUT = 2, 3


@dataclass(frozen=True, eq=False)
class Case:
    """A convolution: a function, its reference, its stages if it has any, and parameters."""

    conv: Callable[..., Any]
    oracle: Callable[..., Any]
    stages: Callable[..., ConvStages] | None
    params: dict[str, Any]


def _gcn(width: int) -> Case:
    params = {"kernel": normal(NUM_FEATURES, width), "bias": normal(width)}
    stages = partial(gcn_stages, dtype=np.float32)
    return Case(layers.gcn_conv, convolutions.gcn, stages, params)


def _sage(reduce: str, width: int) -> Case:
    kernels = {f"{end}_kernel": normal(NUM_FEATURES, width) for end in ("self", "neighbor")}
    return Case(
        partial(layers.sage_conv, reduce=reduce),
        partial(convolutions.sage, reduce=reduce),
        partial(sage_stages, dtype=np.float32, reduce=reduce),
        kernels | {"bias": normal(width)},
    )


def _gin(hidden: int) -> Case:
    params = {
        "eps": normal(),
        "first_kernel": normal(NUM_FEATURES, hidden),
        "first_bias": normal(hidden),
        "second_kernel": normal(hidden, OUT),
        "second_bias": normal(OUT),
    }
    stages = partial(gin_stages, dtype=np.float32)
    return Case(layers.gin_conv, convolutions.gin, stages, params)


def _gat(concat: bool) -> Case:
    params = {
        "kernel": normal(NUM_FEATURES, HEADS * OUT),
        "attention_sender": normal(HEADS, OUT),
        "attention_receiver": normal(HEADS, OUT),
        "bias": normal(HEADS * OUT if concat else OUT),
    }
    return Case(
        partial(layers.gat_conv, concat=concat),
        partial(convolutions.gat, concat=concat),
        partial(gat_stages, concat=concat),
        params,
    )


def _gatv2() -> Case:
    params = {f"{end}_kernel": normal(NUM_FEATURES, HEADS * OUT) for end in ("sender", "receiver")}
    params |= {f"{end}_bias": normal(HEADS * OUT) for end in ("sender", "receiver")}
    params |= {"attention": normal(HEADS, OUT), "bias": normal(HEADS * OUT)}
    return Case(layers.gatv2_conv, convolutions.gatv2, gatv2_stages, params)


def _transformer() -> Case:
    names = ("query", "key", "value", "skip")
    params = {f"{name}_kernel": normal(NUM_FEATURES, HEADS * OUT) for name in names}
    params |= {f"{name}_bias": normal(HEADS * OUT) for name in names if name != "key"}
    params["gate"] = normal(3, HEADS * OUT)
    heads: dict[str, Any] = {"num_heads": HEADS}
    return Case(
        partial(layers.transformer_conv, **heads),
        partial(convolutions.transformer, **heads),
        partial(transformer_stages, **heads),
        params,
    )


def _pna() -> Case:
    params = {f"{end}_kernel": normal(NUM_FEATURES, 2) for end in ("sender", "receiver")}
    params |= {"self_kernel": normal(NUM_FEATURES, OUT), "kernel": normal(8, OUT)}
    params |= {"message_bias": normal(2), "bias": normal(OUT)}
    names: dict[str, Any] = {"aggregators": ("mean", "max", "min", "sum"), "delta": 1.3}
    names["scalers"] = ("attenuation",)
    return Case(partial(layers.pna_conv, **names), partial(convolutions.pna, **names), None, params)


CASES = {
    "gcn-narrow": _gcn(3),
    "gcn-wide": _gcn(WIDE),
    "sage-mean-narrow": _sage("mean", 3),
    "sage-mean-wide": _sage("mean", WIDE),
    "sage-max": _sage("max", 3),
    "gin": _gin(4),
    "gat": _gat(True),
    "gat-mean": _gat(False),
    "gatv2": _gatv2(),
    "transformer": _transformer(),
    "pna": _pna(),
}
"""Convolutions whose widths are mapped before the sum, and after it."""


def doubles(params: dict[str, Any]) -> dict[str, np.ndarray]:
    """Parameters in float64, for a reference."""
    return {name: np.asarray(value, np.float64) for name, value in params.items()}
