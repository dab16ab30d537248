"""P3's train step at ogbn-products size for 8 H200s: memory, and reductions under aggregations.

The first layer computes partial activations of all nodes, a chunk of them at a time. The program
hides communication where the reduce-scatter of one chunk starts before the aggregation of the next
one and ends after it; in the backward the all-gather of a gradient likewise. Nothing runs, and
there is no graph: shapes are those of a random graph of the same degree and 1/16 of the size, times
16.

    python -m benchmarks.push_pull          # needs pip install 'jaxgraph[cuda]', and no GPU
"""

from __future__ import annotations

import dataclasses
from typing import Any

import optax
from flax import nnx

import jaxgraph as jg
from benchmarks.command_line import make_parser, report
from benchmarks.generated import OGBN_PRODUCTS
from benchmarks.memory import temporary_bytes
from jaxgraph.analysis.traffic import Overlap
from jaxgraph.layout.column_tables import ColumnRequest
from jaxgraph.layout.fitting import with_headroom
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.planner.targets import find_target

HIDDEN, LAYERS = 256, 3
MODELS = {"gcn": jg.nn.GCN, "sage": jg.nn.GraphSAGE}


def enlarged(manifest: Manifest, factor: int) -> Manifest:
    """The shapes of a graph in mode "p3" with `factor` times as many nodes and edges."""
    schedule = manifest.columns
    assert schedule is not None
    own, of_columns = [], []
    for name, shape, dtype in manifest.shapes:
        is_of_columns = name.startswith("columns/") or name == "nodes"
        (of_columns if is_of_columns else own).append((name, shape, dtype))
    rest = with_headroom(
        dataclasses.replace(manifest, columns=None, shapes=tuple(own)), float(factor - 1)
    )
    larger = tuple(
        (name, _enlarged_shape(name, shape, factor), dtype) for name, shape, dtype in of_columns
    )
    lengths = dataclasses.replace(schedule.lengths, more=float(factor), longer=float(factor))
    return dataclasses.replace(
        rest,
        shapes=tuple(sorted((*rest.shapes, *larger))),
        columns=dataclasses.replace(schedule, lengths=lengths),
        counts=None,
    )


def _enlarged_shape(name: str, shape: tuple[int, ...], factor: int) -> tuple[int, ...]:
    if not shape or name.endswith("ptr"):
        return shape
    if len(shape) == 1 or name == "nodes":
        return (factor * shape[0], *shape[1:])
    more = 1 if name.endswith("/compressed_starts") else 0
    return (shape[0], factor * (shape[1] - more) + more, *shape[2:])


def abstract_graph(
    nodes: int, devices: int, rest: str, chunks: int, factor: int
) -> jg.parallel.ShardedGraph:
    """A graph in mode "p3", cut by hash, on H200s that are not present.

    The tables are made for a graph that is smaller by `factor`, and enlarged.
    """
    graph = jg.datasets.load(
        "random",
        num_nodes=nodes // factor,
        degree=OGBN_PRODUCTS.num_edges / OGBN_PRODUCTS.num_nodes,
        num_features=OGBN_PRODUCTS.num_features,
        num_classes=OGBN_PRODUCTS.num_classes,
        seed=0,
    )
    parts = jg.partition.partition(graph, devices, method="hash", seed=0)
    columns = ColumnRequest("replicated", chunks)
    manifest = enlarged(tabulate(graph, parts, rest, columns=columns).manifest, factor)
    return jg.parallel.place(
        AbstractSource(manifest), find_target(f"h200x{devices}").mesh(emulate=False)
    )


def hidden(transfers: list[Overlap]) -> int:
    """The number of transfers that overlap an aggregation: a kernel of ours, or a loop of XLA's."""
    return sum(each.custom_calls_between + each.loops_between > 0 for each in transfers)


def measure(model: str, sharded: jg.parallel.ShardedGraph) -> dict[str, Any]:
    """Compiles the train step of a model: memory of a device, and transfers under aggregations."""
    features, classes = OGBN_PRODUCTS.num_features, OGBN_PRODUCTS.num_classes
    module = MODELS[model](features, HIDDEN, classes, num_layers=LAYERS, rngs=nnx.Rngs(0))
    compiled = jg.train.compile_train_step(module, sharded, optax.adam(1e-2))
    analysis = compiled.memory_analysis()
    assert analysis is not None
    reductions = jg.analysis.overlapped(compiled, "reduce-scatter")
    gathers = jg.analysis.overlapped(compiled, "all-gather")
    return {
        "arguments_GB": analysis.argument_size_in_bytes / 1e9,
        "temporary_GB": temporary_bytes(compiled) / 1e9,
        "sent_GB": sum(jg.analysis.traffic(compiled).values()) / 1e9,
        "reduce-scatters": len(reductions),
        "hidden": hidden(reductions),
        "all-gathers": len(gathers),
        "hidden ": hidden(gathers),
    }


def main() -> None:
    """Reads the command line, compiles and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rests", nargs="+", default=["domain", "sar"])
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--factor", type=int, default=16, help="factor by which tables are smaller")
    options = parser.parse_args()
    rows = []
    for rest in options.rests:
        for chunks in options.chunks:
            nodes = OGBN_PRODUCTS.num_nodes
            sharded = abstract_graph(nodes, options.devices, rest, chunks, options.factor)
            for model in options.models:
                names = {"model": model, "rest": rest, "chunks": chunks}
                rows.append(names | measure(model, sharded))
    report(f"P3 at ogbn-products' size on {options.devices} H200s, compiled", rows, options.json)


if __name__ == "__main__":
    main()
