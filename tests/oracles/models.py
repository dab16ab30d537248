"""Whole models: a stack of blocks, the last of which is only dropout and convolution.

    h = dropout(x_l);  x_{l+1} = activation(norm(conv_l(h) + residual_l(h)))

The last attention layer averages its heads, the others join them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.oracles import convolutions, functions, randomness
from tests.oracles.edges import Edges
from tests.oracles.functions import Backward, Params, ParamsBackward

LayerParams = dict[str, Params]
LayerBackward = Callable[[np.ndarray], tuple[np.ndarray, LayerParams]]

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


@dataclass(frozen=True, eq=False)
class Place:
    """Which layer it is, what, whether it is the last, and the first one's output."""

    index: int
    kind: str
    is_last: bool
    initial: np.ndarray | None


@dataclass(frozen=True)
class LayerSeeds:
    """The two key words of a layer's feature dropout, and those of its attention dropout."""

    features: tuple[int, int]
    attention: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a pass: `backward(grad_logits)` is (grad_x, gradients of each layer)."""

    logits: np.ndarray  # [num_nodes, out_features]
    backward: Callable[[np.ndarray], tuple[np.ndarray, list[LayerParams]]]
    statistics: list[Params]  # running mean and var of each batch norm after this pass


def forward(
    model: Model,
    params: Sequence[LayerParams],
    edges: Edges,
    x: np.ndarray,
    *,
    seeds: Sequence[LayerSeeds] | None = None,
    statistics: Sequence[Params] = (),
    train: bool = False,
) -> Result:
    """Runs the model on the whole graph.

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
    backwards: list[LayerBackward] = []
    new_statistics: list[Params] = []
    hidden: list[np.ndarray] = []  # the outputs of all layers before the last
    last = len(params) - 1
    backward_join = None
    for index, layer in enumerate(params):
        seed = None if seeds is None else seeds[index]
        first = hidden[0] if hidden else None
        place = Place(index, model.kind(index, len(params)), index == last, first)
        if index == last:
            if model.jumping:
                x, backward_join = functions.joined(model.jumping, hidden)
            x, backward_block = _last_block(model, layer, edges, x, seed, place)
        else:
            running = statistics[index] if model.norm == "batch" else None
            x, backward_block, updated = _hidden_block(
                model, layer, edges, x, seed, place, running, train
            )
            new_statistics += [] if updated is None else [updated]
            hidden.append(x)
        backwards.append(backward_block)
    backward_steps = None
    if model.conv == "appnp":
        x, backward_steps = convolutions.appnp(edges, x, steps=10, alpha=0.1)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, list[LayerParams]]:
        grads: list[LayerParams] = []
        extra = [np.zeros(each.shape) for each in hidden]
        if backward_steps is not None:
            grad, _ = backward_steps(grad)
        for index in reversed(range(len(params))):
            grad, block_grads = backwards[index](grad)
            if "initial" in block_grads["conv"]:
                extra[0] += block_grads["conv"].pop("initial")
            if index == last and backward_join is not None:
                extra = [a + b for a, b in zip(extra, backward_join(grad), strict=True)]
                grad = np.zeros(1)
            if index > 0:
                grad = grad + extra[index - 1]
            grads.insert(0, block_grads)
        return grad, grads

    return Result(x, backward, new_statistics)


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
        layer = {"conv": _conv_params(kind, width_in, width, heads, not is_last, rng)}
        if kind == model.conv:
            layer["conv"] |= _edge_params(model, width_in, width, heads, rng)
        if kind == "pna":
            layer["conv"] = _pna_params(width_in, width, hidden_features, rng)
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


def _last_block(
    model: Model,
    layer: LayerParams,
    edges: Edges,
    x: np.ndarray,
    seed: LayerSeeds | None,
    place: Place,
) -> tuple[np.ndarray, LayerBackward]:
    h, backward_dropout = _feature_dropout(model, x, seed)
    y, backward_conv = _convolution(model, layer["conv"], edges, h, seed, place)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, LayerParams]:
        grad_h, conv_grads = backward_conv(grad)
        return backward_dropout(grad_h), {"conv": conv_grads}

    return y, backward


