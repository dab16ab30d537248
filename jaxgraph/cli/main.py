"""The `jaxgraph` command."""

import typer

from jaxgraph.cli.catalogue import CatalogueOptions, run_catalogue
from jaxgraph.cli.command import command_of
from jaxgraph.cli.info import InfoOptions, run_info
from jaxgraph.cli.partition import PartitionOptions, run_partition
from jaxgraph.cli.train import TrainOptions, run_train

__all__ = ["app"]

app = typer.Typer(
    help="Full-batch training of graph neural networks, sharded over devices.",
    no_args_is_help=True,
    add_completion=False,
)
app.command("train")(command_of(TrainOptions, run_train))
app.command("partition")(command_of(PartitionOptions, run_partition))
app.command("datasets")(command_of(CatalogueOptions, run_catalogue))
app.command("info")(command_of(InfoOptions, run_info))
