"""The options of a graph that is cut into parts without being read into memory."""

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxgraph import byte_amounts
from jaxgraph.cli.graph_options import GraphOptions, named_value, weights_of
from jaxgraph.cli.limits import option_name
from jaxgraph.cli.mode_options import ModeOptions
from jaxgraph.cli.recipes import recipe
from jaxgraph.datasets import ogb
from jaxgraph.datasets.files import data_folder
from jaxgraph.external import Request
from jaxgraph.external.request import METHODS

__all__ = ["LargeOptions", "request_of"]

_option = partial(typer.Option, rich_help_panel="Graphs larger than memory")
_READ = ("separator", "header", "counts", "columns", "num_nodes", "name", "split", "undirected")
"""Options of readers that apply, as values of `--option`."""
_UNUSED = ("labels_per_class", "num_classes", "num_features", "degree", "order")


@dataclass(frozen=True, kw_only=True)
class LargeOptions(ModeOptions):
    """The options of a graph, and of cutting it in bounded memory."""

    memory_limit: Annotated[
        str | None,
        _option(
            help="Cut a file of edges (.csv, .csv.gz, .tsv, .txt, .parquet, .npy) or an OGB folder "
            "without reading it into memory; the process takes at most so much, as 2GB. A run that "
            "is killed continues where it was."
        ),
    ] = None
    assignment: Annotated[
        Path | None, _option(help="File .npy of the part of each node, for --method given.")
    ] = None
    node_data: Annotated[
        Path | None,
        _option(
            help="Folder of nodes.npy (features), labels.npy, train_mask.npy, val_mask.npy, "
            "test_mask.npy; and ids.npy, the id of each row, where ids are names."
        ),
    ] = None

    def __post_init__(self) -> None:
        """Checks the options, alone and together."""
        super().__post_init__()
        if self.memory_limit is None:
            for name in ("assignment", "node_data"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{option_name(name)}: for a graph that is not read into memory; add "
                        "--memory-limit, as 2GB."
                    )
            return
        byte_amounts.bytes_of("--memory-limit", self.memory_limit)
        defaults = {field.name: field.default for field in fields(GraphOptions)}
        for name in _UNUSED:
            if getattr(self, name) != defaults.get(name):
                raise ValueError(
                    f"{option_name(name)}: needs the graph in memory; leave it or --memory-limit "
                    "out."
                )


def request_of(options: Any) -> Request:
    """Makes the request that the options of `jaxgraph partition --memory-limit` stand for.

    Args:
        options: `LargeOptions` with `parts` and `method`.

    Returns:
        The request.

    Raises:
        ValueError: An option does not apply to a graph that is not read into memory.
    """
    if options.method not in METHODS:
        raise ValueError(
            f"--method: {options.method} needs the graph in memory; take one of "
            f"{', '.join(METHODS)}, or leave --memory-limit out."
        )
    given: dict[str, Any] = {"num_nodes": options.num_nodes}
    for name, value in map(named_value, options.option):
        if name not in _READ:
            raise ValueError(
                f"--option: {name} does not apply with --memory-limit; known: {', '.join(_READ)}."
            )
        given[name] = value
    source, graph_name, one_direction = _source(options)
    # All models of a data set prepare its features alike.
    prepares = not options.degree_features and recipe(options.dataset, "gcn").normalize
    given.setdefault("name", graph_name)
    undirected = given.pop("undirected", None)
    undirected = one_direction if undirected is None else undirected
    return Request(
        source=source,
        num_parts=options.parts,
        method=options.method,
        assignment=options.assignment,
        seed=options.seed,
        mode=options.mode or "sar",
        node_data=options.node_data,
        undirected=bool(undirected) or options.undirected,
        degree_features=options.degree_features,
        normalize=prepares if options.normalize is None else options.normalize,
        ignore_edge_data=options.ignore_edge_data,
        weights=weights_of(options.weight_column),
        relabel=options.relabel,
        **given,
    )


def _source(options: Any) -> tuple[Path, str | None, bool]:
    """The files of the edges, the name of the graph, and whether edges have one direction only."""
    known = options.dataset.lower().replace("_", "-")
    if known in ogb.NAMES:
        path, one_direction = ogb.find_ogb(known, data_folder(options.data_dir))
        return path, known, one_direction
    folder = Path() if options.data_dir is None else options.data_dir.expanduser()
    path = folder / options.dataset
    if not path.exists():
        raise ValueError(
            f"--dataset: there is no file or folder {path}; with --memory-limit expected a file of "
            f"edges, a folder of OGB, or one of {', '.join(ogb.NAMES)}."
        )
    return path, None, False
