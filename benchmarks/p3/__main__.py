"""Traffic, memory and balance of mode "p3" against domain and SAR, from compiled steps.

The first layer of GraphSAGE runs under P3, under `domain` in both orders (aggregate first moves
features, transform first moves activations), under `domain` with the first aggregation computed
once, and under `sar`; on hash and METIS partitions. Features vary at 32 hidden features, as in
figure 10 of the paper, and hidden features at 100 features, as in figure 15, on a generated graph
like ogbn-arxiv; then on Coauthor-CS with its 6,805 features, where its folder is given. The
generated graph is smaller than ogbn-arxiv, to save time. It has the same degrees and nearly the
same traffic ratios (at full size, P3's to transform first is a twentieth to an eighth higher).
Nothing runs: the figures are those of programs compiled for emulated devices. In the traffic of
`sar`, every step of its ring counts as the largest. A step of aggregate first sends the features
twice, since models recompute their layers in the backward.

    python -m benchmarks.p3 --data-dir DIR [--plot p3.png]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

import jaxgraph as jg
from benchmarks.command_line import make_parser, write_figures
from benchmarks.generated import OGBN_ARXIV, generate
from benchmarks.p3 import report
from benchmarks.p3.measure import (
    Cut,
    Partitioning,
    Step,
    Transfer,
    cut,
    measure_steps,
    measure_transfers,
)

SWEPT_HIDDEN, SWEPT_FEATURES = 32, 100
METHODS = ("hash", "metis")
COAUTHOR_DEVICES, COAUTHOR_HIDDEN = [8, 16], 16
# The code does not run, so it need not be fast; collectives and buffers are chosen earlier.
NO_CODE = "--xla_backend_optimization_level=0"


@dataclasses.dataclass
class Results:
    """All results."""

    transfers: list[Transfer] = dataclasses.field(default_factory=list)
    steps: list[Step] = dataclasses.field(default_factory=list)
    partitionings: list[Partitioning] = dataclasses.field(default_factory=list)

    def rows(self) -> Iterator[dict[str, object]]:
        """Rows for a file, each with its kind."""
        for kind, rows in vars(self).items():
            for row in rows:
                yield {"kind": kind, **dataclasses.asdict(row)}


def cuts(name: str, graph: jg.Graph, device_counts: list[int]) -> Iterator[Cut]:
    """The graph in parts by every method, for every number of devices."""
    for method in METHODS:
        for devices in device_counts:
            yield cut(name, graph, devices, method)


def measure(options: argparse.Namespace) -> Results:
    """Compiles everything."""
    results = Results()
    by_features = [(features, SWEPT_HIDDEN) for features in options.features]
    by_hidden = [(SWEPT_FEATURES, hidden) for hidden in options.hidden]
    widths = list(dict.fromkeys(by_features + by_hidden))
    ends = widths if options.compile_all else [by_features[-1], by_hidden[-1]]
    like_arxiv = generate(OGBN_ARXIV, scale=options.scale)
    for made in cuts("like arxiv", like_arxiv, options.devices):
        results.partitionings.append(made.summary)
        results.transfers += measure_transfers(made, widths, ends)
        results.steps += measure_steps(made, OGBN_ARXIV.num_features, SWEPT_HIDDEN)
    if options.data_dir is not None:
        graph = jg.datasets.load("coauthor-cs", data_dir=options.data_dir)
        width = (graph.num_features, COAUTHOR_HIDDEN)
        for made in cuts("coauthor-cs", graph, COAUTHOR_DEVICES):
            results.partitionings.append(made.summary)
            results.transfers += measure_transfers(made, [width], [width])
            results.steps += measure_steps(made, *width)
    return results


def read_arguments(arguments: list[str]) -> argparse.Namespace:
    """The options of the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("JAXGRAPH_DATA"))
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--features", type=int, nargs="+", default=[16, 32, 64, 128, 256, 512])
    parser.add_argument("--hidden", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256, 512])
    parser.add_argument("--scale", type=int, default=8, help="1/scale of ogbn-arxiv's nodes")
    parser.add_argument(
        "--compile-all", action="store_true", help="compile every point, not only the last of a row"
    )
    parser.add_argument("--plot", type=Path, help="draw traffic here; needs matplotlib")
    return parser.parse_args(arguments)


def main() -> None:
    """Reads the command line, measures, prints and draws."""
    options = read_arguments(sys.argv[1:])
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {NO_CODE}"
    num_devices = max(*options.devices, *COAUTHOR_DEVICES)
    jg.process.tune_process(num_devices=num_devices)
    jg.parallel.emulate_devices(num_devices)
    results = measure(options)
    console = Console(width=170)
    report.show_transfers(results.transfers, console)
    report.show_steps(results.steps, console)
    report.show_partitionings(results.partitionings, console)
    for line in report.conclusions(results.transfers, results.steps, results.partitionings):
        console.print(f"- {line}", highlight=False)
    if options.data_dir is None:
        console.print("- Coauthor-CS is left out: name a folder with --data-dir or JAXGRAPH_DATA")
    write_figures(options.json, results.rows())
    if options.plot:
        report.plot(results.transfers, max(options.devices), options.plot)


if __name__ == "__main__":
    main()
