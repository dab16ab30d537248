"""Runs that move to better parts while they train, beside runs that stay.

    python -m benchmarks.moves

A GCN of 3 layers, 128 wide, trains on the power law of ROC's figure 8 (`benchmarks.roc`), cut as
stated. Both runs of a cut have the same epochs; the second measures its layers and may move.
Emulated devices share the cores, so a move gains what the parts together save.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import optax
from rich.console import Console
from rich.table import Table

import jaxgraph as jg
from benchmarks.command_line import keep_freed_memory, make_parser, write_figures
from benchmarks.roc import make_graph, make_model


@dataclasses.dataclass(frozen=True)
class Row:
    """A run that may move, beside one that stays; seconds.

    Attributes:
      partitioner: of the first parts.
      stayed, moved: the whole call of `fit`, compilation included.
      predicted, measured: what an epoch gains by each move.
      predicted_cost, cost: of each move.
      share: measuring over the time of the epochs.
      difference: the largest relative difference of the two loss curves.
    """

    partitioner: str
    stayed: float
    moved: float
    predicted: tuple[float, ...]
    measured: tuple[float | None, ...]
    predicted_cost: tuple[float, ...]
    cost: tuple[float, ...]
    share: float
    difference: float


def measure(
    methods: Sequence[str], *, nodes: int, devices: int, epochs: int, seed: int
) -> Iterator[Row]:
    """Trains twice from each partition, first without moves."""
    graph, mesh = make_graph(nodes, 40, seed), jg.parallel.make_mesh(devices)
    for method in methods:
        parts = jg.partition.partition(graph, devices, method, seed=0)
        histories, seconds = [], []
        for moves in (False, True):
            sharded = jg.parallel.shard(graph, parts, mesh, "domain")
            options: dict[str, Any] = {"source": graph, "repartition": "auto"} if moves else {}
            started = time.perf_counter()
            histories.append(
                jg.train.fit(make_model(8), sharded, optax.adam(1e-3), epochs=epochs, **options)
            )
            seconds.append(time.perf_counter() - started)
        stayed, moved = (np.asarray(history.loss) for history in histories)
        measured = histories[1].measured
        assert measured is not None
        yield Row(
            partitioner=method,
            stayed=seconds[0],
            moved=seconds[1],
            predicted=tuple(move.predicted_gain for move in measured.moves),
            measured=tuple(move.measured_gain for move in measured.moves),
            predicted_cost=tuple(move.predicted_seconds for move in measured.moves),
            cost=tuple(move.seconds for move in measured.moves),
            share=measured.share,
            difference=float(np.max(np.abs(stayed - moved) / np.abs(stayed))),
        )


def show(rows: Sequence[Row], title: str, console: Console) -> None:
    """Prints the rows as a table."""
    table = Table("first parts", title=title)
    for column in ("stays, s", "may move, s", "gain, ms", "cost, s", "measuring", "losses differ"):
        table.add_column(column, justify="right")
    for row in rows:
        gains = [
            f"{1e3 * a:.1f} / {'-' if b is None else f'{1e3 * b:.1f}'}"
            for a, b in zip(row.predicted, row.measured, strict=True)
        ]
        costs = [f"{a:.1f} / {b:.1f}" for a, b in zip(row.predicted_cost, row.cost, strict=True)]
        table.add_row(
            row.partitioner,
            f"{row.stayed:.0f}",
            f"{row.moved:.0f}",
            "\n".join(gains) or "no move",
            "\n".join(costs),
            f"{row.share:.2%}",
            f"{row.difference:.1e}",
        )
    console.print(table)
    console.print("gain of an epoch and cost of a move: predicted / measured")


def main() -> None:
    """Reads the command line, trains and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--partitioners", nargs="+", default=["equal-vertices", "hash"])
    parser.add_argument("--nodes", type=int, default=40_000)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=600)
    parser.add_argument("--seed", type=int, default=61)
    options = parser.parse_args()
    keep_freed_memory("benchmarks.moves")
    jg.process.tune_process(num_devices=options.devices)
    jg.parallel.emulate_devices(options.devices)
    sizes = {name: getattr(options, name) for name in ("nodes", "devices", "epochs", "seed")}
    rows = list(measure(options.partitioners, **sizes))
    title = f"GCN, {options.nodes} nodes, {options.devices} devices, {options.epochs} epochs"
    show(rows, title, Console(width=110))
    write_figures(options.json, map(dataclasses.asdict, rows))


if __name__ == "__main__":
    main()
