"""The options of `jaxgraph train`."""

import re
from dataclasses import dataclass, fields
from pathlib import Path

from jaxgraph.byte_amounts import bytes_of
from jaxgraph.cli.option import Options, option
from jaxgraph.cli.options import (
    PARTITIONERS,
    STEP_TIMEOUT,
    ModelOptions,
    PartsOptions,
)
from jaxgraph.layout.manifest import MODES

__all__ = ["SETTLED", "ProcessOptions", "TrainOptions", "check_address"]

# The library's own lists are in modules that import jax.
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_BY_HAND = ("coordinator", "num_processes", "process_id")
_LARGEST_PORT = 65_535
SETTLED = {each.name for each in fields(PartsOptions)} - {"seed", "mode"}
SETTLED |= {"parts", "partitioner", "repartition"}
"""Options that choose or change a graph: a folder of parts holds one already."""


@dataclass(frozen=True, kw_only=True)
class ProcessOptions(Options):
    """Options that say which of several processes this is, where no scheduler says it."""

    coordinator: str | None = option(
        "Processes",
        "HOST:PORT of process 0, as all processes reach it. SLURM, Open MPI and Kubernetes are "
        "asked where not given.",
    )
    num_processes: int | None = option(
        "Processes", "Processes of the run; 1 trains alone, whatever a scheduler says.", least=1
    )
    process_id: int | None = option("Processes", "Number of this process, from 0.", least=0)
    join_timeout: float = option(
        "Processes", "Seconds to wait at the start for the other processes.", 300.0, above=0
    )
    step_timeout: float = option("Processes", STEP_TIMEOUT, 600.0, above=0)
    process_log: Path | None = option(
        "Processes", "Folder in which each process writes its phases and warnings to a file."
    )
    heartbeat_fd: int | None = option("Processes", "", hidden=True, least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.given(_BY_HAND)
        if self.num_processes != 1 and 0 < len(given) < len(_BY_HAND):
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
    match = re.fullmatch(r"(?P<host>\[[0-9a-fA-F:.%]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5})", address)
    if match is None or not 1 <= int(match["port"]) <= _LARGEST_PORT:
        raise ValueError(
            f"--coordinator: got {address!r}; expected HOST:PORT with a port from 1 to "
            f"{_LARGEST_PORT}, as 10.0.0.1:12345."
        )


@dataclass(frozen=True, kw_only=True)
class TrainOptions(ProcessOptions, PartsOptions, ModelOptions):
    """The options of `jaxgraph train`; None leaves the choice to the recipe."""

    partition: Path | None = option(
        "Graph", "Instead of a dataset: a folder of parts, from `jaxgraph partition --out`."
    )
    dropout: float | None = option("Model", "Dropout rate.", least=0, below=1)
    dtype: str = option("Model", "Type of activations and messages", "float32", choices=_DTYPES)
    parts: int | None = option(
        "Devices",
        "Parts, one a device; emulated on CPU where there are fewer devices. 1 where not given; of "
        "several processes one a device.",
        least=1,
    )
    devices: int | None = option(
        "Devices",
        "Mode stream: devices that the parts visit, one part on each at a time. 1 where not given; "
        "of several processes all.",
        least=1,
    )
    mode: str | None = option(
        "Devices",
        "One remote part at a time, all at once, features by column, parts that wait on the host "
        "and visit devices, or that of the first three which a plan predicts to be fastest, and "
        "stream where --memory-limit keeps the graph off one device; sar where not given",
        choices=(*MODES, "p3", "stream", "auto"),
    )
    folder: Path | None = option(
        "Devices",
        "Modes stream and auto: an existing folder where streamed parts and activations wait; in "
        "memory where not given.",
    )
    prefetch: bool = option("Devices", "Fetch the next part while aggregating.", False)
    memory_limit: str | None = option(
        "Devices",
        "Memory of one device that may be taken, as 16GB: what layers keep, recompute and offload "
        "is chosen by it, in mode stream the number of parts.",
    )
    partitioner: str | None = option(
        "Devices", "Partitioner; metis where not given", choices=PARTITIONERS
    )
    hosts: int | None = option(
        "Devices",
        "Hosts that devices are spread over, in runs of equal length; rows travel inside of hosts "
        "first. Those of the processes where not given.",
        least=1,
    )
    epochs: int | None = option("Training", "Passes over the graph, at most.", least=1, below=2**31)
    lr: float | None = option("Training", "Step size of Adam.", above=0)
    weight_decay: float | None = option("Training", "L2 penalty.", least=0)
    patience: int | None = option(
        "Training", "Stop this many epochs after the best validation loss; 0: never.", least=0
    )
    repartition: str | None = option(
        "Training",
        "Measure layers between epochs, and move to better parts where that pays",
        choices=["auto"],
    )
    json: Path | None = option("Training", "Write the summary and the history to this file.")
    predictions: Path | None = option(
        "Training", "Write each node's name or id and its predicted class to this file."
    )
    checkpoint: Path | None = option(
        "Training", "Save the run in this folder, so that --resume can continue it."
    )
    checkpoint_every: int = option(
        "Training", "Save after every so many epochs, and at the end.", 5, least=1
    )
    resume: bool = option(
        "Training",
        "Continue after the newest checkpoint that is undamaged, up to --epochs; where there is "
        "none, start from the beginning.",
        False,
    )
    log: Path | None = option(
        "Telemetry",
        "Append a line of JSON to this file after every epoch: loss, metrics, time, memory, bytes "
        "sent. The first process writes it, or each, where its name contains {process}.",
    )
    profile: Path | None = option(
        "Telemetry", "Write a JAX profiler trace of the first epochs into this folder."
    )
    profile_epochs: int = option("Telemetry", "Epochs of the trace.", 3, least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory_limit is not None:
            bytes_of("--memory-limit", self.memory_limit)
        if self.json is not None and self.json == self.predictions:
            raise ValueError(f"--predictions: {self.json} is the file of --json; expected another.")
        if (self.dataset is None) == (self.partition is None):
            raise ValueError("--dataset, --partition: expected one of them.")
        if self.checkpoint is None:
            self.refuse(["checkpoint_every", "resume"], "need the folder of the run, --checkpoint.")
        mode = self.mode or "sar"
        if mode == "stream":
            self.refuse(
                ["prefetch", "repartition", "hosts"],
                "not for --mode stream, which has one part at a time on each device: --parts says "
                "how much of the graph that is.",
            )
        else:
            names = ["devices"] if mode == "auto" else ["devices", "folder"]
            self.refuse(names, f"for --mode stream only; the mode is {mode}.")
        if self.folder is not None and not self.folder.is_dir():
            raise ValueError(f"--folder: {self.folder} is no folder; make it first.")
        if self.partition is None and "sar" not in (mode, self.rest):
            self.refuse(["prefetch"], f"layers of mode {mode} have none; use --mode sar.")
        if mode == "p3":
            self.refuse(["repartition"], "layers of mode p3 are not measured; use --mode sar.")
        if self.repartition is not None:
            self.refuse(["memory_limit"], "a move of --repartition needs memory of its own.")
