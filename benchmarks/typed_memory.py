"""Memory and traffic of R-GCN at ogbn-mag's size, compiled for GPUs that need not be there.

    python -m benchmarks.typed_memory --target h200x8      # needs pip install 'jaxgraph[cuda]'

The graph is generated: `benchmarks.generated.OGBN_MAG` with inverses, its sets as one set of nodes
and its eight relations as edge types. The model has 3 layers of 256. Figures are of the compiled
training step, on each device. Nothing runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import optax
from flax import nnx

import jaxgraph as jg
from benchmarks.command_line import make_parser, report
from benchmarks.generated import OGBN_MAG, generate_typed, in_one_set
from jaxgraph.layout.typed_tables import tabulate_typed
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.planner import find_target

WIDTH, LAYERS = 256, 3


def measure(name: str, scale: float) -> Iterator[dict[str, Any]]:
    """Compiles both schedules for a target."""
    target = find_target(name)
    shape = OGBN_MAG
    graph = jg.transforms.with_inverses(generate_typed(shape, scale=scale))
    cut = jg.partition.partition(graph, target.devices)
    assignment = np.concatenate([cut[each].assignment for each in graph.node_sets])
    parts = {"node": jg.partition.Partition(assignment, target.devices)}
    graph = in_one_set(graph, shape)
    for mode in ("sar", "domain"):
        manifest = tabulate_typed(graph, parts, mode).manifest
        assert manifest.counts is not None
        sharded = jg.parallel.place(AbstractSource(manifest), target.mesh())
        types = next(iter(graph.edge_sets.values())).num_edge_types
        model = jg.nn.RGCN(
            shape.num_features,
            WIDTH,
            shape.num_classes,
            num_types=types,
            num_layers=LAYERS,
            dropout=0.5,
            rngs=nnx.Rngs(0),
        )
        compiled = jg.train.compile_train_step(model, sharded, optax.adam(1e-2))
        analysis: Any = compiled.memory_analysis()
        yield {
            "mode": mode,
            "devices": target.devices,
            "halo_share": manifest.counts.halo_rows_needed / graph.num_nodes,
            "argument_gb": analysis.argument_size_in_bytes / 1e9,
            "temporary_gb": analysis.temp_size_in_bytes / 1e9,
            "sent_gb": sum(jg.analysis.traffic(compiled).values()) / 1e9,
        }


def main() -> None:
    """Measures for the target that is given, and prints a table."""
    parser = make_parser(__doc__)
    parser.add_argument("--target", default="h200x8", help="as of jaxgraph plan")
    parser.add_argument("--scale", type=float, default=1.0, help="of the graph, such as 0.1")
    options = parser.parse_args()
    title = f"R-GCN {LAYERS} x {WIDTH} at {options.scale:g} of ogbn-mag, {options.target}"
    report(title, measure(options.target, options.scale), options.json)


if __name__ == "__main__":
    main()
