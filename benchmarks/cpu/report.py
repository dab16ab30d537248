"""Shows a run: on the terminal, as Markdown, and SAR's cost as a plot."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.cpu.record import Record
from benchmarks.cpu.sheets import Sheet, summaries
from benchmarks.cpu.summary import spread

__all__ = ["circumstances", "markdown", "pipes", "plot_sar", "show"]


def show(sheet: Sheet, console: Console) -> None:
    """Prints a table."""
    table = Table(title=escape(sheet.title), title_justify="left")
    for index, column in enumerate(sheet.columns):
        is_number = index >= sheet.num_names and column != "way"
        table.add_column(escape(column), justify="right" if is_number else "left")
    for row in sheet.rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)


def circumstances(record: Record) -> list[str]:
    """The facts that a reader of the figures needs, one sentence per line."""
    machine, limits = record.machine, record.limits
    lines = [
        f"{record.date}, {machine.cpu}, {record.threads} threads, float32, "
        f"malloc: {record.malloc}. Command: {record.command}",
    ]
    if limits is not None:
        lines.append(
            f"Limits measured in the same run: STREAM triad {limits.bandwidth / 1e9:.1f} GB/s, "
            f"float32 matrix product {limits.rate / 1e9:.0f} GFlop/s."
        )
    disturbed = [each for each in (*record.peers, *record.sar) if each.disturbed]
    if disturbed:
        lines.append(
            f"Other processes used the cores in rounds of {len(disturbed)} measurements, "
            "marked with *: do not rely on those. Means leave them out where they can."
        )
    for name, versions in record.versions.items():
        lines.append(f"{name}: {', '.join(f'{key} {value}' for key, value in versions.items())}.")
    for name, reason in record.absent.items():
        lines.append(f"{name} does not take part: {reason}.")
    for name, size in record.sizes.items():
        lines.append(
            f"{name}: {size.num_nodes:,} nodes, {size.num_edges:,} edges, {size.num_features} "
            f"features, {size.num_classes} classes."
        )
    return lines


def markdown(record: Record) -> str:
    """The circumstances and all comparing tables as Markdown."""
    blocks = ["\n".join(f"- {line}" for line in circumstances(record))]
    blocks += [f"**{sheet.title}**\n\n{pipes(sheet)}" for sheet in summaries(record)]
    return "\n\n".join(blocks) + "\n"


def pipes(sheet: Sheet) -> str:
    """A table as Markdown."""
    rule = ["---" if index < sheet.num_names else "---:" for index in range(len(sheet.columns))]
    return "\n".join(_line(cells) for cells in (sheet.columns, rule, *sheet.rows))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def plot_sar(record: Record, path: Path) -> None:
    """Draws the epoch's time over the number of parts, relative to one device.

    Args:
      record: record of a run with SAR.
      path: path of the image; its suffix is its format.

    Raises:
      ImportError: matplotlib is not installed (`jaxgraph[plot]`).
    """
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    curves: dict[str, list[float]] = {}
    for each in record.sar:
        if each.seconds:
            median = spread(each.seconds).median
            curves.setdefault(f"{each.task.label}, {each.graph}", []).append(median)
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for label, medians in curves.items():
        parts = [2**index for index in range(len(medians))]
        axes.plot(parts, [median / medians[0] for median in medians], marker="o", label=label)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="parts (emulated devices, same cores)", ylabel="epoch, times one device's")
    axes.axhline(1.15, linestyle=":", color="gray")
    axes.legend()
    figure.savefig(path)
