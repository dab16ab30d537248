"""Layers under every schedule, against the float64 references: one program for all of a schedule.

Rows of padding are NaN.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph import layers
from jaxgraph.parallel import ShardedGraph, gather_rows, make_mesh, propagate, shard, spmd
from jaxgraph.partition import partition
from tests.layers.convolution_cases import TERMS, adjoint, draws
from tests.oracles import convolutions, functions, randomness
from tests.oracles.edges import Edges
from tests.strategies import NUM_FEATURES
from tests.tolerance import assert_close
from tests.training import crooked_features, crooked_graph, crooked_sharded, oracle_edges

normal = draws(8)

HEADS, OUT = 2, 3
KEY = jax.random.key(21)
RATE = 0.4


class Layer(NamedTuple):
    """A layer `(params, shard, x)`, its reference `(params, edges, x)`, and parameters of both."""

    conv: Callable[..., Any]
    oracle: Callable[..., Any]
    params: dict[str, Any]
    terms: int = TERMS


def words(key: jax.Array = KEY) -> tuple[int, int]:
    first, second = np.asarray(jax.random.key_data(key)).tolist()
    return first, second


def transformer_params(width: int, *, biased: bool) -> dict[str, Any]:
    sizes = {"query": HEADS * OUT, "key": HEADS * OUT, "value": HEADS * OUT, "skip": width}
    params = {f"{name}_kernel": normal(NUM_FEATURES, size) for name, size in sizes.items()}
    if biased:
        params |= {f"{name}_bias": normal(sizes[name]) for name in ("query", "value", "skip")}
    return params


def pna_params(blocks: int, *, biased: bool) -> dict[str, Any]:
    width = 2
    params = {f"{end}_kernel": normal(NUM_FEATURES, width) for end in ("sender", "receiver")}
    params |= {"self_kernel": normal(NUM_FEATURES, OUT), "kernel": normal(blocks * width, OUT)}
    return params | ({"message_bias": normal(width), "bias": normal(OUT)} if biased else {})


SUM_MIN: dict[str, Any] = {"aggregators": ("sum", "min"), "scalers": ("attenuation",)}


def dropped_transformer(params: Any, edges: Edges, x: np.ndarray) -> Any:
    """The reference with the library's draws of `KEY`."""
    ends = edges.receivers, edges.senders, edges.repetitions()
    keep = randomness.edge_keep_mask(words(), *ends, HEADS, RATE)
    options = {"attention_keep": keep, "attention_rate": RATE}
    return convolutions.transformer(params, edges, x, num_heads=HEADS, **options)


def without_weights(result: Any) -> Any:
    """A reference without the gradients of its edges' weights."""
    y, backward = result
    return y, lambda grad: (backward(grad)[0], {})


def dropped_appnp(params: Any, edges: Edges, x: np.ndarray) -> Any:
    """The reference with the library's draws of `KEY`, of edges and of the loops that it adds."""
    used = edges.with_missing_self_loops()
    ends = used.receivers, used.senders, used.repetitions()
    keep = [
        randomness.edge_keep_mask(words(jax.random.fold_in(KEY, k)), *ends, 1, RATE)[:, 0]
        for k in range(3)
    ]
    options: dict[str, Any] = {"steps": 3, "alpha": 0.2, "keep": keep, "rate": RATE}
    return without_weights(convolutions.appnp(edges, x, **options))


def plain_appnp(params: Any, edges: Edges, x: np.ndarray) -> Any:
    return without_weights(convolutions.appnp(edges, x, steps=4, alpha=0.2))


def appnp(params: Any, shard: Any, x: Any, **options: Any) -> Any:
    return layers.appnp_propagate(shard, x, alpha=0.2, **options)


def gcn2(params: Any, edges: Edges, x: np.ndarray) -> Any:
    """With initial rows x W."""
    initial, backward_initial = functions.linear({"kernel": params["first"]}, x)
    options = {"alpha": 0.3, "theta": 0.5, "layer": 2}
    y, backward = convolutions.gcn2(params, edges, x, initial, **options)

    def both(grad: np.ndarray) -> Any:
        of_x, of_initial, grads = backward(grad)
        more, of_first = backward_initial(of_initial)
        return of_x + more, grads | {"first": of_first["kernel"]}

    return y, both


def of_kept_edges(conv: Callable[..., Any]) -> Callable[..., Any]:
    """A layer on the shard without the edges that `KEY` drops."""
    return lambda params, shard, x: conv(params, layers.dropout_edge(shard, KEY, rate=RATE), x)


def oracle_of_kept_edges(oracle: Callable[..., Any]) -> Callable[..., Any]:
    """A reference on the graph of the edges that are kept, which it knows nothing else about."""

    def run(params: Any, edges: Edges, x: np.ndarray) -> Any:
        ends = edges.receivers, edges.senders, edges.repetitions()
        keep = randomness.edge_keep_mask(words(), *ends, 1, RATE)[:, 0]
        kept = edges.senders[keep], edges.receivers[keep]
        return oracle(params, Edges.of(*kept, edges.num_nodes, edges.weight[keep]), x)

    return run


def own_messages(params: Any, shard: Any, x: jax.Array) -> Any:
    """A mean of messages of one's own."""
    x = layers.linear(shard, x, params["kernel"])
    return propagate(shard, lambda s, r, e: s * r, x, x, reduce="mean")


