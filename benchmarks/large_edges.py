"""A list of edges larger than memory, cut into parts: peak memory, time, and how both grow.

    python -m benchmarks.large_edges --edges 10e6 30e6 100e6 --limit 2GB --parts 8

Each size is a file that this program makes: a power law of degrees, ten edges a node, in the order
of no node. A process of its own cuts it; the peak is its VmHWM, and the kernel refuses it private
memory beyond the limit (RLIMIT_DATA). The last line estimates a billion edges, which are not run.
"""

from __future__ import annotations

import resource
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import in_own_process, make_parser, report
from benchmarks.cpu.resident import peak_bytes
from benchmarks.generated import DEGREE_EXPONENT
from jaxgraph.byte_amounts import bytes_of
from jaxgraph.external import Request, partition_file

EDGES_PER_NODE = 10
ESTIMATED = 1_000_000_000
_CHUNK = 1 << 21


def power_law_ids(uniform: np.ndarray, num_nodes: int, keys: int) -> np.ndarray:
    """int64 ids whose frequencies follow the power law of degrees, from numbers in [0, 1).

    `keys` is odd, and scatters the frequent ids over all.
    """
    # Node i has an expected degree of (i + 1) ** -exponent: the inverse of its integral.
    exponent = 1 - 1 / (DEGREE_EXPONENT - 1)
    ranks = (num_nodes * uniform ** (1 / exponent)).astype(np.int64)
    return (ranks * keys) % num_nodes


def make_file(path: Path, num_edges: int) -> int:
    """Writes a list of edges as CSV, and returns the number of nodes."""
    import polars as pl

    nodes, rng = max(num_edges // EDGES_PER_NODE, 2), np.random.default_rng(0)
    keys = next(k for k in range(1_000_003, 1_000_103, 2) if np.gcd(k, nodes) == 1)
    with path.open("wb") as file:
        for first in range(0, num_edges, _CHUNK):
            size = min(_CHUNK, num_edges - first)
            ends = [power_law_ids(rng.random(size), nodes, k) for k in (1, keys)]
            frame = pl.DataFrame(np.stack(ends, axis=1), ["source", "target"])
            frame.write_csv(file, include_header=first == 0)
    return nodes


def cut(path: Path, out: Path, parts: int, limit: int) -> dict[str, Any]:
    """Cuts a file in this process, and returns its peak memory and its seconds."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    started = time.perf_counter()
    request = Request(source=path, num_parts=parts, mode="sar")
    found = partition_file(request, out, memory_limit=limit)
    return {
        "parts_GB": sum(file.bytes for file in found.folder.files.values()) / 1e9,
        "peak_GB": peak_bytes() / 1e9,
        "seconds": time.perf_counter() - started,
    }


def measure(edges: int, parts: int, limit: int, folder: str) -> dict[str, Any]:
    """Makes a file of some edges, and cuts it in a process of its own."""
    path = Path(folder, f"{edges}.csv")
    nodes = make_file(path, edges)
    row = {"edges": edges, "nodes": nodes, "file_GB": path.stat().st_size / 1e9}
    row |= in_own_process(cut, path, Path(folder, str(edges)), parts, limit)
    path.unlink()
    shutil.rmtree(Path(folder, str(edges)))
    return row


def estimate(rows: Sequence[dict[str, Any]], edges: int) -> tuple[float, float]:
    """Seconds and GB of a larger graph in as many parts as keep their size.

    Seconds are by the line through the two largest of the rows; its nodes add to the peak.
    """
    less, most = rows[-2:]
    slope = (most["seconds"] - less["seconds"]) / (most["edges"] - less["edges"])
    more_nodes = (edges - most["edges"]) // EDGES_PER_NODE
    seconds = most["seconds"] + slope * (edges - most["edges"])
    return seconds, most["peak_GB"] + 48e-9 * more_nodes


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row for each size, and the estimate."""
    parser = make_parser(__doc__)
    parser.add_argument("--edges", type=float, nargs="+", default=[3e6, 10e6, 30e6, 100e6])
    parser.add_argument("--limit", default="2GB")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="of the files; a temporary one by default")
    options = parser.parse_args(arguments)
    limit = bytes_of("--limit", options.limit)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        sizes = sorted(map(int, options.edges))
        rows = [measure(edges, options.parts, limit, folder) for edges in sizes]
    report(f"Lists of edges cut within {options.limit}", rows, options.json)
    if len(rows) > 1:
        seconds, peak = estimate(rows, ESTIMATED)
        parts = options.parts * ESTIMATED // rows[-1]["edges"]
        print(
            f"Estimate, not run: {ESTIMATED:,} edges in {parts} parts take {seconds / 60:.0f} "
            f"minutes and {peak:.1f} GB, 48 bytes for each further node."
        )


if __name__ == "__main__":
    main()
