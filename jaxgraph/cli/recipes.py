"""Recipes: the settings of a model and its training on a data set, which options override."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jaxgraph import transforms
from jaxgraph.datasets import gnn_benchmark, ogb, planetoid
from jaxgraph.graph import Graph
from jaxgraph.graph_facts import GraphFacts

if TYPE_CHECKING:
    from flax import nnx

__all__ = ["MODELS", "Recipe", "build_layers", "build_model", "prepared", "recipe"]

MODELS: Mapping[str, str] = MappingProxyType(
    {
        "gcn": "GCN",
        "sage": "GraphSAGE",
        "gat": "GAT",
        "gatv2": "GATv2",
        "gin": "GIN",
        "gine": "GINE",
        "deepgcn": "DeepGCN",
        "transformer": "Transformer",
        "appnp": "APPNP",
        "gcnii": "GCNII",
        "pna": "PNA",
    }
)
"""The models of the command line: their classes in `jaxgraph.nn` by name."""

_READ_EDGES = ("gat", "gatv2", "gine")
"""Those that read features of edges where the graph has some; the last one needs them."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of one model and its training on one data set.

    Args:
        source: The publication of the numbers, and the differences from it.
        model: Its name on the command line.
        normalize: Whether each node's features are divided by their sum.
        hidden: Width of the hidden layers, per head where there are heads.
        layers: Number of layers.
        heads: Attention heads, or None where the model has none.
        dropout: Dropout rate.
        norm: "none", "batch" or "layer".
        lr: Step size of Adam.
        weight_decay: Factor of the parameters that is added to their gradient.
        epochs: Passes over the graph, at most.
        patience: Epochs without a lower validation loss after which training stops; 0: never.
    """

    source: str
    model: str
    normalize: bool = False
    hidden: int = 64
    layers: int = 2
    heads: int | None = None
    dropout: float = 0.5
    norm: str = "none"
    lr: float = 1e-2
    weight_decay: float = 5e-4
    epochs: int = 200
    patience: int = 0


def _family(gcn: Recipe, sage: Recipe, gat: Recipe, *others: Recipe) -> Mapping[str, Recipe]:
    """The recipes of a family of data sets, by model; models without one take a relative's."""
    recipes = {
        "gcn": gcn,
        "sage": sage,
        "gat": gat,
        "gatv2": _adapted(gat, "gatv2"),
        "gin": _adapted(sage, "gin"),
        "gine": _adapted(sage, "gine"),
        "deepgcn": _adapted(gcn, "deepgcn", layers=8, hidden=64, norm="batch"),
        "transformer": _adapted(gat, "transformer"),
        "appnp": _adapted(gcn, "appnp", hidden=64),
        "gcnii": _adapted(gcn, "gcnii", layers=16, hidden=64),
        "pna": _adapted(gcn, "pna", hidden=64),
    } | {recipe.model: recipe for recipe in others}
    return MappingProxyType(recipes)


def _adapted(recipe: Recipe, model: str, **changes: Any) -> Recipe:
    source = f"none published for {MODELS[model]}; that of {MODELS[recipe.model]}: {recipe.source}"
    return replace(recipe, model=model, source=source, **changes)


_GCN = Recipe(
    model="gcn",
    source="Kipf and Welling (2017), section 5.2, with weight decay of all layers as in PyG's "
    "benchmark/citation/gcn.py, and without early stopping",
    normalize=True,
    hidden=16,
)
_GAT = Recipe(
    model="gat",
    source="Velickovic et al. (2018), section 3.3, but for the output layer, which averages 8 "
    "heads on all data sets",
    normalize=True,
    hidden=8,
    heads=8,
    dropout=0.6,
    lr=5e-3,
    epochs=1000,
    patience=100,
)
_APPNP = Recipe(
    model="appnp",
    source="Gasteiger et al. (2019), section 5, with weight decay of all layers as in PyG's "
    "benchmark/citation/appnp.py",
    normalize=True,
)
_GCNII = Recipe(
    model="gcnii",
    source="Chen et al. (2020), table 8, Cora, where weight decay is 0.01 for the convolutions",
    normalize=True,
    layers=64,
    dropout=0.6,
    epochs=1500,
    patience=100,
)
_CITATION = _family(_GCN, _adapted(_GCN, "sage", hidden=64), _GAT, _APPNP, _GCNII)
_PUBMED = _family(
    _GCN,
    _adapted(_GCN, "sage", hidden=64),
    replace(
        _GAT, source="Velickovic et al. (2018), section 3.3, Pubmed", lr=1e-2, weight_decay=1e-3
    ),
    _APPNP,
    replace(
        _GCNII,
        source="Chen et al. (2020), table 8, Pubmed, with lambda 0.5 for 0.4",
        hidden=256,
        layers=16,
        dropout=0.5,
    ),
)

