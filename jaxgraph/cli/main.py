"""The `jaxgraph` command."""

import shutil
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import jaxgraph
from jaxgraph.cli.catalogue import CatalogueOptions, run_catalogue
from jaxgraph.cli.command import command_of
from jaxgraph.cli.info import InfoOptions, run_info
from jaxgraph.cli.launch import LaunchOptions, run_launch
from jaxgraph.cli.partition import PartitionOptions, run_partition
from jaxgraph.cli.plan import PlanOptions, run_plan
from jaxgraph.cli.plot import PlotOptions, run_plot
from jaxgraph.cli.train import run_train
from jaxgraph.cli.train_options import TrainOptions

__all__ = ["app"]

_PANELS_NEED = 80
"""Columns of a terminal, below which panels would cut the names of options."""

app = typer.Typer(
    help="Full-batch training of graph neural networks, sharded over devices.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Command(TyperCommand):
    """A command whose help in a narrow terminal is plain text, with names on their own lines."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        columns = shutil.get_terminal_size().columns
        if columns < _PANELS_NEED:
            self.rich_markup_mode, formatter.width = None, columns - 2
        super().format_help(ctx, formatter)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"jaxgraph {jaxgraph.__version__}")
        raise typer.Exit


@app.callback()
def _options_of_all_commands(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


_IN_THE_LIBRARY = {"dataset": "name", "parts": "num_parts"}
app.command("train", cls=_Command)(
    command_of(TrainOptions, run_train, _IN_THE_LIBRARY | {"partitioner": "method"})
)
app.command("partition", cls=_Command)(command_of(PartitionOptions, run_partition, _IN_THE_LIBRARY))
_COUNTS = {"nodes": "num_nodes", "edges": "num_edges", "features": "num_features"}
app.command("plan", cls=_Command)(
    command_of(PlanOptions, run_plan, _COUNTS | {"classes": "num_classes"})
)
app.command(
    "launch",
    cls=_Command,
    # What follows `train` belongs to it, with or without `--` before it.
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
)(command_of(LaunchOptions, run_launch, {"processes": "num_processes"}))
app.command("plot", cls=_Command)(command_of(PlotOptions, run_plot))
app.command("datasets", cls=_Command)(command_of(CatalogueOptions, run_catalogue))
app.command("info", cls=_Command)(command_of(InfoOptions, run_info))
