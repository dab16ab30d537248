"""Kernels on one GPU: checked on the chip, then timed against cuSPARSE, PyG and memory's bound.

Every graph has its own process, so that a kernel that breaks the device costs one task. Graphs get
equal shares of the remaining minutes. All contestants get the same arrays on the device, run in
turns, and must agree on the result. torch, PyG and cuSPARSE take part where they are installed.

    python -m benchmarks.gpu --json gpu.json --markdown gpu.md   # nine minutes on an H100
    python -m benchmarks.gpu --rehearse                          # tiny, without a GPU
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from subprocess import Popen
from threading import Lock
from typing import Any

from rich.console import Console
from rich.markup import escape

from benchmarks.cpu import report as tables
from benchmarks.gpu.plan import CHECKS, GRAPHS, TASKS
from benchmarks.gpu.process import run_tasks, start_worker, wait_for_graph
from benchmarks.gpu.report import Record, details, faults, goals, markdown, write
from benchmarks.gpu.timing import Row

MINUTES = 9.0
SMALL = "tiny"
CHECKERS = 6
"""The most workers that check at once, with two cores for each."""


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rehearse", action="store_true", help="a tiny graph, on any machine")
    parser.add_argument("--graphs", nargs="+", choices=list(GRAPHS), metavar="NAME")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="when to stop")
    parser.add_argument("--json", type=Path, help="write everything here")
    parser.add_argument("--markdown", type=Path, help="write the tables here")
    options = parser.parse_args(arguments)
    options.graphs = options.graphs or (
        [SMALL] if options.rehearse else [name for name in GRAPHS if name != SMALL]
    )
    return options


def device_name(rehearse: bool) -> str:
    """The name of the first device.

    Args:
      rehearse: whether any device is accepted.

    Raises:
      ValueError: the device is no GPU, and must be.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    if jax.default_backend() != "gpu" and not rehearse:
        raise ValueError(
            f"jax runs on {jax.default_backend()} here; this program measures a GPU: run it where "
            "jax finds one (pip install 'jaxgraph[cuda]'), or try it out with --rehearse"
        )
    return jax.devices()[0].device_kind


def shares(graph: str) -> list[list[int]]:
    """The tasks of each worker of a graph: several workers share the checks, which nobody times."""
    count = max(1, min(CHECKERS, (os.cpu_count() or 1) // 2)) if graph in CHECKS else 1
    tasks = range(len(TASKS[graph]))
    return [list(tasks[first::count]) for first in range(count)]


def command(graph: str, tasks: Sequence[int], rehearse: bool) -> list[str]:
    """The command line of a worker."""
    flags = ["--rehearse"] if rehearse else []
    return [sys.executable, "-m", "benchmarks.gpu.worker", graph, *map(str, tasks), *flags]


def measure_graph(
    graph: str,
    workers: Sequence[Popen[str]],
    rehearse: bool,
    deadline: float,
    note: Callable[[dict[str, Any]], None],
) -> None:
    """Gives waiting workers their turn at the tasks of a graph, and notes their lines."""

    def work(share: Sequence[int], first: Popen[str]) -> None:
        for line in run_tasks(
            lambda left: command(graph, left, rehearse), share, deadline, first=first
        ):
            note(line)

    with ThreadPoolExecutor(len(workers)) as pool:
        list(pool.map(work, shares(graph), workers))


def add(line: dict[str, Any], graph: str, record: Record) -> None:
    """Adds a worker's line to the record."""
    if "bandwidth" in line:
        record.bandwidth = max(record.bandwidth, line["bandwidth"])
    elif "size" in line:
        record.sizes[graph] = line["size"]
        record.graph_seconds[graph] = line["seconds"]
    elif "row" in line:
        record.add(Row(**line["row"]))
    elif "failed" in line:
        task = TASKS[graph][line["failed"]].label
        record.add(Row(graph, task, "worker", failure=line["reason"]))


def main() -> int:
    """Measures, shows and writes; returns 1 where our own code failed, 2 without a GPU."""
    options = read_arguments(sys.argv[1:])
    start = time.monotonic()
    try:
        device = device_name(options.rehearse)
    except ValueError as reason:
        print(f"ValueError: {reason}", file=sys.stderr)
        return 2
    console = Console(width=None if sys.stdout.isatty() else 180)
    record = Record(device, options.rehearse)
    waiting = {
        graph: [start_worker(command(graph, share, options.rehearse)) for share in shares(graph)]
        for graph in options.graphs
    }
    pending = [(graph, each) for graph in waiting if graph not in CHECKS for each in waiting[graph]]
    writing = Lock()

    def note(line: dict[str, Any], graph: str) -> None:
        with writing:
            add(line, graph, record)
            record.seconds = time.monotonic() - start
            write(record, options.json, options.markdown)

    for graph in options.graphs:
        # Nothing is timed while graphs are placed.
        while pending and graph not in CHECKS:
            other, worker = pending.pop()
            note(wait_for_graph(worker), other)
        now = time.monotonic()
        deadline = now + (start + 60 * options.minutes - now) / len(waiting)
        workers = waiting.pop(graph)
        measure_graph(graph, workers, options.rehearse, deadline, partial(note, graph=graph))
        tables.show(details(record, graph), console)
    for sheet in goals(record):
        tables.show(sheet, console)
    wrong = list(faults(record))
    for fault in wrong:
        console.print(f"[bold red]{escape(fault)}[/]", highlight=False)
    console.print(markdown(record).partition("\n\n")[0], highlight=False)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
