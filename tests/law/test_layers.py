"""Layers under every schedule, against the float64 references: one program for all of a schedule.

Rows of padding are NaN.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from jaxgraph import layers
from jaxgraph.parallel import propagate
from tests.layers.convolution_cases import TERMS, check_layers
from tests.layers.neighborhood_cases import (
    CASES,
    EDGE_FEATURES,
    FEATURED,
    KEY,
    RATE,
    WIDE,
    Case,
    edge_masks,
    of,
)
from tests.oracles import convolutions, functions
from tests.oracles.edge_ops import reduce_messages
from tests.oracles.edges import Edges
from tests.strategies import NUM_FEATURES

SQUARE = np.random.default_rng(8).standard_normal((2, NUM_FEATURES, NUM_FEATURES), np.float32)
SUM_MIN: dict[str, Any] = {"aggregators": ("sum", "min"), "scalers": ("attenuation",)}


def appnp(params: Any, shard: Any, x: Any, **options: Any) -> Any:
    return layers.appnp_propagate(shard, x, alpha=0.2, **options)


def plain_appnp(params: Any, edges: Edges, x: Any) -> Any:
    return convolutions.appnp(edges, x, steps=4, alpha=0.2)


def dropped_appnp(params: Any, edges: Edges, x: Any) -> Any:
    """The reference with the library's draws of `KEY`, of edges and of the loops that it adds."""
    used = edges.with_missing_self_loops()
    keep = [edge_masks(used, 1, jax.random.fold_in(KEY, step))[:, 0] for step in range(3)]
    return convolutions.appnp(edges, x, steps=3, alpha=0.2, keep=keep, rate=RATE)


def gcn2(params: Any, shard: Any, x: Any) -> Any:
    """With initial rows x W."""
    initial = layers.linear(shard, x, params["first"])
    return layers.gcn2_conv({"kernel": params["kernel"]}, shard, x, initial, alpha=0.3, layer=2)


def oracle_of_gcn2(params: Any, edges: Edges, x: Any) -> Any:
    initial = functions.linear({"kernel": params["first"]}, x)
    return convolutions.gcn2(params, edges, x, initial, alpha=0.3, theta=0.5, layer=2)


def own_messages(params: Any, shard: Any, x: jax.Array) -> Any:
    """A mean of messages of one's own."""
    x = layers.linear(shard, x, params["kernel"])
    return propagate(shard, lambda s, r, e: s * r, x, x, reduce="mean")


def oracle_of_own_messages(params: Any, edges: Edges, x: Any) -> Any:
    z = x @ params["kernel"]
    return reduce_messages(edges, z[edges.senders] * z[edges.receivers], "mean")


def of_kept_edges(case: Case) -> Case:
    """A layer on the shard without the edges that `KEY` drops, and its reference without them."""

    def conv(params: Any, shard: Any, x: Any) -> Any:
        return case.conv(params, layers.dropout_edge(shard, KEY, rate=RATE), x)

    def oracle(params: Any, edges: Edges, x: Any) -> Any:
        keep = edge_masks(edges, 1)[:, 0]
        kept = edges.senders[keep], edges.receivers[keep]
        return case.oracle(params, Edges.of(*kept, edges.num_nodes, edges.weight[keep]), x)

    return Case(conv, oracle, case.params)


_APPNP = Case(partial(appnp, steps=4), plain_appnp, {})
_OWN = Case(own_messages, oracle_of_own_messages, {"kernel": SQUARE[0][:, :3]})
WEIGHTED = {
    **{name: case for name, case in CASES.items() if name.startswith(("gcn", "sage", "gin"))},
    "gcn-no-loops": of("gcn", biased=False, add_self_loops=False),
    "sgc": of("sgc"),
    "sgc-no-loops": of("sgc", WIDE, biased=False, steps=3, add_self_loops=False),
    "sage-sum": of("sage", biased=False, reduce="sum"),
    "sage-min": of("sage", reduce="min"),
}
LAYERS: dict[str | None, dict[str, Case]] = {
    None: WEIGHTED
    | {
        "gin-wide": of("gin", hidden=WIDE, biased=False),
        **{f"{name}-dropout": of(name, dropout=True) for name in ("gat", "gatv2")},
        **{
            f"{name}-mean": of(name, concat=False, add_self_loops=False)
            for name in ("gat", "gatv2")
        },
        "transformer-dropout": of("transformer", gate=True, dropout=True),
        "transformer-mean": of("transformer", biased=False, concat=False),
        # A variance loses digits, as many as its mean's square is larger.
        "pna": replace(of("pna", delta=1.3), terms=100 * TERMS),
        "pna-sum-min": of("pna", biased=False, delta=1.3, **SUM_MIN),
        "appnp": _APPNP,
        "appnp-dropout": Case(partial(appnp, steps=3, dropout=RATE, key=KEY), dropped_appnp, {}),
        "gcn2": Case(gcn2, oracle_of_gcn2, {"kernel": SQUARE[0], "first": SQUARE[1]}),
        **{
            f"{name}-of-kept-edges": of_kept_edges(case)
            for name, case in {
                "gcn": of("gcn", biased=False),
                "sage": of("sage", biased=False),
                "sgc": of("sgc"),
                "appnp": _APPNP,
                "messages": _OWN,
            }.items()
        },
    },
    "edge_weight": WEIGHTED,
    "edges": FEATURED
    | {
        "gat-dropout": of("gat", edge_features=EDGE_FEATURES, dropout=True),
        "gat-mean": of("gat", edge_features=EDGE_FEATURES, concat=False, add_self_loops=False),
        "gine-no-bias": of("gine", edge_features=EDGE_FEATURES, hidden=4, biased=False),
    },
}
"""Layers by the data that edges have."""


@pytest.mark.expensive
@pytest.mark.law(1)
@pytest.mark.parametrize(
    ("schedule", "data"),
    [
        ("sar", None),
        ("sar", "edge_weight"),
        ("sar", "edges"),
        *(
            pytest.param(name, data, marks=pytest.mark.slow)
            for name in ("domain", "prefetch", "several", "p3-domain", "p3-sar-pushed")
            for data in LAYERS
        ),
    ],
)
def test_values_and_gradients(schedule: str, data: str | None) -> None:
    parts = 4 if schedule.startswith(("p3", "several")) else 3
    check_layers(LAYERS[data], schedule, parts, data)
