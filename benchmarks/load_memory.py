"""Peak resident memory of processes that place parts from a folder: one of all parts, or one each.

The graph is generated: 1 M nodes, 20 M edges, 128 features, cut by hash into 4 parts. For each mode
the parts are written into a folder. One process with 4 emulated devices places them all; 4
processes of `jax.distributed` place one each. Memory is the kernel's peak of resident pages
(VmHWM), pages of mapped files included, less the peak of a process that only imports jaxgraph.

    python -m benchmarks.load_memory [--scale 10]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

import jaxgraph as jg
from benchmarks.command_line import make_parser, write_figures
from benchmarks.cpu.resident import peak_bytes
from benchmarks.generated import Shape, generate

SHAPE = Shape(1_000_000, 20_000_000, 128, 16)
PARTS = 4
MOST = 0.35
"""The largest share of the single process's memory that each of the processes may take."""


@dataclasses.dataclass(frozen=True)
class Row:
    """The peaks of one mode, in bytes above that of a process that only imports.

    Attributes:
      mode: of the parts.
      imports: peak of a process that only imports.
      arrays: bytes of the placed arrays of all parts.
      single: of the process that places all parts.
      each: of each of the processes that place one.
    """

    mode: str
    imports: int
    arrays: int
    single: int
    each: tuple[int, ...]

    @property
    def ratio(self) -> float:
        """The largest of the processes, over the single one."""
        return max(self.each) / self.single


def worker(folder: str, rank: int, processes: int, port: int) -> dict[str, int]:
    """Places the parts of one process, and returns its peak and the bytes of its arrays."""
    import jax

    if not folder:
        return {"peak": peak_bytes(), "arrays": 0}
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", PARTS // processes)
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, rank)
    parts = jg.parallel.open_parts(folder)
    sharded = jax.block_until_ready(jg.parallel.place(parts, jg.parallel.make_mesh(PARTS)))
    held = (x.addressable_shards for x in jax.tree.leaves(sharded))
    return {"peak": peak_bytes(), "arrays": sum(s.data.nbytes for each in held for s in each)}


def run(folder: Path | None, processes: int) -> list[dict[str, int]]:
    """Starts processes that place the parts of a folder, and returns their results."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.load_memory", "--worker", str(folder or "")]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(processes), str(port)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for rank in range(processes)
    ]
    try:
        outputs = [process.communicate()[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    if any(process.returncode for process in started):
        raise SystemExit("a process failed; its message stands above")
    return [json.loads(output) for output in outputs]


def measure(scale: int, modes: list[str], temporary: Path) -> Iterator[Row]:
    """Writes the parts in each mode, and measures."""
    graph = generate(SHAPE, scale=scale)
    partition = jg.partition.partition(graph, PARTS, method="hash", seed=0)
    folders = {mode: temporary / mode for mode in modes}
    for mode, folder in folders.items():
        jg.parallel.write_parts(graph, partition, folder, mode)
    del graph, partition
    imports = run(None, 1)[0]["peak"]
    for mode, folder in folders.items():
        (single,) = run(folder, 1)
        each = run(folder, PARTS)
        peaks = tuple(found["peak"] - imports for found in each)
        yield Row(mode, imports, single["arrays"], single["peak"] - imports, peaks)


def show(rows: list[Row]) -> None:
    """Prints the table."""
    table = Table(title="Peak resident memory above that of imports, in MB")
    for column in ("mode", "imports", "placed arrays", "1 process", "4 processes", "largest share"):
        table.add_column(column, justify="right")
    for row in rows:
        sizes = (row.imports, row.arrays, row.single)
        each = ", ".join(f"{size / 1e6:.0f}" for size in row.each)
        texts = [f"{size / 1e6:.0f}" for size in sizes]
        table.add_row(row.mode, *texts, each, f"{row.ratio:.3f} (at most {MOST})")
    Console(width=110).print(table)


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--scale", type=int, default=1, help="so many times fewer nodes")
    parser.add_argument("--modes", nargs="+", default=["domain", "sar"])
    parser.add_argument("--folder", type=Path, help="write parts here; a temporary folder if left")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        folder, *numbers = options.worker
        print(json.dumps(worker(folder, *map(int, numbers))))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        rows = list(measure(options.scale, options.modes, Path(temporary)))
    show(rows)
    write_figures(options.json, map(dataclasses.asdict, rows))


if __name__ == "__main__":
    main()