def _hidden_block(
    model: Model,
    layer: LayerParams,
    edges: Edges,
    x: np.ndarray,
    seed: LayerSeeds | None,
    place: Place,
    running: Params | None,
    train: bool,
) -> tuple[np.ndarray, LayerBackward, Params | None]:
    h, backward_dropout = _feature_dropout(model, x, seed)
    y, backward_conv = _convolution(model, layer["conv"], edges, h, seed, place)
    residual, backward_residual = _residual(model, layer, h)
    total = y + residual
    normed, backward_norm = _norm(model, layer, total, None if train else running)
    activation = {"relu": functions.relu, "elu": functions.elu}[model.activation]
    active, backward_activation = activation(normed)
    updated = running
    if train and running is not None:
        updated = functions.updated_statistics(running, total)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, LayerParams]:
        grad, norm_grads = backward_norm(backward_activation(grad))
        grad_h, conv_grads = backward_conv(grad)
        grad_h_residual, residual_grads = backward_residual(grad)
        named = {"conv": conv_grads, "residual": residual_grads, "norm": norm_grads}
        grads = {name: value for name, value in named.items() if value}
        return backward_dropout(grad_h + grad_h_residual), grads

    return active, backward, updated


def _feature_dropout(
    model: Model, x: np.ndarray, seed: LayerSeeds | None
) -> tuple[np.ndarray, Backward]:
    if seed is None or model.dropout == 0:
        return x, lambda grad: grad
    ids = np.arange(len(x))
    keep = randomness.node_keep_mask(seed.features, ids, x.shape[1], model.dropout)
    return functions.dropout(x, keep, model.dropout)


def _convolution(
    model: Model,
    params: Params,
    edges: Edges,
    h: np.ndarray,
    seed: LayerSeeds | None,
    place: Place,
) -> tuple[np.ndarray, ParamsBackward]:
    if place.kind == "linear":
        return functions.linear(params, h)
    if place.kind == "gcn2":
        return _gcn2(params, edges, h, place)
    if place.kind == "gcn":
        return convolutions.gcn(params, edges, h, model.add_self_loops)
    if place.kind == "sage":
        return convolutions.sage(params, edges, h, model.reduce)
    if place.kind == "pna":
        return convolutions.pna(params, edges, h, delta=DELTA, aggregators=AGGREGATORS)
    if place.kind in ("gin", "gine"):
        return getattr(convolutions, place.kind)(params, edges, h)
    is_last = place.is_last and not model.jumping
    return _attention(model, params, edges, h, seed, is_last)


def _gcn2(
    params: Params, edges: Edges, h: np.ndarray, place: Place
) -> tuple[np.ndarray, ParamsBackward]:
    """The gradient of the initial rows is among those of the parameters, as "initial"."""
    assert place.initial is not None
    options = {"alpha": 0.1, "theta": 0.5, "layer": place.index}
    y, backward = convolutions.gcn2(params, edges, h, place.initial, **options)

    def joined(grad: np.ndarray) -> tuple[np.ndarray, Params]:
        of_h, of_initial, grads = backward(grad)
        return of_h, grads | {"initial": of_initial}

    return y, joined


def _attention(
    model: Model,
    params: Params,
    edges: Edges,
    h: np.ndarray,
    seed: LayerSeeds | None,
    is_last: bool,
) -> tuple[np.ndarray, ParamsBackward]:
    keep, rate = None, 0.0
    if seed is not None and model.attention_dropout > 0:
        rate = model.attention_dropout
        adds_loops = model.add_self_loops and model.conv != "transformer"
        used = edges.with_missing_self_loops() if adds_loops else edges
        ends = used.receivers, used.senders, used.repetitions()
        keep = randomness.edge_keep_mask(seed.attention, *ends, model.num_heads, rate)
    options: dict[str, Any] = {
        "concat": not is_last,
        "attention_keep": keep,
        "attention_rate": rate,
    }
    if model.conv == "transformer":
        return convolutions.transformer(params, edges, h, num_heads=model.num_heads, **options)
    conv = convolutions.gat if model.conv == "gat" else convolutions.gatv2
    return conv(params, edges, h, add_self_loops=model.add_self_loops, **options)


