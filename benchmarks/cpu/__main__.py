"""Times and memory on CPU: SpMM, attention, epochs and SAR, against DGL, PyG, torch and scipy.

Every library runs in its own process on the same graphs, the same float32 numbers and the same
number of threads; under SAR, XLA has one thread more for each emulated device, on the same cores.
On one device jaxgraph computes on the calling thread, as the peers do
(`jax_cpu_enable_async_dispatch`). jaxgraph orders the nodes when it lays out a graph. Results are
compared first; then the libraries are timed in turns, while the others are stopped. A peer that
cannot be imported is listed with the reason; peers may be installed in another environment
(`--peer-python`). "XLA" is jaxgraph without its kernels. A quick run leaves out the slowest
measurements: epochs without kernels, and PyG's attention on large graphs.

    python -m benchmarks.cpu --quick                # under five minutes on two cores
    python -m benchmarks.cpu --json cpu.json --peer-python PEERS/bin/python
    python -m benchmarks.cpu --only sar --plot sar.png
    python -m benchmarks.cpu --quick --peers --before CHECKOUT  # of another commit, kernels built
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console

from benchmarks.command_line import make_parser, write_figures
from benchmarks.cpu import graphs, report
from benchmarks.cpu.inputs import Data
from benchmarks.cpu.measure import Measurement, Pace, measure_task
from benchmarks.cpu.models import MODELS
from benchmarks.cpu.process import Contestant, WorkerFailure, start_worker
from benchmarks.cpu.tasks import Attention, Epoch, SpMM, Task, Triad

OURS = Contestant("jaxgraph", "jaxgraph")
PORTABLE = Contestant("XLA", "jaxgraph", {"implementation": "xla"})
PEERS = {"DGL": "dgl", "PyG": "pyg", "torch": "torch", "scipy": "scipy"}
"""Module of every peer."""

QUICK_PATIENCE = 1.0
"""Seconds that PyG may try its variants in a quick run."""

QUICK_MESSAGE_BYTES = 1 << 30
"""Largest messages, [edges, heads, features], for PyG's attention in a quick run."""

TRIAD = Triad(1 << 26)
"""Three arrays of 256 MiB each."""

TASKS: dict[str, tuple[Task, ...]] = {
    "spmm": tuple(SpMM(n, weighted) for weighted in (False, True) for n in (16, 41, 128, 256)),
    "attention": tuple(
        Attention(*heads, backward) for backward in (False, True) for heads in ((4, 32), (8, 16))
    ),
    "epochs": tuple(Epoch(model) for model in MODELS),
}
"""The tasks of every topic."""

QUICK = (SpMM(16), SpMM(128), SpMM(128, True), Attention(4, 32), Attention(4, 32, True))
"""The ops of a quick run."""


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a subset that takes minutes")
    topics = (*TASKS, "sar")
    parser.add_argument("--only", nargs="+", choices=topics, help="default: all; --quick: not sar")
    parser.add_argument("--graphs", nargs="+", choices=graphs.GENERATED, metavar="NAME")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS), metavar="NAME")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter of the peers")
    parser.add_argument("--before", help="checkout of another commit, one more contestant")
    parser.add_argument("--threads", type=int, default=2, help="of every library")
    parser.add_argument("--rounds", type=int, help="of every task; default: by its kind")
    parser.add_argument("--plot", type=Path, help="draw SAR's cost here; needs matplotlib")
    options = parser.parse_args(arguments)
    options.only = options.only or (TASKS if options.quick else topics)
    return options


def contestants(options: argparse.Namespace) -> list[Contestant]:
    """The libraries that are compared, jaxgraph first."""
    found = [OURS, PORTABLE]
    if options.before:
        found.append(Contestant("before", "jaxgraph", jaxgraph=str(Path(options.before).resolve())))
    for name in options.peers:
        patience = {"patience": QUICK_PATIENCE} if options.quick and name == "PyG" else {}
        found.append(Contestant(name, PEERS[name], patience, options.peer_python))
    return found


def sar_contestants(quick: bool) -> list[Contestant]:
    """One device, and SAR on several emulated ones on the same cores."""
    counts = (1, 2) if quick else (1, 2, 4, 8, 16)
    return [Contestant(f"{count} parts", "jaxgraph", {"parts": count}) for count in counts]


def tasks_of(graph: str, topics: Sequence[str], quick: bool) -> list[Task]:
    """The tasks of a graph; a quick run has only the fastest epochs of a large one."""
    found = [task for topic in topics for task in TASKS.get(topic, ())]
    if not quick:
        return found
    epochs = TASKS["epochs"][: 1 if graph == "arxiv-size" else None]
    return [task for task in found if task in QUICK or task in epochs]


