"""One training pass: by the library on a sharded graph, and by the oracle on the whole graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxgraph import Graph, nn
from jaxgraph.nn.stack import Stack
from jaxgraph.parallel import ShardedGraph, make_mesh, shard, spmd
from jaxgraph.partition import partition
from tests.oracles import losses, models
from tests.oracles.edges import Edges
from tests.oracles.models import AGGREGATORS, DELTA, LayerParams
from tests.oracles.tape import differentiate
from tests.strategies import NUM_CLASSES, NUM_FEATURES, complete, random_edges
from tests.tolerance import relative_error

HIDDEN = 6
NUM_LAYERS = 2
SEED = 11
P3_MODES: dict[str, dict[str, Any]] = {
    "p3-domain": {"rest": "domain"},
    "p3-sar": {"rest": "sar", "chunks": 2},
    "p3-domain-pushed": {"rest": "domain", "topology": "pushed", "chunks": 2},
    "p3-sar-pushed": {"rest": "sar", "topology": "pushed"},
}
MODES = ("sar", "domain", "prefetch", *P3_MODES)

_CLASSES = {
    "gcn": nn.GCN,
    "sage": nn.GraphSAGE,
    "gat": nn.GAT,
    "gatv2": nn.GATv2,
    "gin": nn.GIN,
    "gine": nn.GINE,
    "transformer": nn.Transformer,
    "appnp": nn.APPNP,
    "gcnii": nn.GCNII,
    "pna": partial(nn.PNA, delta=DELTA, aggregators=AGGREGATORS),
}
_ACTIVATIONS = {"relu": jax.nn.relu, "elu": jax.nn.elu}


@dataclass(frozen=True, eq=False)
class Pass:
    """The result of one pass: gradients and statistics by layer, under the oracle's names."""

    loss: float
    gradients: list[LayerParams]
    statistics: list[dict[str, np.ndarray]]


