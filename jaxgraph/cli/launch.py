"""`jaxgraph launch`: starts and watches the processes of a run on this machine."""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from jaxgraph.cli.limits import Number, check_limits
from jaxgraph.cli.output import drop_output
from jaxgraph.cli.process_options import STEP_TIMEOUT, StepTimeout
from jaxgraph.launch.scheduler import scheduled
from jaxgraph.launch.supervisor import Command, supervise

__all__ = ["LaunchOptions", "run_launch"]

_option = partial(typer.Option, rich_help_panel="Processes")


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The options of `jaxgraph launch`."""

    command: Annotated[
        list[str],
        typer.Argument(metavar="-- train OPTIONS", help="The command that every process runs."),
    ]
    processes: Annotated[
        int, _option("--processes", "-n", help="Processes to start here."), Number(least=1)
    ] = 1
    restarts: Annotated[
        int,
        _option(
            help="Start all again so often after a process has died or was stuck; a run with "
            "--checkpoint continues from its last checkpoint."
        ),
        Number(least=0),
    ] = 0
    step_timeout: StepTimeout = STEP_TIMEOUT

    def __post_init__(self) -> None:
        """Checks every option alone."""
        check_limits(self)
        if self.command[0] != "train":
            raise ValueError(
                f"launch: got the command {self.command[0]!r}; expected train, as jaxgraph launch "
                f"-n {self.processes} -- train --dataset cora."
            )


def run_launch(options: LaunchOptions) -> None:
    """Start the processes of a training run on this machine, and watch them.

    They end together: if one dies or is stuck, all end, with its number and where it stood.

    A scheduler that starts a process for every device starts `jaxgraph launch -- train ...`
    instead, which watches that one.
    """
    arguments = options.command[1:]
    given = _parsed(arguments)
    _check_processes(options, given)
    further = ["--step-timeout", str(options.step_timeout)]
    program = [sys.executable, *_PROGRAM, "train", *arguments, *further]

    def commands(start: int) -> Sequence[Command]:
        own = [*program, *_resuming(start, given)]
        if options.processes == 1:
            return [Command(_own_name(given), own)]
        # Process 0 listens to it a moment later. Another program could take it in between.
        address = f"127.0.0.1:{_free_port()}"
        return [
            Command(
                str(index),
                [*own, *_by_hand(address, options.processes, index)],
                # jax gives it this accelerator alone.
                {"JAX_LOCAL_DEVICE_IDS": str(index)},
            )
            for index in range(options.processes)
        ]

    status = supervise(
        commands, _write, step_timeout=options.step_timeout, restarts=options.restarts
    )
    raise typer.Exit(status)


# Without the folder in which the command was given on the path of imports.
_PROGRAM = ("-P", "-m", "jaxgraph")


def _parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """The options of `train` by name, or a usage error, once, before a process starts."""
    from jaxgraph.cli.main import app

    command: Any = typer.main.get_command(app)
    train = command.commands["train"]
    # The context of an error says which command it is of.
    return train.make_context("jaxgraph train", list(arguments)).params


def _check_processes(options: LaunchOptions, given: dict[str, Any]) -> None:
    if options.processes == 1:
        return
    if given["coordinator"] is not None or given["num_processes"] is not None:
        raise ValueError(
            f"--processes: {options.processes} processes here get their --coordinator, "
            "--num-processes and --process-id from jaxgraph launch; leave them out, or start "
            "jaxgraph launch -n 1 for each."
        )
    place = scheduled(os.environ)
    if place is not None:
        raise ValueError(
            f"--processes: {place.scheduler} has started this process as number {place.index} of "
            "several; expected -n 1 in each."
        )


def _resuming(start: int, given: Mapping[str, Any]) -> list[str]:
    """The option that a start after a death adds, where there are checkpoints to continue from."""
    wanted = start > 0 and given.get("checkpoint") is not None and not given.get("resume")
    return ["--resume"] if wanted else []


def _own_name(given: dict[str, Any]) -> str:
    if given["process_id"] is not None:
        return str(given["process_id"])
    if given["num_processes"] == 1:
        return "0"
    place = scheduled(os.environ)
    return "0" if place is None else str(place.index)


def _by_hand(address: str, count: int, index: int) -> list[str]:
    return [
        *("--coordinator", address),
        *("--num-processes", str(count)),
        *("--process-id", str(index)),
    ]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _write(line: str, is_error: bool) -> None:
    stream = sys.stderr if is_error else sys.stdout
    try:
        print(line, file=stream, flush=True)
    except BrokenPipeError:
        if not is_error:
            drop_output()
    except OSError:
        with suppress(OSError):
            stream.flush()