_ARXIV = Recipe(
    model="gcn",
    source="Hu et al. (2020), github.com/snap-stanford/ogb, examples/nodeproppred/arxiv/gnn.py, "
    "where features are not dropped and edges made undirected (--undirected)",
    hidden=256,
    layers=3,
    norm="batch",
    weight_decay=0.0,
    epochs=500,
)
_PRODUCTS = Recipe(
    model="gcn",
    source="Hu et al. (2020), github.com/snap-stanford/ogb, "
    "examples/nodeproppred/products/gnn.py, where features are not dropped",
    hidden=256,
    layers=3,
    weight_decay=0.0,
    epochs=300,
)
_PROTEINS = replace(
    _PRODUCTS,
    source="Hu et al. (2020), github.com/snap-stanford/ogb, examples/nodeproppred/proteins/gnn.py, "
    "where features are means of the edges'",
    dropout=0.0,
    epochs=1000,
)


_PAPERS = replace(_ARXIV, source=f"none published for ogbn-papers100m; {_ARXIV.source}")


def _of_ogb(gcn: Recipe) -> Mapping[str, Recipe]:
    sage = replace(gcn, model="sage")
    return _family(gcn, sage, _adapted(gcn, "gat", hidden=32, heads=8))


_CONFIG = "Shchur et al. (2018), github.com/shchur/gnn-benchmark, config/{}.conf.yaml, "
_SHCHUR_GCN = Recipe(
    model="gcn",
    source=_CONFIG.format("optimized/gcn") + "with weight decay of all layers",
    dropout=0.8,
    weight_decay=1e-3,
    epochs=1000,
    patience=50,
)
_SHCHUR = _family(
    _SHCHUR_GCN,
    Recipe(
        model="sage",
        source=_CONFIG.format("reference/graphsage_mean")
        + "with 64 hidden features for 16, weight decay of all layers, and outputs not normalised",
        epochs=1000,
        patience=50,
    ),
    Recipe(
        model="gat",
        source=_CONFIG.format("reference/gat") + "but for the output layer, which averages 8 heads",
        hidden=8,
        heads=8,
        dropout=0.6,
        epochs=1000,
        patience=50,
    ),
)

_PUBLISHED: Mapping[str, Mapping[str, Recipe]] = MappingProxyType(
    {
        **dict.fromkeys(planetoid.NAMES, _CITATION),
        "pubmed": _PUBMED,
        **dict.fromkeys(gnn_benchmark.NAMES, _SHCHUR),
        **dict.fromkeys(ogb.NAMES, _of_ogb(_PAPERS)),
        "ogbn-arxiv": _of_ogb(_ARXIV),
        "ogbn-products": _of_ogb(_PRODUCTS),
        "ogbn-proteins": _of_ogb(_PROTEINS),
    }
)
_GENERAL = MappingProxyType(
    {
        model: replace(
            recipe,
            source="none published for this graph; that of the citation graphs, of width 64, of at "
            "most 16 layers and with features as they are",
            normalize=False,
            layers=min(recipe.layers, 16),
            hidden=recipe.hidden if recipe.heads else 64,
        )
        for model, recipe in _CITATION.items()
    }
)


