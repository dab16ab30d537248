"""Whole models: a stack of blocks, the last of which is only dropout and convolution.

    h = dropout(x_l);  x_{l+1} = activation(norm(conv_l(h) + residual_l(h)))

The last attention layer averages its heads, the others join them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.oracles import convolutions, functions, randomness
from tests.oracles.edges import Edges
from tests.oracles.functions import Params
from tests.oracles.tape import plain

LayerParams = dict[str, Params]

DELTA, AGGREGATORS = 1.3, ("mean", "max", "min")
"""Of pna, with all scalers."""
ATTENTION = ("gat", "gatv2", "transformer")
_OUTPUT_BIASES = {
    "gin": ("second_bias",),
    "gine": ("second_bias",),
    "transformer": ("value_bias", "skip_bias"),
    "gcn2": (),
    "pna": ("bias", "message_bias"),
}


@dataclass(frozen=True)
class Model:
    """The options of a stack, except the sizes of its layers, which the parameters determine."""

    conv: str  # gcn, sage, gat, gatv2, gin, gine, transformer, appnp, gcnii or pna
    num_heads: int = 1  # of attention
    reduce: str = "mean"  # of sage: sum, mean or max
    activation: str = "relu"  # or elu
    norm: str | None = None  # batch or layer
    residual: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    add_self_loops: bool = True  # of gcn, gat and gatv2
    edge_features: int = 0  # of gat, gatv2 and gine
    jumping: str | None = None  # cat or max

    def kind(self, index: int, num_layers: int) -> str:
        """What a layer is: a convolution, or a linear map."""
        is_last = index == num_layers - 1
        if self.conv == "appnp" or (self.jumping and is_last):
            return "linear"
        if self.conv == "gcnii":
            return "linear" if index == 0 or is_last else "gcn2"
        return self.conv


@dataclass(frozen=True)
class LayerSeeds:
    """The two key words of a layer's feature dropout, and those of its attention dropout."""

    features: tuple[int, int]
    attention: tuple[int, int]


def forward(
    model: Model,
    params: Sequence[LayerParams],
    edges: Edges,
    x: Any,
    *,
    seeds: Sequence[LayerSeeds] | None = None,
    statistics: Sequence[Params] = (),
    train: bool = False,
) -> tuple[Any, list[Params]]:
    """The logits [num_nodes, out_features] on the whole graph, and the statistics of batch norms.

    Args:
        model: the layers.
        params: for each layer a dict "conv", and for those before the last, where the model has
            them, "residual" (for a change of width: kernel) and "norm" (scale, bias).
        edges: the graph.
        x: features, [num_nodes, in_features].
        seeds: seeds of each layer; None drops nothing.
        statistics: running "mean" and "var" of each batch norm.
        train: whether batch norm normalises by this batch, and updates the statistics.
    """
    new_statistics = list(statistics)
    hidden: list[Any] = []  # the outputs of all layers before the last
    last = len(params) - 1
    for index, layer in enumerate(params):
        if index == last and model.jumping:
            x = functions.joined(model.jumping, hidden)
        seed = None if seeds is None else seeds[index]
        if seed is not None and model.dropout > 0:
            ids = np.arange(len(x))
            keep = randomness.node_keep_mask(seed.features, ids, x.shape[1], model.dropout)
            x = functions.dropout(x, keep, model.dropout)
        y = _convolution(model, params, index, edges, x, seed, hidden)
        if index == last:
            x = y
            break
        if model.residual:
            y = y + (functions.linear(layer["residual"], x) if "residual" in layer else x)
        if model.norm == "layer":
            y = functions.layer_norm(layer["norm"], y)
        elif model.norm == "batch" and train:
            new_statistics[index] = functions.updated_statistics(statistics[index], plain(y))
            y = functions.batch_norm(layer["norm"], y)
        elif model.norm == "batch":
            y = functions.batch_norm_inference(layer["norm"], statistics[index], y)
        x = {"relu": functions.relu, "elu": functions.elu}[model.activation](y)
        hidden.append(x)
    if model.conv == "appnp":
        x = convolutions.appnp(edges, x, steps=10, alpha=0.1)
    return x, new_statistics


def init_params(
    model: Model,
    in_features: int,
    hidden_features: int,
    out_features: int,
    num_layers: int,
    rng: np.random.Generator,
) -> list[LayerParams]:
    """Random parameters of every layer; widths are per head for attention."""
    heads = model.num_heads if model.conv in ATTENTION else 1
    width_in, layers, joined = in_features, [], []
    for index in range(num_layers):
        is_last = index == num_layers - 1
        width = out_features if is_last else hidden_features
        width_out = width if is_last else width * heads
        kind = model.kind(index, num_layers)
        if is_last and model.jumping:
            width_in = sum(joined) if model.jumping == "cat" else joined[0]
        sizes: dict[str, Any] = {"heads": heads, "concat": not is_last}
        if kind == model.conv:
            sizes["edge_features"] = model.edge_features
        if kind == "pna":
            sizes |= {"hidden": hidden_features, "blocks": 3 * len(AGGREGATORS)}
        layer = {"conv": conv_params(rng, kind, width_in, width, **sizes)}
        if not is_last and model.residual and width_in != width_out:
            layer["residual"] = {"kernel": _normal(rng, width_in, width_out)}
        if not is_last and model.norm is not None:
            scale = 1 + 0.1 * rng.standard_normal(width_out)
            layer["norm"] = {"scale": scale, "bias": _normal(rng, width_out)}
            if model.norm == "batch":
                # The norm would take it away.
                for name in _OUTPUT_BIASES.get(kind, ("bias",)):
                    del layer["conv"][name]
        layers.append(layer)
        joined.append(width_out)
        width_in = width_out
    return layers


