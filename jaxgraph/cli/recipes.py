"""Recipes: the settings of a model and its training on a data set, which options override."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jaxgraph import transforms
from jaxgraph.datasets import gnn_benchmark, ogb, planetoid
from jaxgraph.graph import Graph
from jaxgraph.graph_facts import GraphFacts
from jaxgraph.partition.choices import checked_choice

if TYPE_CHECKING:
    import optax
    from flax import nnx

_OF_THEIR_NAME = ("GAT", "GATv2", "GIN", "GINE", "DeepGCN", "Transformer", "APPNP", "GCNII", "PNA")
MODELS: Mapping[str, str] = MappingProxyType(
    {"gcn": "GCN", "sage": "GraphSAGE", "rgcn": "RGCN"}
    | {name.lower(): name for name in _OF_THEIR_NAME}
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
        norm: "none", "batch", "layer" or "restricted-batch".
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


_Table = Mapping[str, Mapping[str, Any]]
_DECAY = "with weight decay of all layers"
_AVERAGED = "but for the output layer, which averages 8 heads"
_GAT = {"hidden": 8, "heads": 8, "dropout": 0.6, "epochs": 1000}

_CITATION: _Table = {
    "gcn": dict(source=f"Kipf and Welling (2017), section 5.2, {_DECAY}", hidden=16),
    "gat": dict(
        _GAT, source=f"Velickovic et al. (2018), section 3.3, {_AVERAGED}", lr=5e-3, patience=100
    ),
    "appnp": dict(source=f"Gasteiger et al. (2019), section 5, {_DECAY}"),
    "gcnii": dict(
        source="Chen et al. (2020), table 8, Cora, but weight decay is 0.01 for convolutions",
        **{"layers": 64, "dropout": 0.6, "epochs": 1500, "patience": 100},
    ),
}
_PUBMED: _Table = _CITATION | {
    "gat": dict(_CITATION["gat"], lr=1e-2, weight_decay=1e-3),
    "gcnii": dict(
        source="Chen et al. (2020), table 8, Pubmed, with lambda 0.5 for 0.4",
        **{"layers": 16, "hidden": 256, "epochs": 1500, "patience": 100},
    ),
}
_NONE = "none published for this graph; that of the citation graphs, with features as they are"
_GENERAL: _Table = {
    "gcn": dict(source=_NONE),
    "gat": dict(_CITATION["gat"], source=_NONE),
    "gcnii": dict(_CITATION["gcnii"], source=_NONE, layers=16),
}
_SHCHUR_SOURCE = f"Shchur et al. (2018), github.com/shchur/gnn-benchmark, {_DECAY}"
_SHCHUR: _Table = {
    "gcn": dict(source=_SHCHUR_SOURCE, dropout=0.8, weight_decay=1e-3, epochs=1000, patience=50),
    "sage": dict(
        source=f"{_SHCHUR_SOURCE}, 64 hidden features for 16, and outputs not normalised",
        epochs=1000,
        patience=50,
    ),
    "gat": dict(_GAT, source=f"{_SHCHUR_SOURCE}, {_AVERAGED}", patience=50),
}


def _of_ogb(name: str, difference: str, **settings: Any) -> _Table:
    source = f"Hu et al. (2020), github.com/snap-stanford/ogb, {name}/gnn.py, where {difference}"
    wide = dict(source=source, hidden=256, layers=3, weight_decay=0.0, **settings)
    return {"gcn": wide, "sage": wide}


_ARXIV = _of_ogb("arxiv", "edges are made undirected (--undirected)", norm="batch", epochs=500)
_AIFB: _Table = _GENERAL | {
    "rgcn": dict(
        source="Schlichtkrull et al. (2018), section 5.1, with 64 learned features of each node "
        "for rows of matrices, and 64 hidden features for 16",
        **{"hidden": 64, "dropout": 0.0, "weight_decay": 0.0, "epochs": 50},
    )
}
_PUBLISHED: Mapping[str, _Table] = {
    "aifb": _AIFB,
    **dict.fromkeys(planetoid.NAMES, _CITATION),
    "pubmed": _PUBMED,
    **dict.fromkeys(gnn_benchmark.NAMES, _SHCHUR),
    **dict.fromkeys(ogb.NAMES, _ARXIV),
    "ogbn-products": _of_ogb("products", "features are kept", epochs=300),
    "ogbn-proteins": _of_ogb(
        "proteins", "features are means of the edges'", dropout=0.0, epochs=1000
    ),
}

_RELATIVES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "sage": ("gcn", {"hidden": 64}),
    "gat": ("gcn", {"hidden": 32, "heads": 8}),
    "gatv2": ("gat", {}),
    "rgcn": ("gcn", {"hidden": 64}),
    "gin": ("sage", {}),
    "gine": ("sage", {}),
    "deepgcn": ("gcn", {"layers": 8, "hidden": 64, "norm": "batch"}),
    "transformer": ("gat", {}),
    "appnp": ("gcn", {"hidden": 64}),
    "gcnii": ("gcn", {"layers": 16, "hidden": 64}),
    "pna": ("gcn", {"hidden": 64}),
}
"""The relative whose numbers a model takes where none are published, and its own of them."""


def recipe(dataset: str, model: str) -> Recipe:
    """Returns the recipe of a model on a data set; without a published one, a general one."""
    checked_choice("--model", model, tuple(MODELS))
    name = dataset.lower().replace("_", "-")
    found = _published(_PUBLISHED.get(name, _GENERAL), model)
    return replace(found, normalize=name in planetoid.NAMES)


def _published(table: _Table, model: str) -> Recipe:
    if model in table:
        return Recipe(model=model, **table[model])
    relative, own = _RELATIVES[model]
    found = _published(table, relative)
    source = f"none published for {MODELS[model]}; that of {MODELS[relative]}: {found.source}"
    return replace(found, model=model, source=source, **own)


def chosen_recipe(options: Any, dataset: str) -> Recipe:
    """Returns the recipe with the values of options."""
    given = {
        field.name: value
        for field in fields(Recipe)
        if (value := getattr(options, field.name, None)) is not None
    }
    settings = recipe(dataset, given.pop("model"))
    if "heads" in given and settings.heads is None:
        raise ValueError(f"--heads: {settings.model} has no attention heads.")
    if options.degree_features:
        # One feature per node, which division by its sum would make 1.
        settings = replace(settings, normalize=False)
    return replace(settings, **given)


def prepared(settings: Recipe, graph: Graph) -> Graph:
    """Returns the graph with its features prepared as the recipe says; unchanged without any."""
    if graph.nodes is None or not settings.normalize:
        return graph
    return transforms.normalize_features(graph)


def build_model(
    settings: Recipe, graph: GraphFacts, seed: int, dtype: str = "float32"
) -> "nnx.Module":
    """Makes the model for a graph; one without features gets an embedding of its nodes."""
    # Imported late, so that the command line answers questions without waiting for jax.
    from flax import nnx

    from jaxgraph import nn

    if settings.model == "gine" and not graph.edge_features:
        raise ValueError(
            f"--model: gine reads features of edges, and {graph.name or 'the graph'} has none; "
            "expected a graph that has, or --model gin."
        )
    of_graph: dict[str, Any] = {}
    if settings.heads is not None:
        of_graph["num_heads"] = settings.heads
    if settings.model in _READ_EDGES and graph.edge_features:
        of_graph["edge_features"] = graph.edge_features
    if settings.model == "rgcn":
        if not graph.num_edge_types:
            raise ValueError(
                f"--model: rgcn has a matrix for each edge type, and {graph.name or 'the graph'} "
                "has none; expected a graph whose edges have types."
            )
        of_graph["num_types"] = graph.num_edge_types
    if settings.model == "pna":
        if not graph.mean_log_degree:
            raise ValueError("--model: pna scales by log(d + 1) of its degrees; there is no edge.")
        of_graph["delta"] = graph.mean_log_degree
    rngs, hidden = nnx.Rngs(seed), settings.hidden
    param_dtype = "float64" if dtype == "float64" else "float32"
    model = getattr(nn, MODELS[settings.model])(
        graph.num_features or hidden,
        hidden,
        graph.num_classes,
        num_layers=settings.layers,
        dropout=settings.dropout,
        norm=None if settings.norm == "none" else settings.norm,
        dtype=dtype,
        param_dtype=param_dtype,
        rngs=rngs,
        **of_graph,
    )
    if graph.num_features:
        return model
    from jaxgraph.cli.embedded import Embedded

    rows = nn.NodeEmbedding(graph.num_nodes, hidden, param_dtype=param_dtype, rngs=rngs)
    return Embedded(rows, model)


def optimizer_of(settings: Recipe) -> "optax.GradientTransformation":
    """Returns Adam with the L2 penalty of a recipe."""
    import optax

    decay = optax.add_decayed_weights(settings.weight_decay)
    return optax.chain(decay, optax.adam(settings.lr))
