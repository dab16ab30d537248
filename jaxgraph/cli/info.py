"""`jaxgraph info`: versions, devices, and what each implementation of an op says of itself."""

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import typer
from rich.console import Console
from rich.table import Table

import jaxgraph
from jaxgraph.cli.display import two_columns

__all__ = ["InfoOptions", "run_info"]

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "pymetis", "typer", "rich")


@dataclass(frozen=True, kw_only=True)
class InfoOptions:
    """`jaxgraph info` has no options of its own."""


def run_info(options: InfoOptions) -> None:
    """Show versions, devices and implementations, each with a self-check on 100 edges."""
    console = Console()
    console.print(two_columns("Versions", versions()))
    console.print(_device_table())
    checks = self_checks()
    console.print(_check_table(checks))
    if any(check.result.startswith("failed") for check in checks):
        raise typer.Exit(1)


@dataclass(frozen=True)
class SelfCheck:
    """What one implementation of an op said of itself.

    Args:
        op: The op.
        implementation: The implementation.
        unavailable: Why it cannot run here, "" where it can.
        result: "ok" or "failed" and what was seen, "" where it cannot run.
    """

    op: str
    implementation: str
    unavailable: str
    result: str


def self_checks() -> list[SelfCheck]:
    """Runs the self-check of every implementation that can run here."""
    from jaxgraph import ops

    return [
        SelfCheck(each.op, each.name, each.reason, each.check() if each.available else "")
        for each in ops.implementations()
    ]


def versions() -> dict[str, str]:
    """The versions that a report of a problem should name, by package."""
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


def _check_table(checks: list[SelfCheck]) -> Table:
    table = Table("op", "implementation", "available", "self-check", title="Implementations")
    for check in checks:
        available = f"no: {check.unavailable}" if check.unavailable else "yes"
        style = "red" if check.result.startswith("failed") else None
        table.add_row(check.op, check.implementation, available, check.result, style=style)
    return table
