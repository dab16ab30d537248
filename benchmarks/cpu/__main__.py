"""Times and memory on CPU: SpMM, attention, epochs and SAR, against DGL, PyG, torch and scipy.

Every library runs in its own process on the same graphs, the same float32 numbers, the same number
of threads and the same malloc setting; under SAR, XLA has one thread more for each emulated device,
on the same cores. On one device jaxgraph computes on the calling thread, as the peers do
(`jax_cpu_enable_async_dispatch`). jaxgraph orders the nodes when it lays out a graph; "as given" is
jaxgraph without that, and `--renumber` gives that order to all. Results are compared first; then
the libraries are timed in turns, while the others are stopped. A peer that cannot be imported is
listed with the reason; peers may be installed in another environment (`--peer-python`). A quick run
leaves out the slowest measurements: epochs without kernels, and PyG's attention on large graphs.

    python -m benchmarks.cpu --quick                # under five minutes on two cores
    python -m benchmarks.cpu --json cpu.json --markdown cpu.md --peer-python PEERS/bin/python
    python -m benchmarks.cpu --only sar --plot sar.png
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from benchmarks.cpu import graphs, report
from benchmarks.cpu.crew import Crew, Settings
from benchmarks.cpu.inputs import Data, write_data
from benchmarks.cpu.limits import limits
from benchmarks.cpu.measure import Measurement, measure_task
from benchmarks.cpu.plan import (
    AS_GIVEN,
    LIMITS,
    ORDER,
    OURS,
    PORTABLE,
    TOPICS,
    Contestant,
    pace,
    peers,
    peers_tasks,
    sar_contestants,
    sar_graphs,
    sar_tasks,
    sits_out,
)
from benchmarks.cpu.process import MALLOC, environment
from benchmarks.cpu.record import Record, this_machine
from benchmarks.cpu.sheets import details, summaries
from benchmarks.cpu.tasks import Task

MEMORY_SHARE = 0.7
"""Share of the machine's memory for one worker."""


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="a subset that takes minutes")
    parser.add_argument("--only", nargs="+", choices=TOPICS, help="default: all; --quick: not sar")
    parser.add_argument("--graphs", nargs="+", metavar="NAME", help="generated or real graphs")
    parser.add_argument(
        "--peers", nargs="*", metavar="NAME", help="default: all that are installed"
    )
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter of the peers")
    parser.add_argument("--threads", type=int, default=2, help="of every library")
    parser.add_argument(
        "--renumber",
        action="store_true",
        help=f"give every library the nodes in the order that jaxgraph would choose ({ORDER})",
    )
    parser.add_argument("--malloc", choices=list(MALLOC), default="default")
    parser.add_argument("--rounds", type=int, help="of every task; default: by its kind")
    parser.add_argument("--json", type=Path, help="write everything here")
    parser.add_argument("--markdown", type=Path, help="write the tables here")
    parser.add_argument("--plot", type=Path, help="draw SAR's cost here; needs matplotlib")
    options = parser.parse_args(arguments)
    options.only = options.only or [
        topic for topic in TOPICS if topic != "sar" or not options.quick
    ]
    known = [peer.name for peer in peers(options.quick)]
    for name in options.peers or []:
        if name not in known:
            parser.error(f"--peers: no peer {name!r}; expected some of {', '.join(known)}")
    if shutil.which(options.peer_python) is None:
        parser.error(f"--peer-python: {options.peer_python} is not an executable program")
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}; expected at least 1")
    return options