def _residual(
    model: Model, layer: LayerParams, h: np.ndarray
) -> tuple[np.ndarray | float, ParamsBackward]:
    if not model.residual:
        return 0.0, lambda grad: (np.zeros(h.shape), {})
    if "residual" in layer:
        return functions.linear(layer["residual"], h)
    return h, lambda grad: (grad, {})


def _norm(
    model: Model, layer: LayerParams, x: np.ndarray, running: Params | None
) -> tuple[np.ndarray, ParamsBackward]:
    if model.norm is None:
        return x, lambda grad: (grad, {})
    if model.norm == "layer":
        return functions.layer_norm(layer["norm"], x)
    if running is None:
        return functions.batch_norm(layer["norm"], x)
    return functions.batch_norm_inference(layer["norm"], running, x)


def _conv_params(
    conv: str, width_in: int, width: int, heads: int, concat: bool, rng: np.random.Generator
) -> Params:
    joined = width * heads
    bias = _normal(rng, joined if concat else width)
    if conv == "gcn2":
        return {"kernel": _normal(rng, width_in, width)}
    if conv in ("gcn", "linear"):
        return {"kernel": _normal(rng, width_in, width), "bias": bias}
    if conv == "sage":
        kernels = {f"{end}_kernel": _normal(rng, width_in, width) for end in ("self", "neighbor")}
        return kernels | {"bias": bias}
    if conv == "gat":
        ends = {f"attention_{end}": _normal(rng, heads, width) for end in ("sender", "receiver")}
        return {"kernel": _normal(rng, width_in, joined), "bias": bias} | ends
    if conv == "gatv2":
        kernels = {
            f"{end}_kernel": _normal(rng, width_in, joined) for end in ("sender", "receiver")
        }
        biases = {f"{end}_bias": _normal(rng, joined) for end in ("sender", "receiver")}
        return kernels | biases | {"attention": _normal(rng, heads, width), "bias": bias}
    if conv == "transformer":
        sizes = {"query": joined, "key": joined, "value": joined}
        sizes["skip"] = joined if concat else width
        kernels = {f"{name}_kernel": _normal(rng, width_in, size) for name, size in sizes.items()}
        biases = {f"{n}_bias": _normal(rng, size) for n, size in sizes.items() if n != "key"}
        return kernels | biases
    first = {"first_kernel": _normal(rng, width_in, width), "first_bias": _normal(rng, width)}
    second = {"second_kernel": _normal(rng, width, width), "second_bias": _normal(rng, width)}
    return first | second | {"eps": np.asarray(0.1 * rng.standard_normal())}


def _edge_params(
    model: Model, width_in: int, width: int, heads: int, rng: np.random.Generator
) -> Params:
    """Those that read features of edges, if there are any."""
    if not model.edge_features:
        return {}
    if model.conv == "gine":
        kernel = _normal(rng, model.edge_features, width_in)
        return {"edge_kernel": kernel, "edge_bias": _normal(rng, width_in)}
    found = {"edge_kernel": _normal(rng, model.edge_features, width * heads)}
    return found | ({"attention_edge": _normal(rng, heads, width)} if model.conv == "gat" else {})


def _pna_params(width_in: int, width: int, messages: int, rng: np.random.Generator) -> Params:
    params = {f"{end}_kernel": _normal(rng, width_in, messages) for end in ("sender", "receiver")}
    params |= {"self_kernel": _normal(rng, width_in, width), "bias": _normal(rng, width)}
    kernel = _normal(rng, 3 * len(AGGREGATORS) * messages, width)
    return params | {"kernel": kernel, "message_bias": _normal(rng, messages)}


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal, of variance 1 over the number of rows."""
    return rng.standard_normal(shape) / np.sqrt(shape[0])
