"""A step that computes what the loss needs, beside one that computes all nodes: SAR's figure 8.

    python -m benchmarks.message_flow --target h200x8      # compiled; pip install 'jaxgraph[cuda]'
    python -m benchmarks.message_flow --time               # an epoch on this machine, one device

The graph is generated with a power law of degrees and the degree, features and classes of
ogbn-papers100M; 1.2% of its nodes are for training and 0.2% for validation. GraphSAGE has 3 layers
of 256 and batch norm, as SAR's. Labels as inputs are further columns of the features.

Operations are those of dense products, and bytes what all steps read and write, both by the traced
program; memory and bytes sent are those of the compiled program, all of a device.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import optax
from flax import nnx

import jaxgraph as jg
from benchmarks.command_line import make_parser, report
from benchmarks.generated import Shape, generate
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.parallel.typed_placement import tabulated
from jaxgraph.planner import Target, find_target
from jaxgraph.planner.step_cost import dry_run

LIKE_PAPERS = Shape(1_000_000, 29_000_000, 128, 172)
"""Of the degree of ogbn-papers100M with both directions of its edges."""
TRAINED, VALIDATED = 0.012, 0.002
WIDTH, LAYERS = 256, 3


def graph_of(scale: int) -> jg.Graph:
    """The graph, of whose nodes few have labels."""
    graph, rng = generate(LIKE_PAPERS, scale=scale), np.random.default_rng(0)
    order, count = rng.permutation(graph.num_nodes), graph.num_nodes
    sizes = np.cumsum([0, int(TRAINED * count), int(VALIDATED * count)])
    chosen = [np.isin(np.arange(count), order[a:b]) for a, b in itertools.pairwise(sizes)]
    return graph.replace(train_mask=chosen[0], val_mask=chosen[1], test_mask=None)


def cases(graph: jg.Graph) -> Iterator[tuple[dict[str, Any], jg.Graph, Any, nnx.Module, Any]]:
    """Each case: settings, graph, layers with message flow, model and task."""
    for labels in (False, True):
        given = jg.transforms.with_label_columns(graph) if labels else graph
        task = jg.train.MaskedLabelPrediction() if labels else jg.train.NodeClassification()
        for norm, flow in (("batch", None), ("restricted-batch", LAYERS)):
            model = jg.nn.GraphSAGE(
                given.num_features,
                WIDTH,
                LIKE_PAPERS.num_classes,
                num_layers=LAYERS,
                norm=norm,
                dropout=0.5,
                rngs=nnx.Rngs(0),
            )
            settings = {"labels": "inputs" if labels else "-", "layers": "all rows"}
            if flow is not None:
                settings["layers"] = "needed rows"
            yield settings, given, flow, model, task


def compiled(graph: jg.Graph, target: Target) -> Iterator[dict[str, Any]]:
    """The cost of a step on a target."""
    parts = jg.partition.partition(graph, target.devices, "metis" if target.devices > 1 else "hash")
    for settings, given, flow, model, task in cases(graph):
        if flow is None:
            manifest = tabulate(given, parts, "sar").manifest
        else:
            manifest = tabulated(given, parts, "sar", {}, flow).manifest
        sharded = jg.parallel.place(AbstractSource(manifest), target.mesh())
        found = dry_run(model, sharded, optax.adam(1e-2), target, task=task)
        yield settings | {
            "devices": target.devices,
            "tflop": found.work.flops / 1e12,
            "read_and_written_gb": found.work.bytes / 1e9,
            "sent_gb": sum((*found.sent.inside.values(), *found.sent.between.values())) / 1e9,
            "argument_gb": found.memory.arguments / 1e9,
            "temporary_gb": found.memory.temporary / 1e9,
        }


def timed(graph: jg.Graph, epochs: int) -> Iterator[dict[str, Any]]:
    """Seconds of an epoch, a step and an evaluation, on one device."""
    for settings, given, flow, model, task in cases(graph):
        sharded = jg.parallel.shard(given, None, jg.parallel.make_mesh(1), message_flow=flow)
        history = jg.train.fit(
            model, sharded, optax.adam(1e-2), epochs=epochs, task=task, aggregate_once=False
        )
        yield settings | {"epoch_seconds": float(np.median(history.epoch_seconds[1:]))}
        del sharded


def main() -> None:
    """Measures what the options say, and prints a table."""
    parser = make_parser(__doc__)
    parser.add_argument("--target", default="cpu", help="as of jaxgraph plan")
    parser.add_argument("--scale", type=int, default=1, help="divisor of the number of nodes")
    parser.add_argument("--time", action="store_true", help="run epochs on one device")
    parser.add_argument("--epochs", type=int, default=4, help="the first does not count")
    options = parser.parse_args()
    graph = graph_of(options.scale)
    title = f"GraphSAGE {LAYERS} x {WIDTH}, {graph.num_nodes:,} nodes, {graph.num_edges:,} edges"
    if options.time:
        report(f"{title}, an epoch", timed(graph, options.epochs), options.json)
        return
    target = find_target(options.target)
    report(f"{title}, a step on {options.target}", compiled(graph, target), options.json)


if __name__ == "__main__":
    main()
