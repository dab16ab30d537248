"""The time that an order of nodes saves in sums over neighbours and in epochs, and its cost.

Every order has the same compiled program. Rounds run the orders in turns, and allocate all arrays
anew, because their addresses in memory matter too. The graph as given takes part twice: the gain of
its second row is noise. Numbers are medians; CPU seconds are those of all threads, and are more
reliable than wall seconds where other programs use the same cores.

The block model has communities of 300 nodes; its ids are random, like those of the Chung-Lu graph.
Features are normal, 128 per node, for the data set too.

    python -m benchmarks.locality --data-dir DIR
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from rich.console import Console
from rich.table import Table

import jaxgraph as jg
from benchmarks.command_line import make_parser, write_figures

COMMUNITY = 300
DEGREE = 14.7
FEATURES = 128
CLASSES = 16
GIVEN = "as given"
TASKS = ("SpMM 16", "SpMM 128", "GCN epoch", "GAT epoch")

Sharded = jg.parallel.ShardedGraph
Run = Callable[[Sharded], Any]


@dataclasses.dataclass(frozen=True)
class Seconds:
    """Wall and CPU seconds."""

    wall: float
    cpu: float


@dataclasses.dataclass(frozen=True)
class Row:
    """One order of one graph.

    Attributes:
      graph, order: their names.
      ordering: time of making the order, including that of METIS' own process.
      tasks: medians by task.
    """

    graph: str
    order: str
    ordering: Seconds
    tasks: Mapping[str, Seconds]


def load_graph(name: str, num_nodes: int, data_dir: Path | None) -> jg.Graph:
    """A generated graph, or a data set, with features and classes of the benchmark's sizes."""
    options: dict[str, Any] = {"data_dir": data_dir}
    if name in ("sbm", "chung-lu"):
        blocks = max(num_nodes // COMMUNITY, 1) if name == "sbm" else CLASSES
        options = {"num_nodes": num_nodes, "degree": DEGREE, "num_classes": blocks}
        options |= {"num_features": 0, "degree_exponent": 2.5, "seed": 0}
    graph = jg.datasets.load(name, **options)
    rng = np.random.default_rng(0)
    return graph.replace(
        nodes=rng.standard_normal((graph.num_nodes, FEATURES), np.float32),
        labels=rng.integers(0, CLASSES, graph.num_nodes, np.int32),
        train_mask=np.ones(graph.num_nodes, bool),
        val_mask=None,
        test_mask=None,
    )


def shard_ordered(
    graph: jg.Graph, order: str | None, mesh: jax.sharding.Mesh
) -> tuple[Sharded, Seconds]:
    """The graph on one device in an order, and the time of making that order."""
    started = clock()
    parts = jg.partition.partition(graph, 1, method="equal-vertices", order=order)
    ordering = elapsed(started)
    return jg.parallel.shard(graph, parts, mesh), ordering


def clock() -> Seconds:
    """The time now, including that of processes that have ended."""
    return Seconds(time.perf_counter(), sum(os.times()[:4]))


def elapsed(started: Seconds) -> Seconds:
    """The time since."""
    now = clock()
    return Seconds(now.wall - started.wall, now.cpu - started.cpu)


@partial(jg.parallel.spmd, outputs="rows")
def sum_over_neighbours(shard: jg.parallel.Shard) -> jax.Array:
    """y = A x, [nodes, features]."""
    assert isinstance(shard.nodes, jax.Array)
    return jg.ops.aggregate(shard, shard.nodes)


def epoch(model: nnx.Module, sharded: Sharded) -> Run:
    """A full-batch training step; its program serves every order of the graph."""
    optimizer = optax.adam(1e-2)
    step = jg.train.compile_train_step(model, sharded, optimizer)
    state = jg.train.initial_state(model, sharded, optimizer)

    def run(sharded: Sharded) -> Any:
        nonlocal state
        state, loss = step(state, sharded, jax.random.key(0))
        return state, loss

    return run


def make_task(name: str, sharded: Sharded) -> Run:
    """The function that runs a task: a sum over neighbours, or an epoch."""
    if name.startswith("SpMM"):
        return sum_over_neighbours
    shared: dict[str, Any] = {"dropout": 0.5, "rngs": nnx.Rngs(0)}
    if name == "GCN epoch":
        return epoch(jg.nn.GCN(FEATURES, 128, CLASSES, **shared), sharded)
    return epoch(jg.nn.GAT(FEATURES, 32, CLASSES, num_heads=4, **shared), sharded)


def lay_out(sharded: Sharded, features: int) -> Sharded:
    """A copy of a graph with the given number of features."""
    copied = jax.tree.map(jnp.copy, sharded)
    shards: Any = copied.shards
    shards = dataclasses.replace(shards, nodes=shards.nodes[..., :features])
    return jax.block_until_ready(dataclasses.replace(copied, shards=shards))


def time_by_turns(run: Run, graphs: Sequence[Sharded], features: int, rounds: int) -> list[Seconds]:
    """The medians of a task on each graph."""
    taken: list[list[Seconds]] = [[] for _ in graphs]
    for turn in range(-1, rounds):
        for place in range(len(graphs)):
            index = (place + turn) % len(graphs)
            laid_out = lay_out(graphs[index], features)
            wall, cpu = time.perf_counter(), time.process_time()
            jax.block_until_ready(run(laid_out))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            # The first turn compiles, and touches memory for the first time.
            if turn >= 0:
                taken[index].append(Seconds(wall, cpu))
    return [
        Seconds(statistics.median(t.wall for t in times), statistics.median(t.cpu for t in times))
        for times in taken
    ]


def measure(name: str, graph: jg.Graph, tasks: Sequence[str], rounds: int) -> list[Row]:
    """Times every task under every order."""
    mesh = jg.parallel.make_mesh(1)
    orders = [None, None, *jg.partition.orders()]
    labels = [GIVEN, f"{GIVEN}, again", *jg.partition.orders()]
    ordered = [shard_ordered(graph, order, mesh) for order in orders]
    graphs = [sharded for sharded, _ in ordered]
    taken: list[dict[str, Seconds]] = [{} for _ in orders]
    for task in tasks:
        run, features = make_task(task, graphs[0]), 16 if task == "SpMM 16" else FEATURES
        for row, seconds in zip(taken, time_by_turns(run, graphs, features, rounds), strict=True):
            row[task] = seconds
    return [
        Row(name, label, ordering, row)
        for label, (_, ordering), row in zip(labels, ordered, taken, strict=True)
    ]


def cells(rows: Sequence[Row]) -> Iterator[list[str]]:
    """The rows of a graph's table: milliseconds as given, then speed ratios."""
    given = rows[0].tasks
    for row in rows:
        numbers = []
        for task, seconds in row.tasks.items():
            if row is rows[0]:
                numbers.append(f"{1e3 * seconds.wall:.1f} / {1e3 * seconds.cpu:.1f} ms")
            else:
                wall, cpu = given[task].wall / seconds.wall, given[task].cpu / seconds.cpu
                numbers.append(f"{wall:.2f} / {cpu:.2f}")
        yield [row.order, f"{row.ordering.wall:.2f} / {row.ordering.cpu:.2f}", *numbers]


def show(rows: Sequence[Row], console: Console) -> None:
    """Prints the rows of a graph as a table."""
    table = Table(title=f"{rows[0].graph}: wall / CPU; gains over the graph as given")
    table.add_column("order")
    for heading in ("ordering, s", *rows[0].tasks):
        table.add_column(heading, justify="right")
    for row in cells(rows):
        table.add_row(*row)
    console.print(table)


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--graphs", nargs="+", default=["sbm", "chung-lu", "coauthor-cs"])
    parser.add_argument("--nodes", type=int, default=169_343, help="of the generated graphs")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("JAXGRAPH_DATA"))
    options = parser.parse_args()
    jg.process.tune_process()
    console, rows = Console(width=130), []
    for name in options.graphs:
        graph = load_graph(name, options.nodes, options.data_dir)
        found = measure(name, graph, options.tasks, options.rounds)
        show(found, console)
        rows += found
    write_figures(options.json, map(dataclasses.asdict, rows))


if __name__ == "__main__":
    main()