class Run:
    """A run of the program.

    Args:
      options: options of the command line.
      settings: how workers are started.
      record: the record of everything measured.
      console: the console for everything shown.
    """

    def __init__(
        self, options: argparse.Namespace, settings: Settings, record: Record, console: Console
    ) -> None:
        self.options = options
        self.settings = settings
        self.record = record
        self.console = console

    def measure_limits(self) -> None:
        """Measures the limits of memory and cores, each with the library that comes closest."""
        contestants = (OURS, *(peer for peer in self._peers() if peer.library == "torch"))
        crew = Crew(contestants, self.settings)
        try:
            found = self._measure(crew, "limits", LIMITS)
        finally:
            crew.close()
        self.record.limits = limits(found)
        report.show(details(found, "What the machine can do"), self.console)

    def compare_with_peers(self, graph: str) -> None:
        """Runs all tasks of a graph with all libraries."""
        topics = [topic for topic in self.options.only if topic != "sar"]
        tasks = peers_tasks(graph, topics, self.options.quick)
        # With --renumber, the given graph is in order already; a quick run has no time for both.
        unordered = () if self.options.quick or self.options.renumber else (AS_GIVEN,)
        contestants = (OURS, PORTABLE, *unordered, *self._peers())
        self.record.peers += self._compare(contestants, graph, tasks)

    def compare_sar(self, graph: str) -> None:
        """Runs epochs of a graph on one device and on several."""
        quick = self.options.quick
        self.record.sar += self._compare(sar_contestants(quick), graph, sar_tasks(quick))

    def _peers(self) -> list[Contestant]:
        chosen = self.options.peers
        every = peers(self.options.quick)
        return [peer for peer in every if chosen is None or peer.name in chosen]

    def _compare(
        self, contestants: Sequence[Contestant], graph: str, tasks: Sequence[Task]
    ) -> list[Measurement]:
        data, path = graphs.make(graph), self.settings.scratch / "graph.npz"
        if self.options.renumber:
            data = graphs.renumbered(data, ORDER)
        write_data(path, data)
        self.record.sizes[graph] = graphs.size_of(data)
        crew = Crew(contestants, self.settings)
        try:
            if _is_redundant(crew):
                crew.drop(PORTABLE.name, f"it is what {OURS.name} itself chooses here")
            crew.load(path)
            found = self._measure(crew, graph, tasks, data)
        finally:
            crew.close()
        self.record.versions |= crew.versions
        self.record.absent |= crew.absent
        report.show(details(found, graph), self.console)
        return found

    def _measure(
        self, crew: Crew, graph: str, tasks: Sequence[Task], data: Data | None = None
    ) -> list[Measurement]:
        found: list[Measurement] = []
        for task in tasks:
            start = time.perf_counter()
            speed = pace(task, self.options.quick, self.options.rounds)
            num_edges = len(data.senders) if data else 0
            left_out = sits_out(task, num_edges, self.options.quick)
            found += measure_task(crew, graph, task, speed, data, left_out)
            seconds = time.perf_counter() - start
            self.console.print(f"{graph}: {task.label}: {seconds:.0f} s", highlight=False)
        return found


def _is_redundant(crew: Crew) -> bool:
    """True where jaxgraph chooses the portable implementations by default."""
    portable = crew.versions.get(PORTABLE.name)
    return portable is not None and portable == crew.versions.get(OURS.name)


def _write(options: argparse.Namespace, record: Record) -> None:
    """Writes the files, with the results so far."""
    if options.json:
        record.write(options.json)
    if options.markdown:
        options.markdown.write_text(report.markdown(record))


def main() -> int:
    """Measures, shows and writes; returns 1 where a result was wrong or our own code failed."""
    options = read_arguments(sys.argv[1:])
    console = Console(width=None if sys.stdout.isatty() else 180)
    machine = this_machine()
    command = shlex.join(["python", "-m", "benchmarks.cpu", *sys.argv[1:]])
    record = Record(command, machine, options.threads, options.malloc)
    with tempfile.TemporaryDirectory(prefix="benchmarks-cpu-") as folder:
        scratch = Path(folder)
        variables = environment(options.threads, options.malloc, scratch)
        limit = int(MEMORY_SHARE * machine.memory_bytes)
        settings = Settings(options.peer_python, options.threads, variables, limit, scratch)
        run = Run(options, settings, record, console)
        run.measure_limits()
        if set(options.only) - {"sar"}:
            for graph in options.graphs or graphs.names(options.quick):
                run.compare_with_peers(graph)
                _write(options, record)
        if "sar" in options.only:
            for graph in options.graphs or sar_graphs(options.quick):
                run.compare_sar(graph)
                _write(options, record)
    for sheet in summaries(record):
        report.show(sheet, console)
    for line in report.circumstances(record):
        console.print(escape(line), highlight=False)
    if options.plot:
        report.plot_sar(record, options.plot)
    own = (OURS.name, AS_GIVEN.name, *(each.name for each in sar_contestants(options.quick)))
    faults = list(record.faults(own, PORTABLE.name))
    for fault in faults:
        console.print(f"[bold red]{escape(fault)}[/]", highlight=False)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