def init_statistics(params: Sequence[LayerParams]) -> list[Params]:
    """Mean 0 and variance 1 for each norm."""
    widths = [len(layer["norm"]["scale"]) for layer in params if "norm" in layer]
    return [{"mean": np.zeros(width), "var": np.ones(width)} for width in widths]


def _convolution(
    model: Model,
    params: Sequence[LayerParams],
    index: int,
    edges: Edges,
    h: Any,
    seed: LayerSeeds | None,
    hidden: Sequence[Any],
) -> Any:
    kind, own = model.kind(index, len(params)), params[index]["conv"]
    if kind == "linear":
        return functions.linear(own, h)
    if kind == "gcn2":
        options: dict[str, Any] = {"alpha": 0.1, "theta": 0.5, "layer": index}
        return convolutions.gcn2(own, edges, h, hidden[0], **options)
    options = {}
    if kind == "sage":
        options["reduce"] = model.reduce
    if kind == "pna":
        options |= {"delta": DELTA, "aggregators": AGGREGATORS}
    if kind in ("gcn", "gat", "gatv2"):
        options["add_self_loops"] = model.add_self_loops
    if kind == "transformer":
        options["num_heads"] = model.num_heads
    if kind in ATTENTION:
        options["concat"] = index < len(params) - 1 or model.jumping is not None
        if seed is not None and model.attention_dropout > 0:
            loops = options.get("add_self_loops", False)
            used = edges.with_missing_self_loops() if loops else edges
            ends = used.receivers, used.senders, used.repetitions()
            rate = model.attention_dropout
            keep = randomness.edge_keep_mask(seed.attention, *ends, model.num_heads, rate)
            options |= {"keep": keep, "rate": rate}
    return getattr(convolutions, kind)(own, edges, h, **options)


def conv_params(
    rng: np.random.Generator,
    conv: str,
    width_in: int,
    width: int,
    *,
    heads: int = 1,
    concat: bool = True,
    hidden: int | None = None,
    blocks: int = 12,
    edge_features: int = 0,
) -> Params:
    """Random parameters of a convolution.

    Args:
        rng: the generator.
        conv: a kind of `Model`.
        width_in: features of its input.
        width: features of its output, of each head.
        heads: of attention.
        concat: whether heads are joined.
        hidden: features inside of gin, gine and pna; None: as many as `width`.
        blocks: the aggregators of pna times its scalers.
        edge_features: of the layers that read features of edges.
    """
    joined, hidden = width * heads, width if hidden is None else hidden
    width_out = joined if concat else width
    ends = ("sender", "receiver")
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        "linear": {"kernel": (width_in, width), "bias": (width,)},
        "gcn": {"kernel": (width_in, width), "bias": (width,)},
        "gcn2": {"kernel": (width_in, width)},
        "sage": {
            "self_kernel": (width_in, width),
            "neighbor_kernel": (width_in, width),
            "bias": (width,),
        },
        "gat": {
            **{f"attention_{end}": (heads, width) for end in ends},
            "kernel": (width_in, joined),
            "bias": (width_out,),
        },
        "gatv2": {
            **{f"{end}_kernel": (width_in, joined) for end in ends},
            **{f"{end}_bias": (joined,) for end in ends},
            "attention": (heads, width),
            "bias": (width_out,),
        },
        "transformer": {
            **{f"{name}_kernel": (width_in, joined) for name in ("query", "key", "value")},
            "skip_kernel": (width_in, width_out),
            **{f"{name}_bias": (joined,) for name in ("query", "value")},
            "skip_bias": (width_out,),
        },
        "gin": {
            "first_kernel": (width_in, hidden),
            "first_bias": (hidden,),
            "second_kernel": (hidden, width),
            "second_bias": (width,),
            "eps": (),
        },
        "pna": {
            **{f"{end}_kernel": (width_in, hidden) for end in ends},
            "self_kernel": (width_in, width),
            "kernel": (blocks * hidden, width),
            "message_bias": (hidden,),
            "bias": (width,),
        },
    }
    shapes["gine"], shapes["sgc"] = shapes["gin"], shapes["gcn"]
    of_edges = {
        "gine": {"edge_kernel": (edge_features, width_in), "edge_bias": (width_in,)},
        "gat": {"edge_kernel": (edge_features, joined), "attention_edge": (heads, width)},
        "gatv2": {"edge_kernel": (edge_features, joined)},
    }
    chosen = shapes[conv] | (of_edges[conv] if edge_features else {})
    bias = _normal(rng, width_out)
    params = {name: _normal(rng, *shape) for name, shape in chosen.items() if name != "bias"}
    return params | ({"bias": bias} if "bias" in chosen else {})


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal, of variance 1 over the number of rows; a number is small."""
    size = np.sqrt(shape[0]) if shape else 10
    return np.asarray(rng.standard_normal(shape) / size)
