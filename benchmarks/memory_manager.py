"""Transfers of ROC's memory manager against no cache and least recently used, as its figure 10.

A training step of GCN on one device, from counts of the graph alone: Reddit's 232,965 nodes,
114,848,857 edges of 4 bytes, 602 features and 41 classes, in float32. Capacities go from the least
that works (share 0), where the largest operation fits alone, to the most that a step uses (1).
Bytes are those between host and device in both directions; every schedule is executed by the
simulator, which checks it. "write-back" is a least-recently-used cache that knows no future: it
saves every tensor that it drops. "LRU" knows the tensors that no later operation reads.

    python -m benchmarks.memory_manager [--plot transfers.png]
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.command_line import make_parser, write_figures
from jaxgraph.planner.memory.cache_policies import (
    least_recently_used,
    no_cache,
    write_back_cache,
)
from jaxgraph.planner.memory.dataflow import gcn_step
from jaxgraph.planner.memory.dynamic_program import least_transfer
from jaxgraph.planner.memory.schedule import simulate

NODES, EDGES, FEATURES, CLASSES, EDGE_BYTES = 232_965, 114_848_857, 602, 41, 4
BASELINES = {
    "no cache": no_cache,
    "write-back": write_back_cache,
    "LRU": least_recently_used,
}


@dataclasses.dataclass(frozen=True)
class Row:
    """The bytes moved at one capacity.

    Attributes:
      layers, hidden: of the model.
      share: where between least and most the capacity is.
      capacity: bytes of the device.
      planned: bytes that the memory manager moves.
      baselines: bytes that the others move, by name.
      seconds: that the memory manager planned.
    """

    layers: int
    hidden: int
    share: float
    capacity: int
    planned: int
    baselines: dict[str, int]
    seconds: float


def measure(layers: int, hidden: int, shares: Sequence[float]) -> Iterator[Row]:
    """Plans one model at capacities from the least (0) to the most (1)."""
    widths = (FEATURES, *[hidden] * (layers - 1), CLASSES)
    flow = gcn_step(NODES, EDGES, widths, EDGE_BYTES)
    least, _ = flow.least_capacity()
    everything = sum(flow.bytes.values())
    most = simulate(least_recently_used(flow, everything), everything).peak
    for share in shares:
        capacity = int(least + share * (most - least))
        start = time.perf_counter()
        planned = least_transfer(flow, capacity)
        seconds = time.perf_counter() - start
        moved = {
            name: simulate(schedule(flow, capacity), capacity).transferred
            for name, schedule in BASELINES.items()
        }
        bytes_moved = simulate(planned, capacity).transferred
        yield Row(layers, hidden, share, capacity, bytes_moved, moved, seconds)


def show(rows: Sequence[Row], console: Console) -> None:
    """Prints the table, and the range of each ratio."""
    table = Table(title="GB between host and device per step of GCN on Reddit, and over ROC's")
    for column in ("layers", "hidden", "share", "capacity", "ROC", *BASELINES):
        table.add_column(column, justify="right")
    for name in BASELINES:
        table.add_column(f"{name} / ROC", justify="right")
    latest = None
    for row in rows:
        if latest not in (None, (row.layers, row.hidden)):
            table.add_section()
        latest = row.layers, row.hidden
        sizes = (row.capacity, row.planned, *row.baselines.values())
        table.add_row(
            str(row.layers),
            str(row.hidden),
            f"{row.share:g}",
            *(f"{size / 1e9:.3f}" for size in sizes),
            *(f"{size / row.planned:.2f}" for size in row.baselines.values()),
        )
    console.print(table)
    for line in conclusions(rows):
        console.print(f"- {line}", highlight=False)


def conclusions(rows: Sequence[Row]) -> Iterator[str]:
    """The range of each ratio, and the slowest plan, in sentences."""
    for name in BASELINES:
        ratios = sorted(row.baselines[name] / row.planned for row in rows)
        low, middle, high = (f"{ratios[at]:.2f}" for at in (0, len(ratios) // 2, -1))
        yield f"{name}: {low} to {high} times ROC's bytes, {middle} in the middle"
    yield f"the slowest plan took {max(row.seconds for row in rows):.2f} s"


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draws bytes over capacity, a panel for each depth at the widest hidden layer.

    Raises:
      ImportError: matplotlib is not installed (`jaxgraph[plot]`).
    """
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    widest = max(row.hidden for row in rows)
    depths = sorted({row.layers for row in rows})
    figure = Figure(figsize=(4 * len(depths), 4), layout="constrained")
    for axes, depth in zip(figure.subplots(1, len(depths), squeeze=False)[0], depths, strict=True):
        some = [row for row in rows if (row.layers, row.hidden) == (depth, widest)]
        capacities = [row.capacity / 1e9 for row in some]
        axes.plot(capacities, [row.planned / 1e9 for row in some], marker="o", label="ROC")
        for name in BASELINES:
            sizes = [row.baselines[name] / 1e9 for row in some]
            axes.plot(capacities, sizes, marker="o", label=name)
        axes.set_ylim(bottom=0)
        axes.set(
            xlabel="GB of the device", ylabel="GB moved", title=f"{depth} layers, {widest} hidden"
        )
        axes.legend(fontsize="x-small")
    figure.savefig(path)


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--hidden", type=int, nargs="+", default=[16, 32, 64, 128, 256])
    parser.add_argument("--shares", type=float, nargs="+", default=[0, 0.25, 0.5, 0.75, 0.95])
    parser.add_argument("--plot", type=Path, help="draw bytes here; needs matplotlib")
    return parser.parse_args(arguments)


def main() -> None:
    """Reads the command line, plans, prints and draws."""
    options = read_arguments(sys.argv[1:])
    rows = [
        row
        for layers in options.layers
        for hidden in options.hidden
        for row in measure(layers, hidden, options.shares)
    ]
    show(rows, Console(width=120))
    write_figures(options.json, map(dataclasses.asdict, rows))
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
