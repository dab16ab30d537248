"""A list of edges larger than memory, cut into parts: peak memory, time, and how both grow.

    python -m benchmarks.large_edges --edges 10e6 30e6 100e6 --limit 2GB --parts 8

Each size is a file that this program makes: a power law of degrees, ten edges a node, in the order
of no node. A process of its own cuts it; the peak is its VmHWM, and the kernel refuses it private
memory beyond the limit (RLIMIT_DATA). The last line estimates a billion edges, which are not run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.command_line import make_parser, write_figures
from benchmarks.generated import DEGREE_EXPONENT
from jaxgraph.byte_amounts import bytes_of
from jaxgraph.external import Request, partition_file

EDGES_PER_NODE = 10
ESTIMATED = 1_000_000_000
_CHUNK = 1 << 21


@dataclasses.dataclass(frozen=True)
class Row:
    """One size.

    Attributes:
      edges, nodes: of the graph; edges 0: the program alone.
      file_bytes: of the list of edges.
      peak: bytes, the largest resident memory.
      seconds: of all steps.
      steps: seconds of each.
      part_bytes: of the parts on disk.
    """

    edges: int
    nodes: int
    file_bytes: int
    peak: int
    seconds: float
    steps: dict[str, float]
    part_bytes: int


def power_law_ids(uniform: np.ndarray, num_nodes: int, keys: int) -> np.ndarray:
    """Draws ids whose frequencies follow the power law of degrees.

    Args:
      uniform: float [edges], in [0, 1).
      num_nodes: number of nodes.
      keys: odd; scatters the frequent ids over all.

    Returns:
      int64 [edges].
    """
    # Node i has an expected degree of (i + 1) ** -exponent: the inverse of its integral.
    exponent = 1 - 1 / (DEGREE_EXPONENT - 1)
    ranks = (num_nodes * uniform ** (1 / exponent)).astype(np.int64)
    return (ranks * keys) % num_nodes


def make_file(path: Path, num_edges: int, seed: int = 0) -> int:
    """Writes a list of edges, and returns the number of nodes.

    Args:
      path: ends with .csv, .npy or .parquet.
      num_edges: edges to write.
      seed: of the graph.
    """
    import polars as pl

    nodes, rng = max(num_edges // EDGES_PER_NODE, 2), np.random.default_rng(seed)
    keys = next(k for k in range(1_000_003, 1_000_103, 2) if np.gcd(k, nodes) == 1)

    def pairs(count: int) -> np.ndarray:
        ends = (power_law_ids(rng.random(count), nodes, k) for k in (1, keys))
        return np.stack(list(ends), axis=1)

    sizes = [min(_CHUNK, num_edges - first) for first in range(0, num_edges, _CHUNK)]
    if path.suffix == ".npy":
        table = np.lib.format.open_memmap(path, "w+", np.int64, (num_edges, 2))
        for number, size in enumerate(sizes):
            table[number * _CHUNK : number * _CHUNK + size] = pairs(size)
    elif path.suffix == ".parquet":
        frames = (pl.DataFrame(pairs(size), ["source", "target"]).lazy() for size in sizes)
        pl.concat(list(frames)).sink_parquet(path)
    else:
        with path.open("wb") as file:
            for number, size in enumerate(sizes):
                frame = pl.DataFrame(pairs(size), ["source", "target"])
                frame.write_csv(file, include_header=number == 0)
    return nodes


def cut(path: Path, out: Path, parts: int, limit: int, mode: str) -> dict[str, object]:
    """Cuts a file in this process, and returns its peak memory and its seconds."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    steps: dict[str, float] = {}
    last = [time.perf_counter()]

    def on_progress(step: str, done: int, total: int) -> None:
        now = time.perf_counter()
        steps[step] = steps.get(step, 0.0) + now - last[0]
        last[0] = now

    started = time.perf_counter()
    request = Request(source=path, num_parts=parts, mode=mode)
    found = partition_file(request, out, memory_limit=limit, on_progress=on_progress)
    seconds = time.perf_counter() - started
    size = sum(file.bytes for file in found.folder.files.values())
    return {"seconds": seconds, "steps": steps, "part_bytes": size, "peak": _peak()}


def _peak() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def measure(edges: int, options: argparse.Namespace, folder: Path) -> Row:
    """Makes a file of some edges, and cuts it in a process of its own."""
    path, out = folder / f"edges.{options.format}", folder / "parts"
    nodes = make_file(path, edges)
    limit = bytes_of("--limit", options.limit)
    command = [sys.executable, "-m", "benchmarks.large_edges", "--cut", str(path), str(out)]
    command += ["--parts", str(options.parts), "--limit", str(limit), "--mode", options.mode]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    row = Row(edges, nodes, path.stat().st_size, **json.loads(done.stdout))
    subprocess.run(["rm", "-r", str(path), str(out)], check=True)
    return row


def estimate(rows: Sequence[Row], edges: int) -> tuple[float, int]:
    """Estimates seconds and bytes of a larger graph in as many parts as keep their size.

    Args:
      rows: measured, in ascending order of edges.
      edges: of the larger graph.

    Returns:
      Seconds by the line through the two largest, and the memory that its nodes add to the peak.
    """
    less, most = rows[-2:]
    slope = (most.seconds - less.seconds) / (most.edges - less.edges)
    more_nodes = (edges - most.edges) // EDGES_PER_NODE
    return most.seconds + slope * (edges - most.edges), most.peak + 48 * more_nodes


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row for each size, and the estimate."""
    parser = make_parser(__doc__)
    parser.add_argument("--edges", type=float, nargs="+", default=[3e6, 10e6, 30e6, 100e6])
    parser.add_argument("--limit", default="2GB")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--mode", choices=("sar", "domain"), default="sar")
    parser.add_argument("--format", choices=("csv", "npy", "parquet"), default="csv")
    parser.add_argument("--folder", type=Path, help="of the files; a temporary one by default")
    parser.add_argument("--cut", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.cut is not None:
        path, out = options.cut
        figures = cut(path, out, options.parts, int(options.limit), options.mode)
        print(json.dumps(figures))
        return
    table = Table("edges", "nodes", "file", "parts", "peak", "seconds", "steps")
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for edges in sorted(map(int, options.edges)):
            row = measure(edges, options, Path(folder))
            rows.append(row)
            steps = ", ".join(f"{name} {seconds:.1f}" for name, seconds in row.steps.items())
            table.add_row(
                f"{row.edges:,}",
                f"{row.nodes:,}",
                f"{row.file_bytes / 1e9:.2f} GB",
                f"{row.part_bytes / 1e9:.2f} GB",
                f"{row.peak / 1e9:.2f} GB",
                f"{row.seconds:.1f}",
                steps,
            )
    console = Console()
    console.print(table)
    if len(rows) > 1:
        seconds, peak = estimate(rows, ESTIMATED)
        parts = options.parts * ESTIMATED // rows[-1].edges
        console.print(
            f"Estimate, not run: {ESTIMATED:,} edges in {parts} parts take {seconds / 60:.0f} "
            f"minutes and {peak / 1e9:.1f} GB, 48 bytes for each further node."
        )
    write_figures(options.json, [dataclasses.asdict(row) for row in rows])


if __name__ == "__main__":
    main()
