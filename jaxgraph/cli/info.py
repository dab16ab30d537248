"""`jaxgraph info` and `jaxgraph datasets`: the installation, and the data sets."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import typer
from rich.table import Table

import jaxgraph
from jaxgraph import datasets
from jaxgraph.cli.command import Options, option
from jaxgraph.cli.display import Output, two_columns

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "pymetis", "typer", "rich")


@dataclass(frozen=True, kw_only=True)
class InfoOptions(Options):
    """The options of `jaxgraph info`."""

    check: bool = option("Compare every implementation with NumPy on 100 edges.", False)


def run_catalogue(options: Options) -> None:
    """List the names of the datasets, one per line."""
    for name in datasets.names():
        typer.echo(name)


def run_info(options: InfoOptions) -> None:
    """Show versions, devices and implementations; with --check, the results of self-checks."""
    import jax

    from jaxgraph import ops

    output, has_failed = Output(), False
    output.print(two_columns("Versions", versions()))
    devices = [(str(each.id), each.platform, each.device_kind) for each in jax.devices()]
    output.print(_table("Devices", ("device", "platform", "kind"), devices))
    rows = []
    for each in ops.implementations():
        result = "" if each.reason else each.check() if options.check else "see --check"
        has_failed |= result.startswith("failed")
        rows.append((each.op, each.name, f"no: {each.reason}" if each.reason else "yes", result))
    columns = ("op", "implementation", "available", "self-check")
    output.print(_table("Implementations", columns, rows))
    if has_failed:
        raise typer.Exit(1)


def versions() -> dict[str, str]:
    """The versions that a bug report should name, by package."""
    found = {"jaxgraph": jaxgraph.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*row)
    return table
