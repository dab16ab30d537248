"""The options of a run of several processes, as each of them is given."""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from jaxgraph.cli.limits import Number

__all__ = ["STEP_TIMEOUT", "ProcessOptions", "StepTimeout", "check_address", "check_processes"]

STEP_TIMEOUT = 600.0
_LARGEST_PORT = 65_535
_BY_HAND = ("coordinator", "num_processes", "process_id")

_option = partial(typer.Option, rich_help_panel="Processes")
StepTimeout = Annotated[
    float,
    _option(
        help="Seconds after which a process without a sign of life, or without progress in an "
        "epoch, ends the run; compilation does not count."
    ),
    Number(above=0),
]


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """Options that say which of several processes this is, where no scheduler says it."""

    coordinator: Annotated[
        str | None,
        _option(
            help="HOST:PORT of process 0, as all processes reach it. SLURM, Open MPI and "
            "Kubernetes are asked where not given."
        ),
    ] = None
    num_processes: Annotated[
        int | None,
        _option(help="Processes of the run; 1 trains alone, whatever a scheduler says."),
        Number(least=1),
    ] = None
    process_id: Annotated[
        int | None, _option(help="Number of this process, from 0."), Number(least=0)
    ] = None
    join_timeout: Annotated[
        float,
        _option(help="Seconds to wait at the start for the other processes."),
        Number(above=0),
    ] = 300.0
    step_timeout: StepTimeout = STEP_TIMEOUT
    process_log: Annotated[
        Path | None,
        _option(help="Folder in which each process writes its phases and warnings to a file."),
    ] = None
    heartbeat_fd: Annotated[int | None, _option(hidden=True), Number(least=0)] = None


def check_processes(options: ProcessOptions) -> None:
    """Raises ValueError where the options that say which process this is do not fit together."""
    given = [name for name in _BY_HAND if getattr(options, name) is not None]
    if options.num_processes != 1 and 0 < len(given) < len(_BY_HAND):
        raise ValueError(
            "--coordinator, --num-processes, --process-id: expected all three, none for a run "
            "of one process or of a scheduler, or --num-processes 1 to train alone."
        )
    if options.coordinator is not None:
        check_address(options.coordinator)
    if options.num_processes is not None and options.process_id is not None:
        last = options.num_processes - 1
        if options.process_id > last:
            raise ValueError(
                f"--process-id: got {options.process_id}; expected 0 to {last}, one less than "
                "--num-processes."
            )


def check_address(address: str) -> None:
    """Raises ValueError unless the coordinator's address is HOST:PORT, or [IPv6]:PORT."""
    match = re.fullmatch(r"(?P<host>\[[0-9a-fA-F:.%]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5})", address)
    if match is None or not 1 <= int(match["port"]) <= _LARGEST_PORT:
        raise ValueError(
            f"--coordinator: got {address!r}; expected HOST:PORT with a port from 1 to "
            f"{_LARGEST_PORT}, as 10.0.0.1:12345."
        )
