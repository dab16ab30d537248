"""Tables of a run, and SAR's cost as a plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.markup import escape
from rich.table import Table

from benchmarks.cpu.measure import Measurement


def add_ratios(rows: Sequence[Measurement]) -> None:
    """Divides every median by that of the first contestant that did the task on the graph."""
    bases: dict[tuple, float] = {}
    for row in rows:
        if row.median is not None:
            row.ratio = row.median / bases.setdefault((row.graph, row.task), row.median)


def details(rows: Sequence[Measurement], title: str) -> Table:
    """Every measurement: times, error, memory above the loaded graph, compilation."""
    table = Table("task", "library", title=escape(title), title_justify="left")
    for column in ("ms", "quartiles", "times the first", "error", "MB", "compiled in s"):
        table.add_column(column, justify="right")
    table.add_column("way")
    for row in rows:
        if row.median is None or row.ratio is None:
            table.add_row(row.task.label, row.contestant, "failed", *[""] * 5, escape(row.failure))
            continue
        lower, upper = np.percentile(row.seconds, (25, 75))
        table.add_row(
            row.task.label,
            row.contestant,
            f"{1e3 * row.median:.2f}",
            f"{1e3 * lower:.2f} - {1e3 * upper:.2f}",
            f"{row.ratio:.2f}",
            "" if row.error is None else f"{row.error:.0e}",
            "" if row.memory is None else f"{row.memory / 1e6:,.0f}",
            "" if row.compile_seconds is None else f"{row.compile_seconds:.1f}",
            row.path,
        )
    return table


def means(rows: Sequence[Measurement]) -> Table:
    """Times faster than each other contestant, by group of tasks, over graphs and sizes."""
    base, *others = dict.fromkeys(row.contestant for row in rows)
    title = f"Times that {base} is faster: geometric mean (least) over graphs and sizes"
    table = Table("tasks", *others, title=title, title_justify="left")
    for group in dict.fromkeys(row.task.group for row in rows):
        cells = []
        for name in others:
            own = [row for row in rows if (row.task.group, row.contestant) == (group, name)]
            ratios = [row.ratio for row in own if row.ratio is not None]
            mean = statistics.geometric_mean(ratios) if ratios else None
            cells.append("" if mean is None else f"{mean:.2f} ({min(ratios):.2f})")
        table.add_row(group, *cells)
    return table


def plot_sar(rows: Sequence[Measurement], path: Path) -> None:
    """Draws the epoch's time over the number of parts, in times one device's; needs matplotlib."""
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    curves: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.ratio is not None:
            parts = int(row.contestant.split()[0])
            curves.setdefault(f"{row.task.label}, {row.graph}", {})[parts] = row.ratio
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for label, curve in curves.items():
        axes.plot(list(curve), list(curve.values()), marker="o", label=label)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="parts (emulated devices, same cores)", ylabel="epoch, times one device's")
    axes.legend()
    figure.savefig(path)
