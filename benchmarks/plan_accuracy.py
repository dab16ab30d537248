"""Modes ordered by a plan from counts alone, against measured steps on emulated CPU devices.

    python -m benchmarks.plan_accuracy

A cell is a number of features, of hidden columns, of devices, and a partitioner. In each the steps
of modes "domain", "sar" and "p3" are timed, a few in turn. Two modes count as different where their
medians differ by more than the quartiles of their times do. Bytes are compared with those of the
compiled programs.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from rich.console import Console
from rich.table import Table

import jaxgraph as jg
from benchmarks.command_line import make_parser, write_figures
from jaxgraph.analysis.traffic import traffic_by_link
from jaxgraph.planner import GraphCounts, Option, consider

NODES, DEGREE, CLASSES = 20_000, 15, 10
MODES = ("domain", "sar", "p3")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One combination, and its modes in the order predicted and in that measured.

    Attributes:
      features, hidden, devices, partitioner: the combination.
      predicted, measured: milliseconds of a step by mode.
      errors: half the distance of the quartiles of the measured times, by mode.
      predicted_bytes, compiled_bytes: sent by a device in a step, by mode.
    """

    features: int
    hidden: int
    devices: int
    partitioner: str
    predicted: dict[str, float]
    measured: dict[str, float]
    errors: dict[str, float]
    predicted_bytes: dict[str, int]
    compiled_bytes: dict[str, int]

    @property
    def agrees(self) -> bool:
        """True where modes that differ when measured are predicted in the same order."""
        return all(
            (self.measured[a] < self.measured[b]) == (self.predicted[a] < self.predicted[b])
            for a, b in itertools.combinations(MODES, 2)
            if abs(self.measured[a] - self.measured[b]) > self.errors[a] + self.errors[b]
        )

    @property
    def agrees_by_bytes(self) -> bool:
        """True where the bytes of modes are predicted in the order of those compiled."""
        order = sorted(MODES, key=self.compiled_bytes.__getitem__)
        return order == sorted(MODES, key=self.predicted_bytes.__getitem__)


def predict(cell: tuple[int, int, int, str]) -> tuple[dict[str, float], dict[str, int]]:
    """Milliseconds and bytes of each mode, from counts alone."""
    features, hidden, devices, method = cell
    counts = GraphCounts(NODES, NODES * DEGREE, features, CLASSES)
    model = jg.nn.GCN(features, hidden, CLASSES, rngs=nnx.Rngs(0))
    seconds, sent = {}, {}
    for each in consider(
        model, counts, f"cpux{devices}", optax.adam(1e-2), methods=[method], compile="none"
    ):
        if each.option in wanted(method) and each.run is not None:
            seconds[each.option.mode] = 1000 * each.seconds
            sent[each.option.mode] = each.run.sent.total
    return seconds, sent


def wanted(method: str) -> list[Option]:
    """The options that are compared."""
    p3 = Option("p3", method, rest="domain", topology="replicated", chunks=1)
    return [Option("domain", method), Option("sar", method), p3]


def programs(graph: jg.Graph, cell: tuple[int, int, int, str]) -> dict[str, tuple[Any, ...]]:
    """The compiled step of each mode, its state and its graph."""
    features, hidden, devices, method = cell
    parts = jg.partition.partition(graph, devices, method=method)
    mesh, found = jg.parallel.make_mesh(devices), {}
    for option in wanted(method):
        sharded = jg.parallel.shard(graph, parts, mesh, **option.shard_options())
        model = jg.nn.GCN(features, hidden, CLASSES, rngs=nnx.Rngs(0))
        compiled = jg.train.compile_train_step(model, sharded, optax.adam(1e-2))
        state = jg.train.initial_state(model, sharded, optax.adam(1e-2))
        found[option.mode] = (compiled, state, sharded)
    return found


def measure(found: dict[str, tuple[Any, ...]], repeats: int) -> dict[str, np.ndarray]:
    """Milliseconds of a step of each mode, in turns."""
    times: dict[str, list[float]] = {mode: [] for mode in found}
    for turn in range(repeats + 1):
        for mode, (compiled, state, sharded) in found.items():
            start = time.perf_counter()
            state, loss = compiled(state, sharded, jax.random.key(0))
            jax.block_until_ready(loss)
            if turn:
                times[mode].append(1000 * (time.perf_counter() - start))
            found[mode] = (compiled, state, sharded)
    return {mode: np.asarray(values) for mode, values in times.items()}


def cells(options: Any) -> Iterator[Cell]:
    """Measures every combination."""
    for features in options.features:
        graph = jg.datasets.load(
            "sbm",
            num_nodes=NODES,
            degree=DEGREE,
            num_features=features,
            num_classes=CLASSES,
            degree_exponent=2.5,
            seed=0,
        )
        for rest in itertools.product(options.hidden, options.devices, options.partitioners):
            cell = (features, *rest)
            found = programs(graph, cell)
            times = measure(found, options.repeats)
            quartiles = {mode: np.percentile(each, [25, 75]) for mode, each in times.items()}
            seconds, sent = predict(cell)
            yield Cell(
                *cell,
                predicted=seconds,
                measured={mode: float(np.median(each)) for mode, each in times.items()},
                errors={mode: float(high - low) / 2 for mode, (low, high) in quartiles.items()},
                predicted_bytes=sent,
                compiled_bytes={
                    mode: traffic_by_link(each[0], rest[1]).total for mode, each in found.items()
                },
            )


def show(found: Sequence[Cell]) -> None:
    """Prints the cells and how many agree."""
    table = Table(title=f"Predicted / measured ms of a step: GCN, {NODES} nodes, degree {DEGREE}")
    for column in ("features", "hidden", "devices", "cut by", *MODES, "order", "bytes"):
        table.add_column(column, justify="right")
    for cell in found:
        pairs = (f"{cell.predicted[m]:.1f} / {cell.measured[m]:.1f}" for m in MODES)
        settings = (cell.features, cell.hidden, cell.devices, cell.partitioner)
        words = ("yes" if each else "no" for each in (cell.agrees, cell.agrees_by_bytes))
        table.add_row(*map(str, settings), *pairs, *words)
    console = Console(width=120)
    console.print(table)
    agree = sum(cell.agrees for cell in found), sum(cell.agrees_by_bytes for cell in found)
    console.print(f"order by time: {agree[0]} of {len(found)}; by bytes: {agree[1]}")


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--features", type=int, nargs="+", default=[32, 512])
    parser.add_argument("--hidden", type=int, nargs="+", default=[16, 128])
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--partitioners", nargs="+", default=["hash", "metis"])
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    jg.parallel.emulate_devices(max(options.devices))
    found = list(cells(options))
    show(found)
    write_figures(options.json, map(dataclasses.asdict, found))


if __name__ == "__main__":
    main()
