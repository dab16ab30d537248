"""The options that several commands share."""

import os
from dataclasses import dataclass
from pathlib import Path

from jaxgraph.cli.command import Options, count, of_device, of_generator, of_graph, of_model
from jaxgraph.cli.recipes import MODELS
from jaxgraph.layout.manifest import MODES, TOPOLOGIES
from jaxgraph.partition import orders
from jaxgraph.partition.registry import costless_methods
from jaxgraph.seeds import NUM_SEEDS

PARTITIONERS = costless_methods()
STEP_TIMEOUT = (
    "Seconds after which a process without a sign of life, or without progress in an epoch, ends "
    "the run; compilation does not count."
)
# The library's own list is in a module that imports jax.
_NORMS = ("none", "batch", "layer")


@dataclass(frozen=True, kw_only=True)
class GraphOptions(Options):
    """The options that choose a graph, to read or to generate, and prepare it for use."""

    dataset: str | None = of_graph(
        "Name of a dataset, see `jaxgraph datasets`; or a file: .csv, .tsv, .txt, .mtx, .graph, "
        ".parquet, .npy, .npz."
    )
    data_dir: Path | None = of_graph("Folder of the data; not needed for built-in sets.")
    seed: int = of_graph(
        "Seed of a split that is drawn, the partition, the initial parameters and dropout.",
        0,
        least=0,
        most=NUM_SEEDS - 1,
    )
    undirected: bool = of_graph("Add the reverse of every edge.", False)
    degree_features: bool = of_graph("Use log(1 + degree) as features.", False)
    ignore_edge_data: bool = of_graph("Drop weights, features and types of edges.", False)
    labels_per_class: int | None = of_graph("Draw so many training nodes per class.", least=1)
    val_per_class: int = of_graph("Validation nodes per class that are then drawn.", 30, least=1)
    weight_column: str | None = of_graph("File: column of weights, by name or number, or none.")
    relabel: bool | None = of_graph(
        "File: renumber ids, or use them as rows. Names are always renumbered.",
        names=["--relabel/--no-relabel"],
    )
    option: list[str] | None = of_graph("NAME=VALUE, another option of the dataset; repeatable.")
    num_nodes: int | None = of_generator("Nodes, as 2000 or 2e3.", parser=count, least=1)
    num_classes: int | None = of_generator("Classes, or communities.", parser=count, least=1)
    num_features: int | None = of_generator("Features of a node.", parser=count, least=0)
    degree: float | None = of_generator("Mean degree.", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        folder = None if self.data_dir is None else self.data_dir.expanduser()
        if folder is not None and not (folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)):
            raise ValueError(f"--data-dir: {self.data_dir} is no folder that you may read.")


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """The options of a model; None leaves the choice to the recipe."""

    model: str = of_model("Model", "gcn", choices=tuple(MODELS))
    hidden: int | None = of_model("Width of hidden layers, per head.", least=1)
    layers: int | None = of_model("Number of layers.", least=1, most=1000)
    heads: int | None = of_model("Attention heads.", least=1)
    norm: str | None = of_model("Norm", choices=_NORMS)


@dataclass(frozen=True, kw_only=True)
class PartsOptions(GraphOptions):
    """The options of a graph, and of the mode in which its parts are trained."""

    mode: str | None = of_device("How parts read rows of others", choices=(*MODES, "p3"))
    rest: str | None = of_device("Mode p3: mode of layers after the first", choices=MODES)
    topology: str | None = of_device("Mode p3: edges of the first layer", choices=TOPOLOGIES)
    chunks: int | None = of_device("Mode p3: chunks of the first layer's activations.", least=1)
    order: str | None = of_device("Order of nodes in memory, for speed", choices=orders())
    normalize: bool | None = of_model(
        "Divide each node's features by their sum, or not; by the recipe where not given.",
        names=["--normalize/--raw"],
    )
