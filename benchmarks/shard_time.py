"""Time and peak host memory from an edge list to a sharded graph, stage by stage.

Edges are drawn with replacement; node features are normal. `--skew 1` draws their ends uniformly; a
larger value concentrates them on few nodes, as in graphs with hubs. The partition is by hash, which
cuts nearly every edge: the largest possible tables. Devices are emulated on CPU, so that their
memory counts as host memory.

    python -m benchmarks.shard_time --nodes 1000000 --edges 20000000 --parts 8
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import jaxgraph as jg
from benchmarks.command_line import make_parser, write_figures


@dataclasses.dataclass(frozen=True)
class Stage:
    """Time and memory of one stage; the peak is that of the whole process during it."""

    name: str
    seconds: float
    cpu_seconds: float
    peak_gigabytes: float


class Stopwatch:
    """Times stages one after the other."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measures the block as a stage."""
        _reset_peak()
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self.stages.append(Stage(name, wall, cpu, _peak_gigabytes()))


def _reset_peak() -> None:
    # Linux only; elsewhere a stage's peak is the process's peak so far.
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")


def _peak_gigabytes() -> float:
    if sys.platform == "linux":
        lines = Path("/proc/self/status").read_text().splitlines()
        (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
        return int(peak) * 1024 / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def draw_ends(nodes: int, edges: int, skew: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Senders and receivers, int32 [edges]."""
    rng = np.random.default_rng(seed)
    if skew == 1.0:
        ends = rng.integers(0, nodes, (2, edges), np.int32)
        return ends[0], ends[1]
    order = rng.permutation(nodes).astype(np.int32)
    senders, receivers = (
        order[(nodes * rng.random(edges, np.float32) ** skew).astype(np.int32).clip(0, nodes - 1)]
        for _ in range(2)
    )
    return senders, receivers


def measure(options: argparse.Namespace) -> list[Stage]:
    """Runs all stages."""
    watch = Stopwatch()
    mesh = jg.parallel.make_mesh(options.parts)
    with watch.stage("draw edges and features"):
        senders, receivers = draw_ends(options.nodes, options.edges, options.skew, options.seed)
        rng = np.random.default_rng(options.seed)
        features = rng.standard_normal((options.nodes, options.features), np.float32)
    with watch.stage("Graph.from_edges"):
        graph = jg.Graph.from_edges(senders, receivers, num_nodes=options.nodes, nodes=features)
    with watch.stage("hash partition"):
        parts = jg.partition.partition(graph, options.parts, method="hash")
    for mode in options.modes:
        with watch.stage(f"shard, mode {mode}"):
            sharded = jg.parallel.shard(graph, parts, mesh, mode)
            jax.block_until_ready(sharded)
        del sharded
    return watch.stages


def report(stages: list[Stage], console: Console) -> None:
    """Prints the stages as a table."""
    table = Table("stage", title="From edge list to sharded graph")
    for heading in ("seconds", "CPU seconds", "peak GB"):
        table.add_column(heading, justify="right")
    for stage in stages:
        table.add_row(
            stage.name,
            f"{stage.seconds:.1f}",
            f"{stage.cpu_seconds:.1f}",
            f"{stage.peak_gigabytes:.2f}",
        )
    console.print(table)


def main() -> None:
    """Parses the command line, runs the stages and prints them."""
    parser = make_parser(__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--skew", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modes", nargs="+", default=["sar", "domain"])
    options = parser.parse_args()
    jg.parallel.emulate_devices(options.parts)
    stages = measure(options)
    report(stages, Console())
    write_figures(options.json, map(dataclasses.asdict, stages))


if __name__ == "__main__":
    main()
