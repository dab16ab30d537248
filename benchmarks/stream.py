"""Epochs of a streamed graph beside those of one device: time, peak memory and bytes moved.

    python -m benchmarks.stream [--parts 2 4 8] [--plot X.svg] --folder DIR

The graph is generated, with communities, and METIS cuts it. Each configuration runs in a process of
its own, in turns. Memory is the peak of resident pages (VmHWM) in training, compilation included,
less the pages that the process holds after it has trained the same model on a graph of 512 nodes.
glibc returns large blocks to Linux in all of them (`MALLOC_MMAP_THRESHOLD_=1000000`), so that the
peak counts no freed memory, and asks for large pages for them, whose faults take less time. The
page cache holds the files of the folder. "Rehearsed" is the device's memory as `History.needs` has
it, before the first epoch.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jaxgraph as jg
from benchmarks.command_line import in_own_process, make_parser, report, write_plot
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


def worker(parts_folder: Path, parts: int, layers: int, folder: Path | None) -> dict[str, Any]:
    """Trains on the parts of a folder, or on one device where it has one part."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    without = resident_without_a_graph(parts > 1, layers, folder)
    sharded = open_graph(parts_folder, parts > 1, folder)
    settle()
    reset_peak()
    model, optimizer = make_model(layers)
    history = jg.train.fit(model, sharded, optimizer, epochs=EPOCHS, aggregate_once=False)
    moved = getattr(getattr(sharded, "host", None), "moved", None)
    return {
        "parts": parts,
        "epoch_seconds": statistics.median(history.epoch_seconds[1:]),
        "peak_MB": (peak_bytes() - without) / 1e6,
        "rehearsed_MB": history.needs.device / 1e6 if history.needs else None,
        "sent_MB": moved.sent / EPOCHS / 1e6 if moved else None,
        "back_MB": moved.returned / EPOCHS / 1e6 if moved else None,
        "loss": history.records[-1].loss,
    }


def open_graph(parts_folder: Path, is_streamed: bool, folder: Path | None) -> Any:
    """Places the parts of a folder."""
    source, mesh = jg.parallel.open_parts(parts_folder), jg.parallel.make_mesh(1)
    options: dict[str, Any] = {"folder": folder} if is_streamed else {}
    return jg.parallel.place(source, mesh, "stream" if is_streamed else "sar", **options)


def make_model(layers: int) -> tuple[Any, Any]:
    """A GCN and an optimizer."""
    import optax
    from flax import nnx

    model = jg.nn.GCN(FEATURES, FEATURES, CLASSES, num_layers=layers, rngs=nnx.Rngs(0))
    return model, optax.adam(1e-2)


def resident_without_a_graph(is_streamed: bool, layers: int, folder: Path | None) -> int:
    """The resident bytes after two epochs on a small graph."""
    with tempfile.TemporaryDirectory() as temporary:
        written, shape = Path(temporary, "parts"), Shape(SMALL, 8 * SMALL, FEATURES, CLASSES)
        write(shape, 2 if is_streamed else 1, written)
        sharded = open_graph(written, is_streamed, folder)
        model, optimizer = make_model(layers)
        jg.train.fit(model, sharded, optimizer, epochs=2, aggregate_once=False)
    del sharded, model
    settle()
    return resident_bytes()


def write(shape: Shape, parts: int, folder: Path) -> None:
    """Writes the parts of a generated graph."""
    graph = generate(shape)
    partition = jg.partition.partition(graph, parts, method="metis", seed=0)
    jg.parallel.write_parts(graph, partition, folder, "sar")


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function in a process that returns freed memory."""
    return in_own_process(function, *arguments, variables=RETURNED_MEMORY)


def measure(options: Any, temporary: Path) -> list[dict[str, Any]]:
    """Measures all configurations, in turns; the first is one device."""
    shape = Shape(options.nodes, options.degree * options.nodes, FEATURES, CLASSES)
    found: dict[int, list[dict[str, Any]]] = {parts: [] for parts in (1, *options.parts)}
    for parts in found:
        apart(write, shape, parts, temporary / str(parts))
    for _ in range(options.rounds):
        for parts, rounds in found.items():
            folder = temporary / str(parts)
            rounds.append(apart(worker, folder, parts, options.layers, options.folder))
    rows = []
    for rounds in found.values():
        names = ("epoch_seconds", "peak_MB")
        medians = {name: statistics.median(each[name] for each in rounds) for name in names}
        row = rounds[0] | medians
        one = rows[0] if rows else row
        row["times_one_device"] = row["epoch_seconds"] / one["epoch_seconds"]
        row["less_by"] = one["peak_MB"] / row["peak_MB"]
        rows.append(row)
    return rows


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the time of an epoch over the memory that it saves, by number of parts."""
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    figure = Figure(figsize=(4.6, 3), layout="constrained")
    axes = figure.subplots()
    points = [(row["less_by"], row["times_one_device"]) for row in rows]
    axes.plot(*zip(*points, strict=True), marker="o", label="jaxgraph, backward in rows")
    for row, point in zip(rows, points, strict=True):
        axes.annotate(str(row["parts"]), point, (5, -9), textcoords="offset points")
    axes.plot(*GRINNDER, "k*", label="GriNNder, on a GPU")
    axes.set(xlabel="times less memory, by number of parts", ylabel="times the epoch of one device")
    axes.legend(fontsize=8)
    write_plot(figure, path)


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--nodes", type=int, default=262_144)
    parser.add_argument("--degree", type=int, default=50)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--parts", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="of a disk; parts wait in memory if left")
    parser.add_argument("--plot", type=Path, help="draw the curve here; needs matplotlib")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        rows = measure(options, Path(temporary))
    title = f"GCN, {options.layers} layers of {FEATURES}, {options.nodes:,} nodes"
    report(f"{title} of degree {options.degree}", rows, options.json)
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
