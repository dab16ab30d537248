"""The options that several commands share."""

import os
from dataclasses import dataclass
from pathlib import Path

from jaxgraph.cli.option import Options, count, option
from jaxgraph.cli.recipes import MODELS
from jaxgraph.layout.manifest import MODES, TOPOLOGIES
from jaxgraph.partition import orders
from jaxgraph.partition.registry import costless_methods
from jaxgraph.seeds import NUM_SEEDS

__all__ = [
    "DATASET",
    "PARTITIONERS",
    "STEP_TIMEOUT",
    "GraphOptions",
    "ModelOptions",
    "PartsOptions",
]

PARTITIONERS = costless_methods()
DATASET = (
    "Name of a dataset; `jaxgraph datasets` lists them; or a file: .csv, .tsv, .txt, .mtx, .graph, "
    ".parquet, .npy, .npz."
)
STEP_TIMEOUT = (
    "Seconds after which a process without a sign of life, or without progress in an epoch, ends "
    "the run; compilation does not count."
)
# The library's own list is in a module that imports jax.
_NORMS = ("none", "batch", "layer")
_P3 = ("rest", "topology", "chunks")


@dataclass(frozen=True, kw_only=True)
class GraphOptions(Options):
    """The options that choose a graph, to read or to generate, and prepare it for use."""

    dataset: str | None = option("Graph", DATASET)
    data_dir: Path | None = option("Graph", "Folder of the data; not needed for built-in sets.")
    seed: int = option(
        "Graph",
        "Seed of the split, where the dataset has none of its own, of the partition, of the "
        "initial parameters and of dropout.",
        0,
        least=0,
        below=NUM_SEEDS,
    )
    undirected: bool = option("Graph", "Add the reverse of every edge.", False)
    degree_features: bool = option("Graph", "Use log(1 + degree) as features.", False)
    ignore_edge_data: bool = option(
        "Graph",
        "Drop weights, features and types of edges. Else gcn, sage and gin use weights; gat, gatv2 "
        "and gine features; and a model refuses what it does not use.",
        False,
    )
    labels_per_class: int | None = option(
        "Graph", "Draw a split with so many training nodes per class.", least=1
    )
    val_per_class: int = option(
        "Graph", "Validation nodes per class of the drawn split.", 30, least=1
    )
    weight_column: str | None = option(
        "Graph", "File: name or number (from 0) of the column of weights, or none."
    )
    relabel: bool | None = option(
        "Graph",
        "File: renumber ids, or use them as rows. Names are always renumbered.",
        names=["--relabel/--no-relabel"],
    )
    num_nodes: int | None = option(
        "Generated graphs", "Nodes, as 2000 or 2e3.", parser=count, least=1
    )
    num_classes: int | None = option(
        "Generated graphs", "Classes, or communities.", parser=count, least=1
    )
    num_features: int | None = option(
        "Generated graphs", "Features of a node.", parser=count, least=0
    )
    degree: float | None = option("Generated graphs", "Mean degree.", least=0)
    option: list[str] = option(  # Last, since it hides the function.
        "Graph", "NAME=VALUE, another option of the dataset, as split_seed=1; repeatable.", []
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        folder = None if self.data_dir is None else self.data_dir.expanduser()
        if folder is not None and not (folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)):
            raise ValueError(f"--data-dir: {self.data_dir} is no folder that you may read.")


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """The options of a model; None leaves the choice to the recipe."""

    model: str = option("Model", "Model", "gcn", choices=tuple(MODELS))
    hidden: int | None = option("Model", "Width of hidden layers, per head.", least=1)
    layers: int | None = option("Model", "Number of layers.", least=1, below=1001)
    heads: int | None = option("Model", "Attention heads.", least=1)
    norm: str | None = option("Model", "Norm", choices=_NORMS)


@dataclass(frozen=True, kw_only=True)
class PartsOptions(GraphOptions):
    """The options of a graph, and of the mode in which its parts are trained."""

    mode: str | None = option(
        "Devices",
        "One remote part at a time, all at once, or features by column; sar where not given",
        choices=(*MODES, "p3"),
    )
    rest: str | None = option("Devices", "Mode p3: how layers after the first run", choices=MODES)
    topology: str | None = option(
        "Devices", "Mode p3: edges of the first layer", choices=TOPOLOGIES
    )
    chunks: int | None = option(
        "Devices", "Mode p3: chunks of rows in which activations are reduced.", least=1
    )
    order: str | None = option(
        "Devices", "Order of nodes in memory, for speed; as given where not given", choices=orders()
    )
    normalize: bool | None = option(
        "Model",
        "Divide each node's features by their sum, or leave them unchanged; as the recipe of the "
        "dataset does where not given.",
        names=["--normalize/--raw"],
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode != "p3":
            self.refuse(_P3, f"for --mode p3 only; the mode is {self.mode or 'sar'}.")
