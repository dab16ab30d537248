"""The options of `jaxgraph train`."""

import re
from dataclasses import dataclass, fields
from pathlib import Path

from jaxgraph.cli.command import Options, of_device, of_graph, of_model, of_process, of_training
from jaxgraph.cli.options import PARTITIONERS, STEP_TIMEOUT, ModelOptions, PartsOptions
from jaxgraph.layout.manifest import MODES

# The library's own lists are in modules that import jax.
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_LARGEST_PORT = 65_535
SETTLED = {each.name for each in fields(PartsOptions)} - {"seed", "mode", "traceback"}
SETTLED |= {"parts", "partitioner", "repartition"}
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
class TrainOptions(ProcessOptions, PartsOptions, ModelOptions):
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
    memory_limit: str | None = of_device(
        "Memory of one device, as 16GB: by it are chosen what layers keep, recompute and offload, "
        "and in mode stream the number of parts."
    )
    partitioner: str | None = of_device("Partitioner, metis if not given", choices=PARTITIONERS)
    hosts: int | None = of_device(
        "Hosts of the devices; those of the processes if not given.", least=1
    )
    epochs: int | None = of_training("Passes over the graph, at most.", least=1, most=2**31 - 1)
    lr: float | None = of_training("Step size of Adam.", least=0)
    weight_decay: float | None = of_training("L2 penalty.", least=0)
    patience: int | None = of_training("Epochs without a lower validation loss; 0: any.", least=0)
    repartition: str | None = of_training("Move to better parts while training", choices=["auto"])
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
        if self.mode == "stream":
            self.refuse(["hosts"], "not for --mode stream.")
        else:
            self.refuse(["devices"], f"for --mode stream only; the mode is {self.mode or 'sar'}.")