def crooked_graph(
    num_nodes: int = 120,
    edge_weight: bool = False,
    num_features: int = NUM_FEATURES,
    edges: bool = False,
) -> Graph:
    """Repeated edges, self-loops, a hub of receivers and one of senders, and isolated nodes.

    Args:
        num_nodes: Number of nodes.
        edge_weight: Whether edges have weights.
        num_features: Features of a node.
        edges: Whether edges have features.
    """
    senders, receivers = random_edges(num_nodes - 3, 4 * num_nodes, seed=5)
    hub = np.arange(num_nodes // 2)
    senders = np.concatenate([senders, senders[:20], hub, np.full(len(hub), 7), [4, 9]])
    receivers = np.concatenate([receivers, receivers[:20], np.full(len(hub), 3), hub, [4, 9]])
    graph = complete(senders, receivers, num_nodes, "crooked", edge_data=edge_weight or edges)
    has = {"edge_weight": edge_weight, "edges": edges, "edge_type": False}
    graph = graph.replace(**{name: None for name, wanted in has.items() if not wanted})
    if num_features == NUM_FEATURES:
        return graph
    rng = np.random.default_rng(6)
    return graph.replace(nodes=rng.standard_normal((num_nodes, num_features), np.float32))


def crooked_features() -> np.ndarray:
    """Its features in float64."""
    return np.asarray(crooked_graph().nodes, np.float64)


def mode_options(mode: str) -> dict[str, Any]:
    """The arguments of `shard` for a mode's name."""
    if mode == "prefetch":
        return {"mode": "sar", "prefetch": True}
    return {"mode": "p3", **P3_MODES[mode]} if mode in P3_MODES else {"mode": mode}


@cache
def crooked_sharded(
    num_parts: int,
    method: str,
    mode: str,
    edge_weight: bool = False,
    implementation: str | None = None,
    num_features: int = NUM_FEATURES,
    edges: bool = False,
) -> ShardedGraph:
    """The crooked graph in a mode of `MODES`."""
    graph = crooked_graph(edge_weight=edge_weight, num_features=num_features, edges=edges)
    parts = partition(graph, num_parts, method=method, seed=0)
    mesh, options = make_mesh(num_parts), mode_options(mode)
    return shard(graph, parts, mesh, implementation=implementation, **options)


def oracle_edges(graph: Graph) -> Edges:
    ends = graph.senders, graph.receivers, graph.num_nodes
    return Edges.of(*ends, graph.edge_weight, graph.edges)


def random_params(
    model: models.Model, num_layers: int | None = None, num_features: int = NUM_FEATURES
) -> list[LayerParams]:
    """Parameters in float64, but representable in float32; None: of two convolutions."""
    num_layers = NUM_LAYERS + _linear_maps(model) if num_layers is None else num_layers
    rng = np.random.default_rng(3)
    params = models.init_params(model, num_features, HIDDEN, NUM_CLASSES, num_layers, rng)
    return jax.tree.map(lambda array: array.astype(np.float32).astype(np.float64), params)


def module_of(
    model: models.Model,
    params: Sequence[LayerParams],
    num_features: int = NUM_FEATURES,
    **options: Any,
) -> Stack:
    """The library's model that the oracle's description means, with these parameters."""
    if model.conv == "sage":
        options["reduce"] = model.reduce
    if model.conv in models.ATTENTION:
        options["num_heads"] = model.num_heads
    if model.edge_features:
        options["edge_features"] = model.edge_features
    if model.conv in ("gcn", "gat", "gatv2"):
        options["add_self_loops"] = model.add_self_loops
    module = _CLASSES[model.conv](
        num_features,
        HIDDEN,
        NUM_CLASSES,
        num_layers=len(params) - _linear_maps(model),
        dropout=model.dropout,
        norm=model.norm,
        residual=model.residual,
        activation=_ACTIVATIONS[model.activation],
        jumping=model.jumping,
        rngs=nnx.Rngs(0),
        **options,
    )
    for layer, values in zip(module.layers, params, strict=True):
        for part, arrays in values.items():
            for name, array in arrays.items():
                variable = getattr(getattr(layer, _PARTS[part]), name)
                assert variable.get_value().shape == array.shape, (part, name)
                variable.set_value(jnp.asarray(array, variable.get_value().dtype))
    return module


def _linear_maps(model: models.Model) -> int:
    """Layers of a model that `num_layers` does not count."""
    return 2 if model.conv == "gcnii" else int(model.jumping is not None)


_PARTS = {"conv": "convolution", "residual": "residual", "norm": "norm"}


def by_layer(module: Any, kind: type[nnx.Variable]) -> list[dict[str, dict[str, Any]]]:
    """The variables of a kind under the oracle's names, as float64 arrays."""
    found = []
    for layer in module.layers:
        parts = {}
        for part, attribute in _PARTS.items():
            owner = getattr(layer, attribute)
            variables = {} if owner is None else vars(owner)
            arrays = {
                name: np.asarray(variable.get_value(), np.float64)
                for name, variable in variables.items()
                if isinstance(variable, kind)
            }
            parts |= {part: arrays} if arrays else {}
        found.append(parts)
    return found


def masked_cross_entropy(logits: jax.Array, shard: Any) -> jax.Array:
    """The mean of the cross entropy over the training nodes of the whole graph."""
    mask = shard.train_mask & shard.node_mask
    log_probabilities = jax.nn.log_softmax(jnp.where(shard.node_mask[:, None], logits, 0))
    labels = jnp.maximum(shard.labels, 0)[:, None]
    chosen = jnp.take_along_axis(log_probabilities, labels, axis=1)[:, 0]
    total, count = shard.sum((-jnp.sum(jnp.where(mask, chosen, 0)), jnp.sum(mask)))
    return total / count


def sharded_pass(module: Any, sharded: ShardedGraph, train: bool = True) -> Pass:
    """Loss, gradients and new statistics by the library, in one compiled function."""
    graphdef, params, rest = nnx.split(module, nnx.Param, ...)

    def step(params: Any, rest: Any, shard: Any, key: jax.Array) -> Any:
        def loss_of(params: Any) -> Any:
            model = nnx.merge(graphdef, params, rest, copy=True)
            logits = model(shard, shard.nodes, key=key, train=train)
            return masked_cross_entropy(logits, shard), nnx.state(model, nnx.BatchStat)

        return jax.value_and_grad(loss_of, has_aux=True)(params)

    (loss, statistics), gradients = spmd(step)(params, rest, sharded, jax.random.key(SEED))
    of_gradients = nnx.merge(graphdef, gradients, rest, copy=True)
    nnx.update(of_gradients, statistics)
    running = [layer["norm"] for layer in by_layer(of_gradients, nnx.BatchStat) if layer]
    return Pass(float(loss), by_layer(of_gradients, nnx.Param), running)


def layer_seeds(num_layers: int) -> list[models.LayerSeeds]:
    """The words of the keys that a model draws from `SEED`."""

    def words(key: jax.Array) -> tuple[int, int]:
        first, second = np.asarray(jax.random.key_data(key)).tolist()
        return first, second

    keys = [jax.random.fold_in(jax.random.key(SEED), layer) for layer in range(num_layers)]
    return [
        models.LayerSeeds(words(jax.random.fold_in(key, 0)), words(jax.random.fold_in(key, 1)))
        for key in keys
    ]


def oracle_pass(
    model: models.Model, params: Sequence[LayerParams], graph: Graph, train: bool = True
) -> Pass:
    """The same by the oracle, in float64."""
    # The library has one rate for features and attention.
    model = replace(model, attention_dropout=model.dropout if model.conv in models.ATTENTION else 0)
    labels, mask = np.asarray(graph.labels), np.asarray(graph.train_mask)
    statistics: list[Any] = []

    def loss(params: Any) -> Any:
        logits, new = models.forward(
            model,
            params,
            oracle_edges(graph),
            np.asarray(graph.nodes, np.float64),
            seeds=layer_seeds(len(params)) if train else None,
            statistics=models.init_statistics(params) if model.norm == "batch" else (),
            train=train,
        )
        statistics.extend(new)
        return losses.mean_cross_entropy(logits, labels, mask)

    value, backward = differentiate(loss, list(params))
    return Pass(float(value), backward(1.0)[0], statistics)


def gradient_errors(actual: Pass, expected: Pass) -> dict[str, float]:
    """Relative error in the maximum norm of the loss, each gradient and each running statistic."""
    errors = {"loss": relative_error(actual.loss, expected.loss)}
    for index, (mine, theirs) in enumerate(zip(actual.gradients, expected.gradients, strict=True)):
        mine, theirs = flat(mine), flat(theirs)
        assert mine.keys() == theirs.keys(), f"layer {index}"
        for name, gradient in theirs.items():
            errors[f"{index}/{name}"] = relative_error(mine[name], gradient)
    for index, (mine, theirs) in enumerate(
        zip(actual.statistics, expected.statistics, strict=True)
    ):
        for name, value in theirs.items():
            errors[f"{index}/{name}"] = relative_error(mine[name], value)
    return errors


def flat(layer: LayerParams) -> dict[str, np.ndarray]:
    """The arrays of a layer by "part/name"."""
    return {f"{part}/{name}": array for part, of in layer.items() for name, array in of.items()}


def poisoned(sharded: ShardedGraph) -> ShardedGraph:
    """The same graph with NaN in its padding rows, of which there must be some."""
    shards: Any = sharded.shards
    assert shards.nodes is not None and not bool(shards.node_mask.all())
    nodes = jnp.where(shards.node_mask[..., None], shards.nodes, jnp.nan)
    return replace(sharded, shards=replace(shards, nodes=nodes))
