"""Epoch time and memory with 16-bit features and activations, compared with float32.

Parameters, sums over neighbours and the optimizer are float32 in both. Rounds run both in turns on
the same generated graph; numbers are medians. For accuracy: `python -m benchmarks.accuracy`.

    python -m benchmarks.precision
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence

import jax
import optax
from flax import nnx
from rich.console import Console
from rich.table import Table

import jaxgraph as jg
from benchmarks.command_line import make_parser, write_figures
from benchmarks.cpu import graphs
from benchmarks.cpu.libraries.jaxgraph_library import make_graph, make_model
from benchmarks.cpu.models import LEARNING_RATE, MODELS

DTYPES = ("float32", "bfloat16")

Sharded = jg.parallel.ShardedGraph


@dataclasses.dataclass(frozen=True)
class Row:
    """One model on one graph.

    Attributes:
      graph, model: their names.
      seconds: median seconds of an epoch, by dtype.
      temporary_bytes: temporary memory of the compiled step, by dtype.
    """

    graph: str
    model: str
    seconds: dict[str, float]
    temporary_bytes: dict[str, int]


class Training:
    """A model in training.

    Args:
      model: the model.
      sharded: the graph.
    """

    def __init__(self, model: nnx.Module, sharded: Sharded) -> None:
        optimizer = optax.adam(LEARNING_RATE)
        self._sharded = sharded
        self._step = jg.train.compile_train_step(model, sharded, optimizer)
        self._state = jg.train.initial_state(model, sharded, optimizer)

    @property
    def temporary_bytes(self) -> int:
        """Memory of a step in addition to its arguments and results."""
        analysis = self._step.memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    def epoch(self) -> float:
        """Trains for one epoch; returns its seconds."""
        start = time.perf_counter()
        self._state, loss = self._step(self._state, self._sharded, jax.random.key(0))
        jax.block_until_ready((self._state, loss))
        return time.perf_counter() - start


def measure(graph_name: str, graph: jg.Graph, model: str, rounds: int) -> Row:
    """Times a model in every dtype in turns, after a round that touches memory first."""
    mesh = jg.parallel.make_mesh(1)
    trainings = {}
    for dtype in DTYPES:
        sharded = jg.parallel.shard(graph, None, mesh, node_dtype=dtype)
        module = make_model(MODELS[model], graph.num_features, graph.num_classes, dtype=dtype)
        if MODELS[model].aggregates_once:
            sharded = jg.train.aggregate_once(module, sharded)
        trainings[dtype] = Training(module, sharded)
    taken: dict[str, list[float]] = {dtype: [] for dtype in DTYPES}
    for turn in range(-1, rounds):
        for dtype, training in trainings.items():
            seconds = training.epoch()
            if turn >= 0:
                taken[dtype].append(seconds)
    return Row(
        graph_name,
        MODELS[model].label,
        {dtype: statistics.median(times) for dtype, times in taken.items()},
        {dtype: training.temporary_bytes for dtype, training in trainings.items()},
    )


def show(rows: Sequence[Row], console: Console) -> None:
    """Prints all rows as a table."""
    table = Table(title="An epoch: median ms, and MB of temporary memory of the compiled step")
    for column in ("graph", "model", *DTYPES, "times faster", "memory"):
        table.add_column(column, justify="left" if column in ("graph", "model") else "right")
    for row in rows:
        wide, narrow = (row.seconds[dtype] for dtype in DTYPES)
        memory = " / ".join(f"{row.temporary_bytes[dtype] / 1e6:.0f}" for dtype in DTYPES)
        times = (f"{1e3 * wide:.1f}", f"{1e3 * narrow:.1f}", f"{wide / narrow:.2f}")
        table.add_row(row.graph, row.model, *times, memory)
    console.print(table)


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--graphs", nargs="+", default=["pubmed-size", "arxiv-size"])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    jg.process.tune_process()
    rows = []
    for name in options.graphs:
        graph = make_graph(graphs.make(name))
        rows += [measure(name, graph, model, options.rounds) for model in options.models]
    show(rows, Console(width=110))
    write_figures(options.json, map(dataclasses.asdict, rows))


if __name__ == "__main__":
    main()