def pace(task: Task, quick: bool, rounds: int | None) -> Pace:
    """The rounds and seconds of a task; all rounds where their number is given."""
    if isinstance(task, SpMM):
        own = Pace(7, 5.0) if quick else Pace(15, 20.0)
    elif isinstance(task, Epoch):
        own = Pace(5, 1.5, 0.3) if quick else Pace(9, 60.0, 0.3)
    else:
        own = Pace(5, 1.5) if quick else Pace(11, 40.0)
    return own if rounds is None else Pace(rounds, float("inf"), own.round_seconds)


def sits_out(task: Task, num_edges: int) -> set[str]:
    """The contestants that would take most of the time of a quick run."""
    if isinstance(task, Epoch):
        return {PORTABLE.name}
    is_large = (
        isinstance(task, Attention)
        and 4 * num_edges * task.heads * task.features > QUICK_MESSAGE_BYTES
    )
    return {"PyG"} if is_large else set()


class Run:
    """A run of the program.

    Args:
      options: options of the command line.
      scratch: folder for the files of workers.
      console: where everything is shown.
    """

    def __init__(self, options: argparse.Namespace, scratch: Path, console: Console) -> None:
        self.options, self.scratch, self.console = options, scratch, console
        self.absent: dict[str, str] = {}

    def measure_bandwidth(self) -> None:
        """Shows the bandwidth of the STREAM triad: the best run, three arrays moved."""
        (row,) = self.compare([OURS], "STREAM", None, [TRIAD])
        if row.seconds:
            bandwidth = 3 * 4 * TRIAD.elements / min(row.seconds)
            self.console.print(f"STREAM triad: {bandwidth / 1e9:.1f} GB/s")

    def compare(
        self,
        wanted: Sequence[Contestant],
        graph: str,
        data: Data | None,
        tasks: Sequence[Task],
    ) -> list[Measurement]:
        """Runs the tasks of a graph with all contestants that can start, and shows the table."""
        found: list[Measurement] = []
        workers = {
            each.name: start_worker(each, self.options.threads, self.scratch) for each in wanted
        }

        def begin(each: Contestant) -> None:
            worker = workers[each.name]
            try:
                versions = worker.request("start", each.library, each.options, each.jaxgraph)
                if data is not None:
                    worker.request("load", data)
            except WorkerFailure as reason:
                self.absent[each.name] = str(reason)
                workers.pop(each.name).kill()
            else:
                shown = ", ".join(f"{package} {version}" for package, version in versions.items())
                self.console.print(f"{each.name}: {shown}", highlight=False)

        try:
            # Neither is timed, so workers start, and make formats, in parallel.
            with ThreadPoolExecutor(self.options.threads) as pool:
                list(pool.map(begin, wanted))
            quick, rounds = self.options.quick, self.options.rounds
            for task in tasks:
                left_out = sits_out(task, data.senders.size) if quick and data else ()
                found += measure_task(workers, graph, task, pace(task, quick, rounds), left_out)
        finally:
            for worker in workers.values():
                worker.kill()
        report.add_ratios(found)
        self.console.print(report.details(found, graph))
        return found


def main() -> int:
    """Measures and shows; returns 1 where a result was wrong or our own code failed."""
    options = read_arguments(sys.argv[1:])
    console = Console(width=None if sys.stdout.isatty() else 180)
    names = options.graphs or [
        name for name in graphs.GENERATED if not options.quick or name != "products/8-size"
    ]
    peers: list[Measurement] = []
    sar: list[Measurement] = []
    with tempfile.TemporaryDirectory(prefix="benchmarks-cpu-") as folder:
        run = Run(options, Path(folder), console)
        run.measure_bandwidth()
        for name in names if set(options.only) - {"sar"} else ():
            tasks = tasks_of(name, options.only, options.quick)
            peers += run.compare(contestants(options), name, graphs.make(name), tasks)
        if "sar" in options.only:
            for name in options.graphs or ["pubmed-size" if options.quick else "arxiv-size"]:
                parts = sar_contestants(options.quick)
                sar += run.compare(parts, name, graphs.make(name), TASKS["epochs"])
    if peers:
        console.print(report.means(peers))
    if options.plot:
        report.plot_sar(sar, options.plot)
    for name, reason in run.absent.items():
        console.print(f"{name} does not take part: {reason}", highlight=False, markup=False)
    rows = [dataclasses.asdict(row) | {"task": row.task.label} for row in (*peers, *sar)]
    write_figures(options.json, rows)
    faults = [row for row in (*peers, *sar) if row.failure and row.contestant not in PEERS]
    wrong = any(row.failure.startswith("wrong") for row in peers)
    return 1 if faults or wrong or run.absent.keys() - PEERS else 0


if __name__ == "__main__":
    sys.exit(main())
