"""The options of `jaxgraph train`, and those that several commands share."""

import os
import re
from dataclasses import dataclass, fields
from pathlib import Path

from jaxgraph.byte_amounts import bytes_of
from jaxgraph.cli.command import (
    Options,
    count,
    of_batches,
    of_device,
    of_generator,
    of_graph,
    of_model,
    of_process,
    of_training,
)
from jaxgraph.cli.recipes import MODELS
from jaxgraph.cli.sampling import fanouts_of
from jaxgraph.layout.manifest import MODES, TOPOLOGIES
from jaxgraph.partition import orders
from jaxgraph.partition.registry import costless_methods
from jaxgraph.seeds import NUM_SEEDS

PARTITIONERS = costless_methods()
STEP_TIMEOUT = (
    "Seconds after which a process without a sign of life, or without progress in an epoch, ends "
    "the run; compilation does not count."
)
# The library's own lists are in modules that import jax.
_NORMS = ("none", "batch", "layer", "restricted-batch")
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_LARGEST_PORT = 65_535


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
    node_data: Path | None = of_graph(
        "File: table of its nodes (.csv, .tsv, .parquet) with the columns id, label, perhaps split "
        "(train, val, test), and features, numbers or texts."
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
class SampleOptions(ModelOptions):
    """The options of a model, and of the mini-batches that it is trained on."""

    sample: str | None = of_batches(
        "Train on samples, instead of on the whole graph in each step: the most neighbours that a "
        "node reads in each layer, the first layer first, as 15,10,5; -1 is all."
    )
    batch_size: int = of_batches(
        "Training nodes of a step, of all devices together.", 1024, least=1
    )
    sample_method: str = of_batches(
        "Neighbours of each node by itself, or many of them shared",
        "neighbors",
        choices=("neighbors", "labor"),
    )

    def is_sampled(self, *more: str) -> bool:
        """Checks the options of mini-batches, of which some commands have `more`."""
        if self.sample is None:
            self.refuse(
                ["batch_size", "sample_method", *more],
                "for mini-batches; add the fan-outs of layers, as --sample 15,10,5.",
            )
            return False
        fanouts_of(self.sample)
        if self.model == "appnp":
            self.refuse(["sample"], "appnp reads one neighbourhood many times; leave it out.")
        return True


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


SETTLED = {each.name for each in fields(PartsOptions)} - {"seed", "mode", "traceback"}
SETTLED |= {"message_flow", "parts", "partitioner", "repartition"}
"""Options that choose or change a graph: a folder of parts holds one already."""


@dataclass(frozen=True, kw_only=True)
class ProcessOptions(Options):
    """Options that say which of several processes this is, where no scheduler says it."""

    coordinator: str | None = of_process(
        "HOST:PORT of process 0; SLURM, Open MPI and Kubernetes are asked where not given."
    )
    num_processes: int | None = of_process("Processes of the run; 1 trains alone.", least=1)
    process_id: int | None = of_process("Number of this process, from 0.", least=0)
    join_timeout: float = of_process("Seconds to wait for other processes.", 300.0, least=1)
    step_timeout: float = of_process(STEP_TIMEOUT, 600.0, least=1)
    process_log: Path | None = of_process("Folder of a log of phases and warnings per process.")
    heartbeat_fd: int | None = of_process("", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.given(["coordinator", "num_processes", "process_id"])
        if self.num_processes != 1 and 0 < len(given) < 3:
            raise ValueError(
                "--coordinator, --num-processes, --process-id: expected all three, none for a run "
                "of one process or of a scheduler, or --num-processes 1 to train alone."
            )
        if self.coordinator is not None:
            check_address(self.coordinator)
        if self.num_processes is not None and (self.process_id or 0) >= self.num_processes:
            raise ValueError(
                f"--process-id: got {self.process_id}; expected 0 to {self.num_processes - 1}, one "
                "less than --num-processes."
            )


def check_address(address: str) -> None:
    """Raises ValueError unless the coordinator's address is HOST:PORT, or [IPv6]:PORT."""
    match = re.fullmatch(r"(?:\[[0-9a-fA-F:.%]+\]|[^\s:/\[\]]+):(\d{1,5})", address)
    if match is None or not 1 <= int(match[1]) <= _LARGEST_PORT:
        raise ValueError(
            f"--coordinator: got {address!r}; expected HOST:PORT with a port from 1 to "
            f"{_LARGEST_PORT}, as 10.0.0.1:12345."
        )


@dataclass(frozen=True, kw_only=True)
class TrainOptions(ProcessOptions, PartsOptions, SampleOptions):
    """The options of `jaxgraph train`; None leaves the choice to the recipe."""

    partition: Path | None = of_graph("Instead of a dataset: parts of `jaxgraph partition --out`.")
    dropout: float | None = of_model("Dropout rate, below 1.", least=0, most=1)
    dtype: str = of_model("Type of activations and messages", "float32", choices=_DTYPES)
    parts: int | None = of_device(
        "Parts, one a device, emulated on CPU where there are fewer; 1, or the devices of several "
        "processes, where not given.",
        least=1,
    )
    devices: int | None = of_device("Mode stream: devices that the parts visit.", least=1)
    mode: str | None = of_device(
        "How parts read rows of others: one part at a time, all at once, features by column, parts "
        "that wait on the host and visit devices, or what a plan predicts to be fastest",
        choices=(*MODES, "p3", "stream", "auto"),
    )
    folder: Path | None = of_device("Mode stream: folder where parts wait; else in memory.")
    prefetch: bool = of_device("Fetch the next part while aggregating.", False)
    message_flow: bool = of_device("Compute in each layer only what the loss needs.", False)
    memory_limit: str | None = of_device(
        "Memory of one device, as 16GB: by it are chosen what layers keep, recompute and offload, "
        "and in mode stream the number of parts."
    )
    partitioner: str | None = of_device("Partitioner, metis if not given", choices=PARTITIONERS)
    hosts: int | None = of_device(
        "Hosts of the devices; those of the processes if not given.", least=1
    )
    sample_cache: str | None = of_batches(
        "Memory of each of several devices, as 100MB, for a copy of the rows that are read most."
    )
    staleness: int = of_batches(
        "Mode p3: 3 works on three mini-batches at once, so that devices compute while they send; "
        "a step then has the gradient of three steps before. 0: one after the other.",
        0,
        least=0,
    )
    labels_as_inputs: float | None = of_training(
        "Give labels of training nodes to the model: in each epoch this share of them shows its "
        "label, and the others learn theirs; 0.5 is usual.",
        least=0.01,
        most=0.99,
    )
    epochs: int | None = of_training("Passes over the graph, at most.", least=1, most=2**31 - 1)
    seeds: int = of_training(
        "Train so many times: --seed, --seed + 1, ... draw parameters, dropout and samples; split "
        "and partition stay. Reported are means and deviations of the best epochs; "
        "--predictions are of the seed with the lowest validation loss.",
        1,
        least=1,
    )
    lr: float | None = of_training("Step size of Adam.", least=0)
    weight_decay: float | None = of_training("L2 penalty.", least=0)
    patience: int | None = of_training("Epochs without a lower validation loss; 0: any.", least=0)
    repartition: str | None = of_training("Move to better parts while training", choices=["auto"])
    correct_and_smooth: bool = of_training(
        "After training, improve predictions by the labels of training nodes (Correct & Smooth), "
        "with the options that validation nodes favour.",
        False,
    )
    json: Path | None = of_training("Write the summary and the history to this file.")
    predictions: Path | None = of_training("Write each node and its predicted class to this file.")
    checkpoint: Path | None = of_training("Save the run in this folder.")
    checkpoint_every: int = of_training("Epochs between two checkpoints.", 5, least=1)
    resume: bool = of_training("Continue from the newest checkpoint, if there is one.", False)
    log: Path | None = of_training(
        "Append a line of JSON to this file after every epoch. The first process writes it, or "
        "each, where its name contains {process}."
    )
    profile: Path | None = of_training("Write a JAX profiler trace into this folder.")
    profile_epochs: int = of_training("Epochs of the trace.", 3, least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.json is not None and self.json == self.predictions:
            raise ValueError(f"--predictions: {self.json} is the file of --json; expected another.")
        if (self.dataset is None) == (self.partition is None):
            raise ValueError("--dataset, --partition: expected one of them.")
        if self.checkpoint is None:
            self.refuse(["checkpoint_every", "resume"], "need the folder of the run, --checkpoint.")
        self._check_sample()
        if self.seeds > 1:
            of_one = ["checkpoint", "correct_and_smooth", "log", "repartition"]
            self.refuse(of_one, f"for one run, and --seeds {self.seeds} are several; leave it out.")
        if self.seed + self.seeds > NUM_SEEDS:
            raise ValueError(
                f"--seeds: got {self.seeds} seeds from {self.seed}; expected the last one below "
                f"{NUM_SEEDS}."
            )
        if self.mode == "auto":
            self.refuse(["message_flow"], "not for --mode auto; expected --mode sar or domain.")
        if self.mode == "stream":
            self.refuse(["hosts"], "not for --mode stream.")
        else:
            self.refuse(["devices"], f"for --mode stream only; the mode is {self.mode or 'sar'}.")

    def _check_sample(self) -> None:
        if not self.is_sampled("sample_cache", "staleness"):
            return
        if self.sample_cache is not None:
            bytes_of("--sample-cache", self.sample_cache)
        if self.mode not in (None, *MODES, "p3"):
            self.refuse(["sample"], f"for --mode sar, domain or p3; the mode is {self.mode}.")
        if self.mode == "p3":
            self.refuse(
                ["sample_cache"],
                "not for --mode p3, where no device reads rows of features; leave it out.",
            )
        if self.staleness not in (0, 3):
            raise ValueError(f"--staleness: got {self.staleness}; expected 0, or 3 with --mode p3.")
        if self.staleness and self.mode != "p3":
            raise ValueError(
                f"--staleness: got {self.staleness} for --mode {self.mode or 'sar'}; expected 0, "
                "or --mode p3."
            )
        self.refuse(
            ["message_flow", "memory_limit", "repartition"],
            "for steps over the whole graph; leave it out, or leave out --sample. A smaller "
            "--batch-size needs less memory.",
        )
        self.refuse(
            ["partition"], "--sample draws from a whole graph; give --dataset in its place."
        )
