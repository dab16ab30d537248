"""The `jaxgraph` command."""

from typing import Annotated

import typer

import jaxgraph
from jaxgraph.cli.command import Options, command_of
from jaxgraph.cli.info import InfoOptions, run_catalogue, run_info
from jaxgraph.cli.launch import LaunchOptions, run_launch
from jaxgraph.cli.options import TrainOptions
from jaxgraph.cli.partition import PartitionOptions, run_partition
from jaxgraph.cli.plan import PlanOptions, run_plan
from jaxgraph.cli.plot import PlotOptions, run_plot
from jaxgraph.cli.train import run_train

_COMMANDS = {
    "train": (TrainOptions, run_train),
    "partition": (PartitionOptions, run_partition),
    "plan": (PlanOptions, run_plan),
    "launch": (LaunchOptions, run_launch),
    "plot": (PlotOptions, run_plot),
    "datasets": (Options, run_catalogue),
    "info": (InfoOptions, run_info),
}
_SETTINGS = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    help="Training of graph neural networks, full batch or in mini-batches, sharded over devices.",
    no_args_is_help=True,
    add_completion=False,
    context_settings=_SETTINGS,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"jaxgraph {jaxgraph.__version__}")
        raise typer.Exit


_VERSION = typer.Option(
    "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
)


@app.callback()
def _options_of_all_commands(version: Annotated[bool, _VERSION] = False) -> None:
    pass


for _name, (_options, _run) in _COMMANDS.items():
    # What follows `train` belongs to it, with or without `--` before it.
    _settings = _SETTINGS | {"allow_interspersed_args": _name != "launch"}
    app.command(_name, context_settings=_settings)(command_of(_options, _run))
