"""Kernels on one GPU: checked on the chip, then timed against cuSPARSE and PyG.

Every graph has its own process, so that a kernel that breaks the device costs one task. Graphs get
equal shares of the remaining minutes. All contestants get the same arrays on the device, run in
turns, and must agree on the result. torch, PyG and cuSPARSE take part where they are installed.

    python -m benchmarks.gpu --json gpu.json                     # nine minutes on an H100
    python -m benchmarks.gpu --rehearse                          # tiny, without a GPU
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from threading import Lock

from rich.console import Console
from rich.markup import escape

from benchmarks.command_line import make_parser
from benchmarks.cpu.process import Worker, WorkerFailure
from benchmarks.gpu.plan import CHECKS, GRAPHS, TASKS
from benchmarks.gpu.report import Record
from benchmarks.gpu.timing import Row

MINUTES = 9.0
SMALL = "tiny"
CHECKERS = 6
"""The most workers that check at once, with two cores for each."""

PATIENCE = 300.0
"""Seconds without an answer after which a worker is given up."""


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--rehearse", action="store_true", help="a tiny graph, on any machine")
    parser.add_argument("--graphs", nargs="+", choices=list(GRAPHS), metavar="NAME")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="when to stop")
    options = parser.parse_args(arguments)
    options.graphs = options.graphs or (
        [SMALL] if options.rehearse else [name for name in GRAPHS if name != SMALL]
    )
    return options


def device_name(rehearse: bool) -> str:
    """The name of the first device; ends the program where that is no GPU, and must be."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    if jax.default_backend() != "gpu" and not rehearse:
        print(
            f"jax runs on {jax.default_backend()} here; this program measures a GPU: run it where "
            "jax finds one (pip install 'jaxgraph[cuda]'), or try it out with --rehearse",
            file=sys.stderr,
        )
        sys.exit(2)
    return jax.devices()[0].device_kind


def shares(graph: str) -> list[list[int]]:
    """The tasks of each worker of a graph: several workers share the checks, which nobody times."""
    count = max(1, min(CHECKERS, (os.cpu_count() or 1) // 2)) if graph in CHECKS else 1
    tasks = range(len(TASKS[graph]))
    return [list(tasks[first::count]) for first in range(count)]


def run_tasks(
    graph: str,
    tasks: Sequence[int],
    worker: Worker,
    start: Callable[[str], Worker],
    deadline: float,
    note: Callable[[list[Row]], None],
) -> None:
    """Runs tasks on a worker; one that dies or stops is replaced, without the task that it ran."""
    for index in tasks:
        left = deadline - time.monotonic()
        try:
            if left <= 0:
                raise WorkerFailure("time is up")
            rows = worker.request("work", graph, index, timeout=min(PATIENCE, left))
        except WorkerFailure as failure:
            rows = [Row(TASKS[graph][index].label, "worker", failure=str(failure))]
            if left > 0:
                worker.kill()
                worker = start(graph)
        note(rows)
    worker.kill()


def main() -> int:
    """Measures, shows and writes; returns 1 where our own code failed, 2 without a GPU."""
    options = read_arguments(sys.argv[1:])
    begin = time.monotonic()
    record = Record(device_name(options.rehearse), options.rehearse)
    console = Console(width=None if sys.stdout.isatty() else 180)
    way = "rehearse" if options.rehearse else "measure"
    # Leave memory for torch.
    variables = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "2"}
    writing = Lock()

    def note(graph: str, rows: list[Row]) -> None:
        with writing:
            record.rows.setdefault(graph, []).extend(rows)
            record.write(options.json)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:

        def start(graph: str) -> Worker:
            descriptor, log = tempfile.mkstemp(".log", dir=folder)
            os.close(descriptor)
            command = [sys.executable, "-m", "benchmarks.gpu.worker", way]
            worker = Worker(command, variables, Path(log))
            # Where it fails, so do its tasks, with the reason.
            with contextlib.suppress(WorkerFailure):
                record.sizes[graph] = worker.request("place", graph, timeout=PATIENCE)
            return worker

        # All graphs are placed at once, and nothing is timed meanwhile.
        placed = {
            graph: [pool.submit(start, graph) for _ in shares(graph)] for graph in options.graphs
        }
        waiting = len(placed)
        for graph, starting in placed.items():
            if graph not in CHECKS:
                wait(each for futures in placed.values() for each in futures)
            workers = [each.result() for each in starting]
            with contextlib.suppress(WorkerFailure):
                record.bandwidth = max(record.bandwidth, workers[0].request("bandwidth"))
            now = time.monotonic()
            deadline = now + (begin + 60 * options.minutes - now) / waiting
            waiting -= 1
            running = [
                pool.submit(run_tasks, graph, share, worker, start, deadline, partial(note, graph))
                for share, worker in zip(shares(graph), workers, strict=True)
            ]
            for each in running:
                each.result()
            console.print(record.details(graph))
    faults = list(record.faults())
    for fault in faults:
        console.print(f"[bold red]{escape(fault)}[/]", highlight=False)
    console.print(record.summary(), highlight=False)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
