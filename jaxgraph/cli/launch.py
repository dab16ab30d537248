"""`jaxgraph launch`: starts and watches the processes of a run on this machine."""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import typer

from jaxgraph.cli.command import REQUIRED, Options, of_process
from jaxgraph.cli.display import drop_output
from jaxgraph.cli.options import STEP_TIMEOUT
from jaxgraph.launch.child import Command
from jaxgraph.launch.scheduler import scheduled
from jaxgraph.launch.supervisor import supervise

# Without the folder in which the command was given on the path of imports.
_PROGRAM = ("-P", "-m", "jaxgraph", "train")


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(Options):
    """The options of `jaxgraph launch`."""

    command: list[str] = of_process(
        "The command that every process runs.", REQUIRED, metavar="-- train OPTIONS"
    )
    num_processes: int = of_process("Processes here.", 1, names=["--num-processes", "-n"], least=1)
    restarts: int = of_process("Starts of all after a death, from a checkpoint.", 0, least=0)
    step_timeout: float = of_process(STEP_TIMEOUT, 600.0, least=1)


def run_launch(options: LaunchOptions) -> None:
    """Start the processes of a training run on this machine, and watch them.

    They end together: if one dies or is stuck, all end, with its number and where it stood.

    A scheduler that starts a process for every device starts `jaxgraph launch -- train ...`
    instead, which watches that one.
    """
    name, *arguments = options.command
    if name != "train":
        raise ValueError(f"launch: got the command {name!r}; expected train, as launch -- train.")
    given, count = _parsed(arguments), options.num_processes
    place = scheduled(os.environ) if given["num_processes"] is None else None
    if count > 1 and (given["coordinator"] or given["num_processes"] or place):
        raise ValueError(
            f"--num-processes: {count} processes here get their --coordinator, --num-processes and "
            "--process-id from jaxgraph launch alone; leave these out, or start jaxgraph launch "
            "-n 1 for each, as a scheduler does."
        )
    further = ["--step-timeout", str(options.step_timeout)]
    program = [sys.executable, *_PROGRAM, *arguments, *further]
    number = (given["process_id"] or 0) if place is None else place.index

    def commands(start: int) -> Sequence[Command]:
        own = [*program, *_resuming(start, given)]
        if count == 1:
            return [Command(str(number), own)]
        # Process 0 listens to it a moment later. Another program could take it in between.
        own += ["--coordinator", f"127.0.0.1:{_free_port()}", "--num-processes", str(count)]
        return [
            # jax gives each accelerator to the process of its number.
            Command(
                str(index), [*own, "--process-id", str(index)], {"JAX_LOCAL_DEVICE_IDS": str(index)}
            )
            for index in range(count)
        ]

    timeout, restarts = options.step_timeout, options.restarts
    raise typer.Exit(supervise(commands, _write, step_timeout=timeout, restarts=restarts))


def _parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """The options of `train` by name, or a usage error, once, before a process starts."""
    from jaxgraph.cli.main import app

    command: Any = typer.main.get_command(app)
    # The context of an error says which command it is of.
    return command.commands["train"].make_context("jaxgraph train", list(arguments)).params


def _resuming(start: int, given: Mapping[str, Any]) -> list[str]:
    """The option that a start after a death adds, where there are checkpoints to continue from."""
    wanted = start > 0 and given.get("checkpoint") is not None and not given.get("resume")
    return ["--resume"] if wanted else []


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
