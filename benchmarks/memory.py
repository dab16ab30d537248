"""Temporary memory and traffic per device of compiled train steps, by schedule and device count.

The graph is random: 16,384 nodes of degree 16 with 64 features, cut by hash. The models have 3
layers of width 64 (GAT 4 heads of 16) with batch normalisation and dropout, under Adam. Memory is
counted in blocks, nodes / devices x 64 x 4 bytes: the activations of one layer on one device.
Nothing runs: the figures are those of the compiled programs.

    python -m benchmarks.memory [--plot memory.svg]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import optax

import jaxgraph as jg
from benchmarks.command_line import make_parser, report, write_plot
from benchmarks.generated import make_model
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel.sharded_graph import AbstractSource

NODES, DEGREE, FEATURES, CLASSES = 16_384, 16, 64, 16


def temporary_bytes(compiled: jax.stages.Compiled) -> int:
    """Bytes that the program needs on each device in addition to its arguments and results."""
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


def measure(
    models: list[str], modes: list[str], device_counts: list[int]
) -> Iterator[dict[str, Any]]:
    """Compiles every combination; yields its figures."""
    graph = jg.datasets.load(
        "random", num_nodes=NODES, degree=DEGREE, num_features=FEATURES, seed=0
    )
    for devices in device_counts:
        parts = jg.partition.partition(graph, devices, method="hash", seed=0)
        mesh = jg.parallel.make_mesh(devices)
        for mode in modes:
            schedule, _, prefetch = mode.partition("+")
            manifest = tabulate(graph, parts, schedule).manifest
            source = AbstractSource(manifest)
            sharded = jg.parallel.place(source, mesh, schedule, prefetch=bool(prefetch))
            block = NODES / devices * 64 * 4
            for name in models:
                model = make_model(name, FEATURES, 64, CLASSES)
                compiled = jg.train.compile_train_step(model, sharded, optax.adam(1e-2))
                inference = jg.train.compile_inference(model, sharded)
                yield {
                    "model": name,
                    "mode": mode,
                    "devices": devices,
                    "train_blocks": temporary_bytes(compiled) / block,
                    "inference_blocks": temporary_bytes(inference) / block,
                    "bytes_sent": sum(jg.analysis.traffic(compiled).values()),
                }


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws megabytes per device over the number of devices, a panel for each model."""
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    models = list(dict.fromkeys(row["model"] for row in rows))
    figure = Figure(figsize=(3.2 * len(models) + 0.6, 3), layout="constrained")
    for model, axes in zip(models, figure.subplots(1, len(models), squeeze=False)[0], strict=True):
        for mode in dict.fromkeys(row["mode"] for row in rows):
            own = [row for row in rows if (row["model"], row["mode"]) == (model, mode)]
            counts = [row["devices"] for row in own]
            sizes = [row["train_blocks"] * NODES / row["devices"] * 64 * 4 / 1e6 for row in own]
            axes.plot(counts, sizes, marker="o", label=mode)
        axes.set_xscale("log", base=2)
        axes.set(title=model, xlabel="devices", yscale="log")
        axes.set_xticks(counts, [str(count) for count in counts])
    figure.axes[0].set_ylabel("MB per device, beside graph\nand parameters")
    figure.axes[0].legend(fontsize=8)
    write_plot(figure, path)


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--models", nargs="+", default=["sage", "gcn", "gat", "gatv2"])
    parser.add_argument("--modes", nargs="+", default=["sar", "sar+prefetch", "domain"])
    parser.add_argument("--plot", type=Path, help="draw memory here; needs matplotlib")
    arguments = parser.parse_args()
    jg.parallel.emulate_devices(max(arguments.devices))
    rows = list(measure(arguments.models, arguments.modes, arguments.devices))
    report("Temporary memory per device, and bytes sent per step", rows, arguments.json)
    if arguments.plot:
        plot(rows, arguments.plot)


if __name__ == "__main__":
    main()
