"""Transfers of ROC's memory manager against no cache and least recently used, as its figure 10.

A training step of GCN on one device, from counts of the graph alone: Reddit's 232,965 nodes,
114,848,857 edges of 4 bytes, 602 features and 41 classes, in float32. Capacities go from the least
that works (share 0), where the largest operation fits alone, to the most that a step uses (1).
Bytes are those between host and device in both directions; every schedule is executed by the
simulator, which checks it. "write-back" is a least-recently-used cache that knows no future: it
saves every tensor that it drops. "LRU" knows the tensors that no later operation reads.

    python -m benchmarks.memory_manager
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.command_line import make_parser, report
from jaxgraph.planner.memory.cache_policies import (
    least_recently_used,
    no_cache,
    write_back_cache,
)
from jaxgraph.planner.memory.dataflow import gcn_step
from jaxgraph.planner.memory.dynamic_program import least_transfer
from jaxgraph.planner.memory.schedule import simulate

NODES, EDGES, FEATURES, CLASSES, EDGE_BYTES = 232_965, 114_848_857, 602, 41, 4
BASELINES = {
    "no cache": no_cache,
    "write-back": write_back_cache,
    "LRU": least_recently_used,
}


def measure(layers: int, hidden: int, shares: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Plans one model at capacities from the least (0) to the most (1)."""
    widths = (FEATURES, *[hidden] * (layers - 1), CLASSES)
    flow = gcn_step(NODES, EDGES, widths, EDGE_BYTES)
    least, _ = flow.least_capacity()
    everything = sum(flow.bytes.values())
    most = simulate(least_recently_used(flow, everything), everything).peak
    for share in shares:
        capacity = int(least + share * (most - least))
        planned = simulate(least_transfer(flow, capacity), capacity).transferred
        moved = {
            name: simulate(schedule(flow, capacity), capacity).transferred
            for name, schedule in BASELINES.items()
        }
        yield {
            "layers": layers,
            "hidden": hidden,
            "share": share,
            "capacity": capacity,
            "ROC": planned,
            **moved,
            **{f"{name} / ROC": size / planned for name, size in moved.items()},
        }


def conclusions(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The range of each ratio, in sentences."""
    for name in BASELINES:
        ratios = sorted(row[f"{name} / ROC"] for row in rows)
        low, middle, high = (f"{ratios[at]:.2f}" for at in (0, len(ratios) // 2, -1))
        yield f"{name}: {low} to {high} times ROC's bytes, {middle} in the middle"


def main() -> None:
    """Reads the command line, plans and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--hidden", type=int, nargs="+", default=[16, 32, 64, 128, 256])
    parser.add_argument("--shares", type=float, nargs="+", default=[0, 0.25, 0.5, 0.75, 0.95])
    options = parser.parse_args()
    rows = [
        row
        for layers in options.layers
        for hidden in options.hidden
        for row in measure(layers, hidden, options.shares)
    ]
    report("Bytes between host and device per step of GCN on Reddit", rows, options.json)
    print(*conclusions(rows), sep="\n")


if __name__ == "__main__":
    main()
