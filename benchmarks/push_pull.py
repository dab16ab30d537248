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
import time

import jax
import optax
from flax import nnx
from rich.console import Console
from rich.table import Table

import jaxgraph as jg
from benchmarks.command_line import make_parser, write_figures
from benchmarks.generated import OGBN_PRODUCTS
from benchmarks.memory import temporary_bytes
from jaxgraph.analysis.traffic import Overlap
from jaxgraph.layout.column_tables import ColumnRequest
from jaxgraph.layout.fitting import with_headroom
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.planner.targets import find_target

HIDDEN, LAYERS = 256, 3
MODELS = {"gcn": jg.nn.GCN, "sage": jg.nn.GraphSAGE}


@dataclasses.dataclass(frozen=True)
class Row:
    """One compiled train step.

    Attributes:
      model, rest, topology, chunks: the compiled combination.
      argument_gigabytes, temporary_gigabytes: memory per device.
      sent_gigabytes: traffic per device and step.
      reductions, gathers: those of partial activations and of their gradients, in the program's
        text; one in a loop counts for all of its steps.
      reductions_hidden, gathers_hidden: those under which kernels of an aggregation run.
      compile_seconds: wall time.
    """

    model: str
    rest: str
    topology: str
    chunks: int
    argument_gigabytes: float
    temporary_gigabytes: float
    sent_gigabytes: float
    reductions: int
    reductions_hidden: int
    gathers: int
    gathers_hidden: int
    compile_seconds: float


def enlarged(manifest: Manifest, factor: int) -> Manifest:
    """The shapes of a graph in mode "p3" with `factor` times as many nodes and edges.

    Args:
      manifest: manifest of the smaller graph.
      factor: the factor.

    Returns:
      A manifest without counts.
    """
    schedule = manifest.columns
    if schedule is None:
        raise ValueError("the manifest is not of a graph in mode 'p3'")
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
    nodes: int, devices: int, rest: str, topology: str, chunks: int, *, factor: int = 1
) -> jg.parallel.ShardedGraph:
    """A graph in mode "p3", cut by hash, on H200s that are not present.

    Args:
      nodes: number of nodes of the whole graph, rounded to a multiple of `factor`.
      devices: number of devices.
      rest, topology, chunks: as for `jaxgraph.parallel.shard`.
      factor: the tables are made for a graph that is smaller by this factor.

    Returns:
      The graph; its leaves are shapes.
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
    columns = ColumnRequest(topology, chunks)
    manifest = enlarged(tabulate(graph, parts, rest, columns=columns).manifest, factor)
    return jg.parallel.place(
        jg.parallel.AbstractSource(manifest), find_target(f"h200x{devices}").mesh(emulate=False)
    )


def hidden(transfers: list[Overlap]) -> int:
    """The number of transfers that overlap an aggregation: a kernel of ours, or a loop of XLA's."""
    return sum(each.custom_calls_between + each.loops_between > 0 for each in transfers)


def measure(
    model: str, sharded: jg.parallel.ShardedGraph, rest: str, topology: str, chunks: int
) -> Row:
    """Compiles the train step of a model."""
    features, classes = OGBN_PRODUCTS.num_features, OGBN_PRODUCTS.num_classes
    module = MODELS[model](features, HIDDEN, classes, num_layers=LAYERS, rngs=nnx.Rngs(0))
    start = time.perf_counter()
    compiled = jg.train.compile_train_step(module, sharded, optax.adam(1e-2))
    seconds = time.perf_counter() - start
    reductions = jg.analysis.overlapped(compiled, "reduce-scatter")
    gathers = jg.analysis.overlapped(compiled, "all-gather")
    return Row(
        model,
        rest,
        topology,
        chunks,
        _argument_bytes(compiled) / 1e9,
        temporary_bytes(compiled) / 1e9,
        sum(jg.analysis.traffic(compiled).values()) / 1e9,
        len(reductions),
        hidden(reductions),
        len(gathers),
        hidden(gathers),
        seconds,
    )


def _argument_bytes(compiled: jax.stages.Compiled) -> int:
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis.argument_size_in_bytes


def show(rows: list[Row], devices: int) -> None:
    """Prints the table."""
    table = Table(
        title=f"P3 at ogbn-products size, {devices} H200s, compiled only: {LAYERS} layers of "
        f"{HIDDEN}; GB per device, and transfers under which an aggregation runs"
    )
    for column in ("model", "rest", "topology"):
        table.add_column(column)
    for column in (
        "chunks",
        "arguments",
        "temporary",
        "sent",
        "reduce-scatters",
        "all-gathers",
        "compile s",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.model,
            row.rest,
            row.topology,
            str(row.chunks),
            f"{row.argument_gigabytes:.2f}",
            f"{row.temporary_gigabytes:.2f}",
            f"{row.sent_gigabytes:.2f}",
            f"{row.reductions_hidden} of {row.reductions}",
            f"{row.gathers_hidden} of {row.gathers}",
            f"{row.compile_seconds:.0f}",
        )
    Console(width=120).print(table)


def main() -> None:
    """Reads the command line, compiles and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rests", nargs="+", default=["domain", "sar"])
    parser.add_argument("--topologies", nargs="+", default=["replicated"])
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--factor", type=int, default=16, help="factor by which tables are smaller")
    options = parser.parse_args()
    rows = []
    for rest in options.rests:
        for topology in options.topologies:
            for chunks in options.chunks:
                sharded = abstract_graph(
                    OGBN_PRODUCTS.num_nodes,
                    options.devices,
                    rest,
                    topology,
                    chunks,
                    factor=options.factor,
                )
                rows += [
                    measure(model, sharded, rest, topology, chunks) for model in options.models
                ]
    show(rows, options.devices)
    write_figures(options.json, map(dataclasses.asdict, rows))


if __name__ == "__main__":
    main()