def oracle_of_own_messages(params: Any, edges: Edges, x: np.ndarray) -> Any:
    z, backward = functions.linear({"kernel": params["kernel"]}, x)
    count = np.maximum(edges.in_degrees(), 1)[:, None]
    y = edges.sum_by_receiver(z[edges.senders] * z[edges.receivers]) / count

    def pull(grad: np.ndarray) -> Any:
        of_messages = (grad / count)[edges.receivers]
        of_z = edges.sum_by_sender(of_messages * z[edges.receivers])
        return backward(of_z + edges.sum_by_receiver(of_messages * z[edges.senders]))

    return y, pull


_KERNEL = {"kernel": normal(NUM_FEATURES, OUT)}
_SAGE = {f"{end}_kernel": normal(NUM_FEATURES, OUT) for end in ("self", "neighbor")}
ON_KEPT_EDGES: dict[str, Any] = {
    "gcn": (layers.gcn_conv, convolutions.gcn, _KERNEL),
    "sage": (layers.sage_conv, convolutions.sage, _SAGE),
    "appnp": (partial(appnp, steps=4), plain_appnp, {}),
    "messages": (own_messages, oracle_of_own_messages, _KERNEL),
}


LAYERS = {
    **{
        f"{name}-of-kept-edges": Layer(of_kept_edges(conv), oracle_of_kept_edges(oracle), params)
        for name, (conv, oracle, params) in ON_KEPT_EDGES.items()
    },
    "appnp": Layer(
        partial(appnp, steps=4),
        plain_appnp,
        {},
    ),
    "appnp-dropout": Layer(partial(appnp, steps=3, dropout=RATE, key=KEY), dropped_appnp, {}),
    "gcn2": Layer(
        lambda params, shard, x: layers.gcn2_conv(
            {"kernel": params["kernel"]},
            shard,
            x,
            layers.linear(shard, x, params["first"]),
            alpha=0.3,
            layer=2,
        ),
        gcn2,
        {"kernel": normal(NUM_FEATURES, NUM_FEATURES), "first": normal(NUM_FEATURES, NUM_FEATURES)},
    ),
    "pna": Layer(
        partial(layers.pna_conv, delta=1.3),
        partial(convolutions.pna, delta=1.3),
        pna_params(12, biased=True),
        # A variance loses digits, as many as its mean's square is larger.
        100 * TERMS,
    ),
    "pna-sum-min": Layer(
        partial(layers.pna_conv, delta=1.3, **SUM_MIN),
        partial(convolutions.pna, delta=1.3, **SUM_MIN),
        pna_params(2, biased=False),
    ),
    "transformer-gate-dropout": Layer(
        partial(layers.transformer_conv, num_heads=HEADS, dropout=RATE, key=KEY),
        dropped_transformer,
        transformer_params(HEADS * OUT, biased=True) | {"gate": normal(3, HEADS * OUT)},
    ),
    "transformer-mean": Layer(
        partial(layers.transformer_conv, num_heads=HEADS, concat=False),
        partial(convolutions.transformer, num_heads=HEADS, concat=False),
        transformer_params(OUT, biased=False),
    ),
}


def placed(schedule: str) -> ShardedGraph:
    if schedule != "several":
        return crooked_sharded(4 if schedule.startswith("p3") else 3, "hash", schedule)
    graph = crooked_graph()
    return shard(graph, partition(graph, 4, method="hash", seed=1), make_mesh(2), "sar")


@cache
def expected(name: str) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """y, and the gradients of x and of the parameters."""
    layer = LAYERS[name]
    doubles = {name: np.asarray(value, np.float64) for name, value in layer.params.items()}
    y, backward = layer.oracle(doubles, oracle_edges(crooked_graph()), crooked_features())
    return y, *backward(np.asarray(adjoint(np.arange(len(y)), y.shape[1]), np.float64))


@pytest.mark.law(1)
@pytest.mark.parametrize(
    "schedule",
    [
        "sar",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("domain", "prefetch", "several", "p3-domain", "p3-sar-pushed")
        ),
    ],
)
def test_values_and_gradients(schedule: str) -> None:
    def run(name: str, params: Any, shard: Any) -> Any:
        rows = shard.to_nodes(shard.nodes)
        x = jnp.where(shard.node_mask[:, None], rows, jnp.nan)

        def loss(x: jax.Array, params: Any) -> Any:
            y = LAYERS[name].conv(params, shard, x)
            return shard.sum(jnp.sum(shard.mask_rows(y * adjoint(shard.node_ids, y.shape[1])))), y

        (_, y), (of_x, of_params) = jax.value_and_grad(loss, (0, 1), has_aux=True)(x, params)
        return (shard.mask_rows(y), of_x), of_params

    def step(all_params: Any, shard: Any) -> Any:
        found = {name: run(name, params, shard) for name, params in all_params.items()}
        rows, replicated = ({n: each[i] for n, each in found.items()} for i in (0, 1))
        return rows, replicated

    sharded = placed(schedule)
    all_params = {name: layer.params for name, layer in LAYERS.items()}
    rows, replicated = spmd(step, outputs=("rows", "replicated"))(all_params, sharded)
    for name in LAYERS:
        y, of_x, of_params = expected(name)
        for actual, reference in zip(rows[name], (y, of_x), strict=True):
            found = gather_rows(actual, sharded)
            assert_close(found, reference, reduction_length=LAYERS[name].terms, name=name)
        assert replicated[name].keys() == of_params.keys()
        for part, reference in of_params.items():
            actual = replicated[name][part]
            label, terms = f"{name}: {part}", LAYERS[name].terms
            assert_close(actual, reference, reduction_length=terms, name=label)
