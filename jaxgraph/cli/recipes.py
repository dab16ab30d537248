"""What a model is trained with where the command line does not say otherwise, and the model."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jaxgraph.graph import Graph

if TYPE_CHECKING:
    from flax import nnx

__all__ = ["RECIPES", "Recipe", "build_model", "recipe"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What one model is made and trained with.

    Args:
        class_name: Its class in `jaxgraph.nn`.
        hidden: Width of the hidden layers, per head where there are heads.
        layers: Number of layers.
        heads: Attention heads, or None where the model has none.
        dropout: Dropout rate.
        norm: "none", "batch" or "layer".
        lr: Step size of Adam.
        weight_decay: Factor of the parameters that is added to their gradient.
    """

    class_name: str
    hidden: int = 64
    layers: int = 2
    heads: int | None = None
    dropout: float = 0.5
    norm: str = "none"
    lr: float = 1e-2
    weight_decay: float = 5e-4


# GCN's and GAT's are those of their papers for citation graphs: Kipf & Welling (2017), section 5.2;
# Velickovic et al. (2018), section 3.3.
RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "gcn": Recipe(class_name="GCN", hidden=16),
        "sage": Recipe(class_name="GraphSAGE"),
        "gat": Recipe(class_name="GAT", hidden=8, heads=8, dropout=0.6, lr=5e-3),
        "gatv2": Recipe(class_name="GATv2", hidden=8, heads=8, dropout=0.6, lr=5e-3),
        "gin": Recipe(class_name="GIN"),
        "deepgcn": Recipe(class_name="DeepGCN", layers=8, norm="batch"),
    }
)


def recipe(model: str) -> Recipe:
    """Returns the defaults of a model.

    Args:
        model: Its name on the command line.

    Returns:
        The recipe.

    Raises:
        ValueError: There is no model of this name.
    """
    if model in RECIPES:
        return RECIPES[model]
    near = difflib.get_close_matches(model.lower(), RECIPES, n=1)
    advice = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"--model: got {model!r}; expected one of {', '.join(RECIPES)}.{advice}")


def build_model(settings: Recipe, graph: Graph, seed: int, dtype: str = "float32") -> "nnx.Module":
    """Makes the model for a graph; one without features gets an embedding of its nodes.

    Args:
        settings: Class, widths and rates.
        graph: The graph, whose features and classes the model fits.
        seed: Of the initial parameters.
        dtype: Name of the type of activations and messages; parameters are float32, or float64 too.

    Returns:
        The model, called as `model(shard, x, key=key, train=train)`.

    Raises:
        ValueError: A size, a rate or a name is not one of those allowed.
    """
    # Imported late, so that the command line answers questions without waiting for jax.
    from flax import nnx

    from jaxgraph import nn

    rngs = nnx.Rngs(seed)
    param_dtype = "float64" if dtype == "float64" else "float32"
    of_attention: dict[str, Any] = {}
    if settings.heads is not None:
        of_attention["num_heads"] = settings.heads
    model = getattr(nn, settings.class_name)(
        graph.num_features or settings.hidden,
        settings.hidden,
        graph.num_classes,
        num_layers=settings.layers,
        dropout=settings.dropout,
        norm=None if settings.norm == "none" else settings.norm,
        dtype=dtype,
        param_dtype=param_dtype,
        rngs=rngs,
        **of_attention,
    )
    if graph.nodes is not None:
        return model
    from jaxgraph.cli.embedded import Embedded

    table = nn.NodeEmbedding(graph.num_nodes, settings.hidden, param_dtype=param_dtype, rngs=rngs)
    return Embedded(table, model)
