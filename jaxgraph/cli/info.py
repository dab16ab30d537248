"""`jaxgraph info`: versions, devices, and the state of each implementation of an op."""

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer
from rich.table import Table

import jaxgraph
from jaxgraph.cli.display import two_columns
from jaxgraph.cli.output import Output

__all__ = ["InfoOptions", "run_info"]

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "pymetis", "typer", "rich")


@dataclass(frozen=True, kw_only=True)
class InfoOptions:
    """The options of `jaxgraph info`."""

    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Compare every implementation with NumPy on 100 edges, in a minute.",
        ),
    ] = False


def run_info(options: InfoOptions) -> None:
    """Show versions, devices and implementations; with --check, the results of self-checks."""
    output = Output()
    output.print(two_columns("Versions", versions()))
    output.print(_device_table())
    listed = implementations(check=options.check)
    output.print(_implementation_table(listed))
    if any(each.result.startswith("failed") for each in listed):
        raise typer.Exit(1)


@dataclass(frozen=True)
class Listed:
    """The state of one implementation of an op.

    Args:
        op: The op.
        implementation: The implementation.
        unavailable: Why it cannot run here, "" where it can.
        result: "ok" or "failed" and the error, "" where it was not checked or cannot run.
    """

    op: str
    implementation: str
    unavailable: str
    result: str


def implementations(*, check: bool) -> list[Listed]:
    """Lists every implementation of every op.

    Args:
        check: Run the self-check of those that can run here.
    """
    from jaxgraph import ops

    return [
        Listed(each.op, each.name, each.reason, each.check() if check and each.available else "")
        for each in ops.implementations()
    ]


def versions() -> dict[str, str]:
    """The versions that a bug report should name, by package."""
    found = {"jaxgraph": jaxgraph.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _device_table() -> Table:
    import jax

    table = Table("device", "platform", "kind", title="Devices")
    for device in jax.devices():
        table.add_row(str(device.id), device.platform, device.device_kind)
    return table


def _implementation_table(listed: list[Listed]) -> Table:
    table = Table("op", "implementation", "available", "self-check", title="Implementations")
    for each in listed:
        available = f"no: {each.unavailable}" if each.unavailable else "yes"
        style = "red" if each.result.startswith("failed") else None
        result = each.result or ("" if each.unavailable else "see --check")
        table.add_row(each.op, each.implementation, available, result, style=style)
    return table
