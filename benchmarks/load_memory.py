"""Peak resident memory of processes that place parts from a folder: one of all parts, or one each.

The graph is generated: 1 M nodes, 20 M edges, 128 features, cut by hash into 4 parts. For each mode
the parts are written into a folder. One process with 4 emulated devices places them all; 4
processes of `jax.distributed` place one each. Memory is the kernel's peak of resident pages
(VmHWM), pages of mapped files included, less the peak of a process that only imports jaxgraph.

    python -m benchmarks.load_memory [--scale 10]
"""

from __future__ import annotations

import multiprocessing
import socket
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jaxgraph as jg
from benchmarks.command_line import in_own_process, make_parser, report
from benchmarks.cpu.resident import peak_bytes
from benchmarks.generated import Shape, generate

SHAPE = Shape(1_000_000, 20_000_000, 128, 16)
PARTS = 4


def imported() -> int:
    """The peak of a process that only imports."""
    return peak_bytes()


def worker(folder: Path, rank: int, processes: int, port: int) -> tuple[int, int]:
    """Places the parts of one process, and returns its peak and the bytes of its arrays."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", PARTS // processes)
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, rank)
    parts = jg.parallel.open_parts(folder)
    sharded = jax.block_until_ready(jg.parallel.place(parts, jg.parallel.make_mesh(PARTS)))
    held = (x.addressable_shards for x in jax.tree.leaves(sharded))
    return peak_bytes(), sum(s.data.nbytes for each in held for s in each)


def run(folder: Path, processes: int) -> list[tuple[int, int]]:
    """The results of processes that place the parts of a folder together."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        started = [pool.submit(worker, folder, r, processes, port) for r in range(processes)]
        return [each.result() for each in started]


def measure(scale: int, mode: str, folder: Path) -> dict[str, Any]:
    """Writes the parts in a mode, and measures; MB above those of a process that only imports."""
    graph = generate(SHAPE, scale=scale)
    partition = jg.partition.partition(graph, PARTS, method="hash", seed=0)
    jg.parallel.write_parts(graph, partition, folder, mode)
    del graph, partition
    imports = in_own_process(imported)
    ((single, arrays),) = run(folder, 1)
    each = [peak - imports for peak, _ in run(folder, PARTS)]
    return {
        "mode": mode,
        "imports": imports / 1e6,
        "placed_arrays": arrays / 1e6,
        "1_process": (single - imports) / 1e6,
        "4_processes": [peak / 1e6 for peak in each],
        "largest_share": max(each) / (single - imports),
    }


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--scale", type=int, default=1, help="so many times fewer nodes")
    parser.add_argument("--modes", nargs="+", default=["domain", "sar"])
    parser.add_argument("--folder", type=Path, help="write parts here; a temporary folder if left")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        rows = [measure(options.scale, mode, Path(folder, mode)) for mode in options.modes]
    report("Peak resident memory above that of imports, in MB", rows, options.json)


if __name__ == "__main__":
    main()
