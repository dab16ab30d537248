"""Epochs of a streamed graph beside those of one device: time, peak memory and bytes moved.

    python -m benchmarks.stream [--parts 2 4 8] [--orders rows columns] [--plot X.svg] --folder DIR

The graph is generated, with communities, and METIS cuts it. Each configuration runs in a process of
its own, in turns. Memory is the peak of resident pages (VmHWM) in training, compilation included,
less the pages that the process holds after it has trained the same model on a graph of 512 nodes.
glibc returns large blocks to Linux in all of them (`MALLOC_MMAP_THRESHOLD_=1000000`), so that the
peak counts no freed memory, and asks for large pages for them, whose faults take less time. The
page cache holds the files of the folder. "Rehearsed" is the device's memory as `History.needs` has
it, before the first epoch.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import jaxgraph as jg
from benchmarks.command_line import make_parser, write_figures
from benchmarks.cpu.resident import peak_bytes, reset_peak, resident_bytes, settle
from benchmarks.generated import Shape, generate

FEATURES, CLASSES = 128, 16
SMALL = 512
RETURNED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "1000000",
    "MALLOC_ARENA_MAX": "1",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
EPOCHS = 4
GRINNDER = (2.66, 4.35)
"""GriNNder takes 2.66 times less memory and 4.35 times the time (arXiv 2605.11517, on a GPU)."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One configuration.

    Attributes:
      parts: number of parts; 0: the whole graph on one device.
      order: of the backward.
      seconds: the median of an epoch.
      memory: peak in bytes, above what a process takes without the graph.
      rehearsed: bytes of the device that the rehearsal of an epoch counted; 0 on one device.
      sent, returned: bytes moved per epoch.
      loss: of the last epoch.
    """

    parts: int
    order: str
    seconds: float
    memory: int
    rehearsed: int
    sent: int
    returned: int
    loss: float


def worker(parts_folder: str, order: str, layers: int, epochs: int, folder: str) -> dict[str, Any]:
    """Trains on the parts of a folder, in rows or columns, or on one device (order "core")."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    without = resident_without_a_graph(layers, order, folder)
    sharded = open_graph(parts_folder, order, folder)
    settle()
    reset_peak()
    model, optimizer = make_model(layers)
    history = jg.train.fit(model, sharded, optimizer, epochs=epochs, aggregate_once=False)
    moved = getattr(getattr(sharded, "host", None), "moved", None)
    return {
        "seconds": statistics.median(history.epoch_seconds[1:]),
        "memory": peak_bytes() - without,
        "rehearsed": history.needs.device if history.needs else 0,
        "sent": moved.sent // epochs if moved else 0,
        "returned": moved.returned // epochs if moved else 0,
        "loss": history.records[-1].loss,
    }


def open_graph(parts_folder: str, order: str, folder: str) -> Any:
    """Places the parts of a folder."""
    from jaxgraph.parallel.streaming.graph import Pipeline, streamed_graph

    source, mesh = jg.parallel.open_parts(Path(parts_folder) / "parts"), jg.parallel.make_mesh(1)
    if order == "core":
        return jg.parallel.place(source, mesh, "sar")
    return streamed_graph(source, mesh, folder=folder or None, pipeline=Pipeline(order=order))


def make_model(layers: int) -> tuple[Any, Any]:
    """A GCN and an optimizer."""
    import optax
    from flax import nnx

    model = jg.nn.GCN(FEATURES, FEATURES, CLASSES, num_layers=layers, rngs=nnx.Rngs(0))
    return model, optax.adam(1e-2)


def resident_without_a_graph(layers: int, order: str, folder: str) -> int:
    """The resident bytes after two epochs on a small graph."""
    with tempfile.TemporaryDirectory() as written:
        write(Shape(SMALL, 8 * SMALL, FEATURES, CLASSES), 1 if order == "core" else 2, written)
        sharded = open_graph(written, order, folder)
        model, optimizer = make_model(layers)
        jg.train.fit(model, sharded, optimizer, epochs=2, aggregate_once=False)
    del sharded, model
    settle()
    return resident_bytes()


def write(shape: Shape, parts: int, folder: str) -> None:
    """Writes the parts of a generated graph."""
    graph = generate(shape)
    partition = jg.partition.partition(graph, parts, method="metis", seed=0)
    jg.parallel.write_parts(graph, partition, Path(folder) / "parts", "sar")


