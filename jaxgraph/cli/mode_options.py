"""The options that say how parts are made for devices: the mode, and all that depends on it."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from jaxgraph.cli.graph_options import GraphOptions
from jaxgraph.cli.limits import Number, OneOf, option_name
from jaxgraph.graph_facts import GraphFacts
from jaxgraph.layout.manifest import MODES, TOPOLOGIES
from jaxgraph.partition import orders

__all__ = ["ModeOptions", "check_features"]

_option = partial(typer.Option, rich_help_panel="Devices")


@dataclass(frozen=True, kw_only=True)
class ModeOptions(GraphOptions):
    """The options of a graph and of the mode in which its parts are trained."""

    mode: Annotated[
        str | None,
        _option(
            help="sar (one remote part at a time), domain (all at once) or p3 (features by "
            "column); sar where not given."
        ),
        OneOf((*MODES, "p3")),
    ] = None
    rest: Annotated[
        str | None,
        _option(help="Mode p3: how layers after the first run, domain or sar."),
        OneOf(MODES),
    ] = None
    topology: Annotated[
        str | None,
        _option(help="Mode p3: edges of the first layer, replicated or pushed."),
        OneOf(TOPOLOGIES),
    ] = None
    chunks: Annotated[
        int | None,
        _option(help="Mode p3: chunks of rows in which activations are reduced."),
        Number(least=1),
    ] = None
    feature_budget: Annotated[
        int | None,
        _option(
            help="Mode p3: bytes of feature columns and edges of the first layer on a device; a "
            "slice for every device where not given.",
        ),
        Number(least=1),
    ] = None
    order: Annotated[
        str | None,
        _option(
            help="Order of nodes in memory, for speed: rcm, degree or metis; as given where not "
            "given."
        ),
        OneOf(orders()),
    ] = None
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--raw",
            rich_help_panel="Model",
            help="Divide each node's features by their sum, or leave them unchanged; as the "
            "recipe of the dataset does where not given.",
        ),
    ] = None

    def __post_init__(self) -> None:
        """Checks the options, alone and together."""
        super().__post_init__()
        for name in ("rest", "topology", "chunks", "feature_budget"):
            if self.mode != "p3" and getattr(self, name) is not None:
                raise ValueError(
                    f"{option_name(name)}: for --mode p3 only; the mode is {self.mode or 'sar'}."
                )


def check_features(mode: str | None, facts: GraphFacts) -> None:
    """Raises ValueError where mode p3 is to split the columns of features that are not there."""
    if mode == "p3" and not facts.num_features:
        raise ValueError(
            f"--mode p3: {facts.name} has no features, whose columns it splits; --degree-features "
            "makes some."
        )
