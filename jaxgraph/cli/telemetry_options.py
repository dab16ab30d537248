"""The options of `jaxgraph train` for the log and the trace of a run."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from jaxgraph.cli.limits import Number

__all__ = ["TelemetryOptions"]

_option = partial(typer.Option, rich_help_panel="Telemetry")


@dataclass(frozen=True, kw_only=True)
class TelemetryOptions:
    """The options of telemetry, for `jaxgraph train`."""

    log: Annotated[
        Path | None,
        _option(
            help="Append a line of JSON to this file after every epoch: loss, metrics, time, "
            "memory, bytes sent. The first process writes it, or each, where its name contains "
            "{process}."
        ),
    ] = None
    profile: Annotated[
        Path | None,
        _option(help="Write a JAX profiler trace of the first epochs into this folder."),
    ] = None
    profile_epochs: Annotated[int, _option(help="Epochs of the trace."), Number(least=1)] = 3
    hosts: Annotated[
        int | None,
        _option(
            help="Hosts that devices are spread over, in runs of equal length; rows travel inside "
            "of hosts first. Those of the processes where not given.",
            rich_help_panel="Devices",
        ),
        Number(least=1),
    ] = None
