"""The options that choose a model and its sizes."""

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, Any

import typer

from jaxgraph.cli.limits import Number, OneOf
from jaxgraph.cli.recipes import MODELS, Recipe, recipe

__all__ = ["NORMS", "ModelOptions", "check_heads", "chosen_recipe"]

# The library's own list is in a module that imports jax.
NORMS = ("none", "batch", "layer")

_option = partial(typer.Option, rich_help_panel="Model")


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The options of a model; None leaves the choice to the recipe."""

    model: Annotated[str, _option(help=f"One of {', '.join(MODELS)}."), OneOf(tuple(MODELS))] = (
        "gcn"
    )
    hidden: Annotated[
        int | None, _option(help="Width of hidden layers, per head."), Number(least=1)
    ] = None
    layers: Annotated[
        int | None, _option(help="Number of layers."), Number(least=1, below=1001)
    ] = None
    heads: Annotated[int | None, _option(help="Attention heads."), Number(least=1)] = None
    norm: Annotated[str | None, _option(help="none, batch or layer."), OneOf(NORMS)] = None


def check_heads(options: ModelOptions, dataset: str | None) -> None:
    """Raises ValueError where heads are asked of a model without attention."""
    if options.heads is not None and recipe(dataset or "", options.model).heads is None:
        raise ValueError(f"--heads: {options.model} has no attention heads.")


def chosen_recipe(options: Any, dataset: str | None) -> tuple[Recipe, list[str]]:
    """Returns the recipe with the values of options, and the names of the settings they gave."""
    given = {
        field.name: value
        for field in fields(Recipe)
        if (value := getattr(options, field.name, None)) is not None
    }
    settings = replace(recipe(dataset or "", given.pop("model")), **given)
    if options.degree_features and "normalize" not in given:
        # One feature per node, which division by its sum would make 1.
        settings = replace(settings, normalize=False)
    return settings, list(given)
