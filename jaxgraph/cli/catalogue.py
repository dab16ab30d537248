"""`jaxgraph datasets`: the names that `--dataset` accepts."""

from dataclasses import dataclass

import typer

from jaxgraph import datasets

__all__ = ["CatalogueOptions", "run_catalogue"]


@dataclass(frozen=True, kw_only=True)
class CatalogueOptions:
    """`jaxgraph datasets` has no options of its own."""


def run_catalogue(options: CatalogueOptions) -> None:
    """List the names of the datasets, one per line."""
    for name in datasets.names():
        typer.echo(name)
