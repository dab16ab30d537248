"""The temporary memory of a training step: as predicted, as compiled, and as a process takes it.

    python -m benchmarks.plan_memory

A process of its own compiles each step on emulated CPU devices, places the graph, gives freed
memory back, resets the mark of its peak (Linux: /proc/self/clear_refs), and runs the step once.
Measured is the peak above the memory just before. The graph is random and cut by hash; models have
3 layers, batch normalisation and dropout, under Adam.
"""

from __future__ import annotations

from typing import Any

import jax
import optax

import jaxgraph as jg
from benchmarks.command_line import in_own_process, make_parser, report
from benchmarks.cpu.resident import peak_bytes, reset_peak, resident_bytes, settle
from benchmarks.generated import make_model
from jaxgraph.analysis.liveness import temporary_bytes
from jaxgraph.train.step import trace_train_step

FEATURES, CLASSES = 64, 16
CELLS = ("gcn/sar/1", "sage/domain/1", "gat/sar/1", "gcn/domain/4", "sage/sar/4", "gat/domain/4")


def measure(
    model: str, mode: str, devices: int, num_nodes: int, degree: int, hidden: int
) -> dict[str, Any]:
    """Compiles and runs one step in this process."""
    jg.parallel.emulate_devices(devices)
    graph = jg.datasets.load(
        "random",
        num_nodes=num_nodes,
        degree=degree,
        num_features=FEATURES,
        num_classes=CLASSES,
        seed=0,
    )
    parts = jg.partition.partition(graph, devices, method="hash")
    sharded = jg.parallel.shard(graph, parts, jg.parallel.make_mesh(devices), mode)
    module = make_model(model, FEATURES, hidden, CLASSES)
    traced = trace_train_step(module, sharded, optax.adam(1e-2))[0]
    compiled = traced.lower().compile()
    state = jg.train.initial_state(module, sharded, optax.adam(1e-2))
    jax.block_until_ready((state, sharded))
    del graph, parts
    settle()
    reset_peak()
    before = resident_bytes()
    jax.block_until_ready(compiled(state, sharded, jax.random.key(0)))
    memory = compiled.memory_analysis()
    assert memory is not None
    compiled_bytes = devices * memory.temp_size_in_bytes
    return {
        "model": model,
        "mode": mode,
        "devices": devices,
        "compiled_GB": compiled_bytes / 1e9,
        "predicted": devices * temporary_bytes(traced.jaxpr.jaxpr) / compiled_bytes,
        "measured": (peak_bytes() - before) / compiled_bytes,
    }


def main() -> None:
    """Reads the command line, measures each step in its process, and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--cells", nargs="+", default=CELLS, help="model/mode/devices")
    parser.add_argument("--nodes", type=int, default=600_000)
    parser.add_argument("--degree", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=128)
    options = parser.parse_args()
    sizes, rows = (options.nodes, options.degree, options.hidden), []
    for cell in options.cells:
        model, mode, devices = cell.split("/")
        rows.append(in_own_process(measure, model, mode, int(devices), *sizes))
    report("Temporary memory of a step on all devices, over the compiled", rows, options.json)


if __name__ == "__main__":
    main()
