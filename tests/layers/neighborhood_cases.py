"""Every convolution with its reference and its parameters, for tests of neighbourhoods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxgraph import layers
from tests.oracles import convolutions, models, randomness
from tests.oracles.edges import Edges
from tests.strategies import NUM_FEATURES

HEADS, OUT, EDGE_FEATURES = 2, 3, 2
WIDE = NUM_FEATURES + 2
KEY, RATE = jax.random.key(21), 0.4


@dataclass(frozen=True, eq=False)
class Case:
    """A convolution `(params, shard, x)`, its reference `(params, edges, x)`, and parameters."""

    conv: Callable[..., Any]
    oracle: Callable[..., Any]
    params: dict[str, Any]
    terms: int = 2000  # of the longest sum: the highest degree times the features, or the nodes


def words(key: jax.Array = KEY) -> tuple[int, int]:
    first, second = np.asarray(jax.random.key_data(key)).tolist()
    return first, second


def edge_masks(edges: Edges, heads: int, key: jax.Array = KEY) -> np.ndarray:
    """True for the coefficients of edges that the library keeps, bool [edges, heads]."""
    ends = edges.receivers, edges.senders, edges.repetitions()
    return randomness.edge_keep_mask(words(key), *ends, heads, RATE)


def of(
    kind: str,
    width: int = OUT,
    *,
    biased: bool = True,
    dropout: bool = False,
    hidden: int | None = None,
    edge_features: int = 0,
    gate: bool = False,
    **options: Any,
) -> Case:
    """A convolution with random parameters.

    Args:
        kind: of `tests.oracles.models`.
        width: features of its output, of each head.
        biased: whether it has biases.
        dropout: whether it drops attention, by `KEY` and `RATE`.
        hidden: features inside of gin, gine and pna.
        edge_features: whose maps it has.
        gate: whether a transformer has one.
        **options: of the function and of the reference.
    """
    is_attention, rng = kind in models.ATTENTION, np.random.default_rng(8)
    if kind == "pna":
        names = (options.get("aggregators", range(4)), options.get("scalers", range(3)))
        hidden, blocks = 2, len(names[0]) * len(names[1])
    else:
        blocks = 0
    sizes: dict[str, Any] = {"hidden": hidden, "blocks": blocks, "edge_features": edge_features}
    sizes |= {"heads": HEADS if is_attention else 1, "concat": options.get("concat", True)}
    params = models.conv_params(rng, kind, NUM_FEATURES, width, **sizes)
    if gate:
        params["gate"] = rng.standard_normal((3, HEADS * width))
    if not biased:
        params = {name: value for name, value in params.items() if not name.endswith("bias")}
    if kind == "transformer":
        options["num_heads"] = HEADS
    conv = partial(getattr(layers, f"{kind}_conv"), **options)
    oracle = partial(getattr(convolutions, kind), **options)
    if dropout:
        loops = kind != "transformer" and options.get("add_self_loops", True)
        conv, oracle = partial(conv, dropout=RATE, key=KEY), dropped(oracle, loops)
    floats = {name: np.asarray(value, np.float32) for name, value in params.items()}
    return Case(conv, oracle, floats)


def dropped(oracle: Callable[..., Any], loops: bool = True) -> Callable[..., Any]:
    """A reference with the library's draws of attention dropout."""

    def run(params: Any, edges: Edges, x: Any) -> Any:
        keep = edge_masks(edges.with_missing_self_loops() if loops else edges, HEADS)
        return oracle(params, edges, x, keep=keep, rate=RATE)

    return run


_PNA: dict[str, Any] = {"aggregators": ("mean", "max", "min", "sum"), "scalers": ("attenuation",)}
CASES = {
    "gcn-narrow": of("gcn"),
    "gcn-wide": of("gcn", WIDE),
    "sage-mean-narrow": of("sage"),
    "sage-mean-wide": of("sage", WIDE),
    "sage-max": of("sage", reduce="max"),
    "gin": of("gin", hidden=4),
    "gat": of("gat"),
    "gat-mean": of("gat", concat=False),
    "gatv2": of("gatv2"),
    "transformer": of("transformer", gate=True),
    "pna": of("pna", delta=1.3, **_PNA),
}
"""Convolutions whose widths are mapped before the sum, and after it."""
FEATURED = {
    name: of(name, edge_features=EDGE_FEATURES, hidden=4) for name in ("gat", "gatv2", "gine")
}
"""Convolutions that read features of edges."""


def doubles(params: dict[str, Any]) -> dict[str, np.ndarray]:
    """Parameters in float64, for a reference."""
    return {name: np.asarray(value, np.float64) for name, value in params.items()}