def recipe(dataset: str, model: str) -> Recipe:
    """Returns the recipe of a model on a data set; without a published one, a general one.

    Args:
        dataset: A name that `jaxgraph.datasets.load` accepts.
        model: Its name on the command line.

    Returns:
        The recipe.

    Raises:
        ValueError: There is no model of this name.
    """
    if model not in MODELS:
        near = difflib.get_close_matches(model.lower(), MODELS, n=1)
        advice = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"--model: got {model!r}; expected one of {', '.join(MODELS)}.{advice}")
    return _PUBLISHED.get(dataset.lower().replace("_", "-"), _GENERAL)[model]


def prepared(settings: Recipe, graph: Graph) -> Graph:
    """Returns the graph with its features prepared as the recipe says.

    Args:
        settings: The recipe.
        graph: The graph as read.

    Returns:
        The graph; unchanged without features, since its nodes get an embedding.
    """
    if graph.nodes is None or not settings.normalize:
        return graph
    return transforms.normalize_features(graph)


def build_model(
    settings: Recipe, graph: GraphFacts, seed: int, dtype: str = "float32"
) -> "nnx.Module":
    """Makes the model for a graph; one without features gets an embedding of its nodes.

    Args:
        settings: Class, widths and rates.
        graph: Facts of the graph, whose features and classes the model fits.
        seed: Seed of the initial parameters.
        dtype: Name of the type of activations and messages; parameters are float32, or float64 too.

    Returns:
        The model, called as `model(shard, x, key=key, train=train)`.

    Raises:
        ValueError: A size, a rate or a name is not one of those allowed, or the model needs
            features of edges, and the graph has none.
    """
    if settings.model == "gine" and not graph.edge_features:
        raise ValueError(
            f"--model: gine reads features of edges, and {graph.name or 'the graph'} has none; "
            "expected a graph that has, or --model gin."
        )
    # Imported late, so that the command line answers questions without waiting for jax.
    from flax import nnx

    rngs, features = nnx.Rngs(seed), graph.num_features or settings.hidden
    of_graph: dict[str, Any] = {}
    if settings.model in _READ_EDGES and graph.edge_features:
        of_graph["edge_features"] = graph.edge_features
    if settings.model == "pna":
        if not graph.mean_log_degree:
            raise ValueError("--model: pna scales by log(d + 1) of its degrees; there is no edge.")
        of_graph["delta"] = graph.mean_log_degree
    model = build_layers(settings, features, graph.num_classes, rngs, dtype, **of_graph)
    if graph.num_features:
        return model
    from jaxgraph import nn
    from jaxgraph.cli.embedded import Embedded

    param_dtype = _param_dtype(dtype)
    table = nn.NodeEmbedding(graph.num_nodes, settings.hidden, param_dtype=param_dtype, rngs=rngs)
    return Embedded(table, model)


def build_layers(
    settings: Recipe,
    num_features: int,
    num_classes: int,
    rngs: "nnx.Rngs",
    dtype: str = "float32",
    **of_graph: Any,
) -> "nnx.Module":
    """Makes the model for a number of features and of classes.

    Args:
        settings: Class, widths and rates.
        num_features: Columns of its input.
        num_classes: Columns of its output.
        rngs: Source of the initial parameters.
        dtype: As for `build_model`.
        **of_graph: Arguments of the model that follow from the graph, such as PNA's `delta`.

    Returns:
        The model.

    Raises:
        ValueError: A size, a rate or a name is not one of those allowed.
    """
    from jaxgraph import nn

    of_model = dict(of_graph)
    if settings.heads is not None:
        of_model["num_heads"] = settings.heads
    return getattr(nn, MODELS[settings.model])(
        num_features,
        settings.hidden,
        num_classes,
        num_layers=settings.layers,
        dropout=settings.dropout,
        norm=None if settings.norm == "none" else settings.norm,
        dtype=dtype,
        param_dtype=_param_dtype(dtype),
        rngs=rngs,
        **of_model,
    )


def _param_dtype(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"