def in_own_process(module: str, arguments: Sequence[Any]) -> str:
    """The output of a benchmark, run in a process that returns freed memory."""
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        stdout=subprocess.PIPE,
        env=os.environ | RETURNED_MEMORY | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        text=True,
    ).stdout


def run(parts_folder: str, order: str, options: Any) -> dict[str, Any]:
    """Runs a worker."""
    arguments = [parts_folder, order, options.layers, EPOCHS, options.folder or ""]
    return json.loads(in_own_process("benchmarks.stream", ["--worker", *arguments]))


def measure(options: Any, temporary: Path) -> list[Row]:
    """Measures all configurations, in turns."""
    for parts in (1, *options.parts):
        folder = temporary / str(parts)
        folder.mkdir()
        shape = ("--nodes", options.nodes, "--degree", options.degree)
        in_own_process("benchmarks.stream", ["--write", parts, folder, *shape])
    wanted = [(1, "core")] + [(p, order) for p in options.parts for order in options.orders]
    found: dict[Any, list[dict[str, Any]]] = {each: [] for each in wanted}
    for _ in range(options.rounds):
        for parts, order in wanted:
            found[parts, order].append(run(str(temporary / str(parts)), order, options))
    return [
        Row(
            0 if order == "core" else parts,
            order,
            statistics.median(each["seconds"] for each in rounds),
            int(statistics.median(each["memory"] for each in rounds)),
            rounds[0]["rehearsed"],
            rounds[0]["sent"],
            rounds[0]["returned"],
            rounds[0]["loss"],
        )
        for (parts, order), rounds in found.items()
    ]


def show(rows: Sequence[Row], options: Any) -> None:
    """Prints the table."""
    core = rows[0]
    table = Table(
        title=f"GCN, {options.layers} layers of {FEATURES}, {options.nodes:,} nodes of degree "
        f"{options.degree}"
    )
    columns = ("parts", "backward", "epoch", "times one device", "peak memory", "less by")
    for column in (*columns, "rehearsed", "to the device", "back", "loss"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            str(row.parts or "one device"),
            row.order if row.parts else "",
            f"{row.seconds:.2f} s",
            f"{row.seconds / core.seconds:.2f}",
            f"{row.memory / 1e6:,.0f} MB",
            f"{core.memory / max(row.memory, 1):.2f}",
            f"{row.rehearsed / 1e6:,.0f} MB" if row.parts else "",
            f"{row.sent / 1e6:,.0f} MB",
            f"{row.returned / 1e6:,.0f} MB",
            f"{row.loss:.5f}",
        )
    Console(width=140).print(table)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draws the time of an epoch over the memory that it saves, a point for each number of parts.

    Args:
      rows: of the table.
      path: of the image; its suffix is its format.

    Raises:
      ImportError: matplotlib is not installed (`jaxgraph[plot]`).
    """
    from matplotlib import rc_context  # pyright: ignore[reportMissingImports]
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    core, figure = rows[0], Figure(figsize=(4.6, 3), layout="constrained")
    axes = figure.subplots()
    for order in dict.fromkeys(row.order for row in rows[1:]):
        own = [core, *(row for row in rows if row.order == order)]
        points = [(core.memory / row.memory, row.seconds / core.seconds) for row in own]
        axes.plot(*zip(*points, strict=True), marker="o", label=f"jaxgraph, backward in {order}")
        for row, point in zip(own, points, strict=True):
            axes.annotate(str(row.parts or 1), point, (5, -9), textcoords="offset points")
    axes.plot(*GRINNDER, "k*", label="GriNNder, on a GPU")
    axes.set(xlabel="times less memory, by number of parts", ylabel="times the epoch of one device")
    axes.legend(fontsize=8)
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(path)


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--nodes", type=int, default=262_144)
    parser.add_argument("--degree", type=int, default=50)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--parts", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--orders", nargs="+", default=["rows"], choices=["rows", "columns"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="of a disk; parts wait in memory if left")
    parser.add_argument("--plot", type=Path, help="draw the curve here; needs matplotlib")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        parts_folder, order, layers, epochs, folder = options.worker
        print(json.dumps(worker(parts_folder, order, int(layers), int(epochs), folder)))
        return
    if options.write:
        parts, folder = options.write
        shape = Shape(options.nodes, options.degree * options.nodes, FEATURES, CLASSES)
        write(shape, int(parts), folder)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        rows = measure(options, Path(temporary))
    show(rows, options)
    write_figures(options.json, map(dataclasses.asdict, rows))
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
