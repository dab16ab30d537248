"""The options of `jaxgraph train`."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from jaxgraph.byte_amounts import bytes_of
from jaxgraph.cli.checkpoint_options import CheckpointOptions
from jaxgraph.cli.limits import Number, OneOf, option_name
from jaxgraph.cli.mode_options import ModeOptions
from jaxgraph.cli.model_options import ModelOptions, check_heads
from jaxgraph.cli.process_options import ProcessOptions, check_processes
from jaxgraph.cli.telemetry_options import TelemetryOptions
from jaxgraph.cli.train_input import refuse_graph_options
from jaxgraph.layout.manifest import MODES
from jaxgraph.partition.metis import BALANCES
from jaxgraph.partition.registry import check_names, costless_methods

__all__ = ["TrainOptions"]

# The library's own lists are in modules that import jax.
DTYPES = ("float32", "bfloat16", "float16", "float64")
IMPLEMENTATIONS = ("mosaic_gpu", "cpu", "xla")
_model_option = partial(typer.Option, rich_help_panel="Model")
_device_option = partial(typer.Option, rich_help_panel="Devices")
_training_option = partial(typer.Option, rich_help_panel="Training")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(CheckpointOptions, ProcessOptions, TelemetryOptions, ModeOptions, ModelOptions):
    """The options of `jaxgraph train`; None leaves the choice to the recipe."""

    dropout: Annotated[
        float | None,
        _model_option(help="Dropout rate, from 0 to below 1."),
        Number(least=0, below=1),
    ] = None
    dtype: Annotated[
        str,
        _model_option(
            help="Type of activations and messages: float32, bfloat16, float16 or float64."
        ),
        OneOf(DTYPES),
    ] = "float32"
    dataset: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        str | None,
        typer.Option(
            rich_help_panel="Graph",
            help="Name of a dataset; `jaxgraph datasets` lists them; or a file: .csv, .tsv, .txt, "
            ".mtx, .graph, .parquet, .npy, .npz.",
        ),
    ] = None
    partition: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel="Graph",
            help="Instead of a dataset: a folder of parts, from `jaxgraph partition --out`.",
        ),
    ] = None
    parts: Annotated[
        int | None,
        _device_option(
            help="Parts, one a device; emulated on CPU where there are fewer devices. 1 where not "
            "given; of several processes one a device."
        ),
        Number(least=1),
    ] = None
    devices: Annotated[
        int | None,
        _device_option(
            help="Mode stream: devices that the parts visit, one part on each at a time. 1 where "
            "not given; of several processes all."
        ),
        Number(least=1),
    ] = None
    mode: Annotated[
        str | None,
        _device_option(
            help="sar (one remote part at a time), domain (all at once), p3 (features by column), "
            "stream (parts wait on the host and visit devices) or auto: that of the first three "
            "that a plan predicts to be fastest, and stream where --memory-limit keeps the graph "
            "off one device; sar where not given."
        ),
        OneOf((*MODES, "p3", "stream", "auto")),
    ] = None
    folder: Annotated[
        Path | None,
        _device_option(
            help="Modes stream and auto: an existing folder where streamed parts and activations "
            "wait; in memory where not given."
        ),
    ] = None
    prefetch: Annotated[
        bool, _device_option("--prefetch", help="Fetch the next part while aggregating.")
    ] = False
    memory_limit: Annotated[
        str | None,
        _device_option(
            help="Memory of one device that may be taken, as 16GB: what layers keep, recompute "
            "and offload is chosen by it, in mode stream the number of parts."
        ),
    ] = None
    implementation: Annotated[
        str | None,
        _device_option(
            help="Kernels: cpu, mosaic_gpu or xla; the fastest that can be used where not given."
        ),
        OneOf(IMPLEMENTATIONS),
    ] = None
    partitioner: Annotated[
        str | None,
        _device_option(
            help="metis, hash, random, equal-vertices or equal-edges; metis where not given."
        ),
        OneOf(costless_methods()),
    ] = None
    balance: Annotated[
        str | None,
        _device_option(help="Balance of METIS: nodes, edges or labels; nodes where not given."),
        OneOf(BALANCES),
    ] = None
    epochs: Annotated[
        int | None,
        _training_option(help="Passes over the graph, at most."),
        Number(least=1, below=2**31),
    ] = None
    lr: Annotated[
        float | None, _training_option(help="Step size of Adam, above 0."), Number(above=0)
    ] = None
    weight_decay: Annotated[
        float | None, _training_option(help="L2 penalty, 0 or more."), Number(least=0)
    ] = None
    class_weights: Annotated[
        str,
        _training_option(
            help="none, or balanced: all classes weigh the same together in the loss."
        ),
        OneOf(("none", "balanced")),
    ] = "none"
    label_smoothing: Annotated[
        float,
        _training_option(help="Share of a label given to all classes alike, from 0 to below 1."),
        Number(least=0, below=1),
    ] = 0.0
    patience: Annotated[
        int | None,
        _training_option(help="Stop this many epochs after the best validation loss; 0: never."),
        Number(least=0),
    ] = None
    repartition: Annotated[
        str | None,
        _training_option(
            help="auto: measure layers between epochs, and move to better parts where that pays."
        ),
        OneOf(("auto",)),
    ] = None
    json: Annotated[
        Path | None, _training_option(help="Write the summary and the history to this file.")
    ] = None
    predictions: Annotated[
        Path | None,
        _training_option(help="Write each node's name or id and its predicted class to this file."),
    ] = None

    def __post_init__(self) -> None:
        """Checks the options, alone and together."""
        super().__post_init__()
        check_processes(self)
        self.check_checkpoints()
        if self.memory_limit is not None:
            bytes_of("--memory-limit", self.memory_limit)
        if self.json is not None and self.json == self.predictions:
            raise ValueError(f"--predictions: {self.json} is the file of --json; expected another.")
        if (self.dataset is None) == (self.partition is None):
            raise ValueError("--dataset, --partition: expected one of them.")
        check_heads(self, self.dataset)
        if self.partition is not None:
            if self.repartition is not None:
                raise ValueError(
                    "--repartition: needs the whole graph; train from --dataset instead of "
                    "--partition."
                )
            settled = ("feature_budget", "partitioner", "balance", "order")
            refuse_graph_options(self, self.partition, settled)
        self._check_stream()
        if self.partition is not None and self.mode is None:
            return
        if self.prefetch and "sar" not in (self.mode or "sar", self.rest):
            need = "--mode p3 --rest sar" if self.mode == "p3" else "--mode sar"
            raise ValueError(f"--prefetch: layers of mode {self.mode} have none; use {need}.")
        if self.repartition is not None and self.mode == "p3":
            raise ValueError("--repartition: layers of mode p3 are not measured; use --mode sar.")
        if self.repartition is not None and self.memory_limit is not None:
            raise ValueError(
                "--repartition: a move needs memory of its own; leave out --memory-limit."
            )
        check_names(self.partitioner or "metis", self.balance or "nodes", order=self.order)

    def _check_stream(self) -> None:
        if self.mode != "stream":
            allowed = ("folder",) if self.mode == "auto" else ()
            for name in ("folder", "devices"):
                if getattr(self, name) is not None and name not in allowed:
                    raise ValueError(
                        f"{option_name(name)}: for --mode stream only; the mode is "
                        f"{self.mode or 'sar'}."
                    )
            return
        refused = ("prefetch", "repartition", "hosts")
        given = [option_name(name) for name in refused if getattr(self, name)]
        if given:
            raise ValueError(
                f"{', '.join(given)}: not for --mode stream, which has one part at a time on each "
                "device: --parts says how much of the graph that is. Leave it out."
            )
        if self.folder is not None and not self.folder.is_dir():
            raise ValueError(f"--folder: {self.folder} is no folder; make it first.")
