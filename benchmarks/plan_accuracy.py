"""Modes ordered by a plan from counts alone, against measured steps on emulated CPU devices.

    python -m benchmarks.plan_accuracy

A cell is a number of features, of hidden columns, of devices, and a partitioner. In each the steps
of modes "domain", "sar" and "p3" are timed, a few in turn. Two modes count as different where their
medians differ by more than the quartiles of their times do. Bytes are compared with those of the
compiled programs.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

import jaxgraph as jg
from benchmarks.command_line import make_parser, report
from jaxgraph.analysis.traffic import traffic_by_link
from jaxgraph.planner import GraphCounts, Option, consider

NODES, DEGREE, CLASSES = 20_000, 15, 10
MODES = ("domain", "sar", "p3")


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


def in_same_order(
    measured: Mapping[Any, float], predicted: Mapping[Any, float], errors: Mapping[Any, float]
) -> bool:
    """True where modes that differ when measured are predicted in the same order."""
    return all(
        (measured[a] < measured[b]) == (predicted[a] < predicted[b])
        for a, b in itertools.combinations(MODES, 2)
        if abs(measured[a] - measured[b]) > errors[a] + errors[b]
    )


def cells(options: Any) -> Iterator[dict[str, Any]]:
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
            medians = {mode: float(np.median(each)) for mode, each in times.items()}
            errors = {mode: float(high - low) / 2 for mode, (low, high) in quartiles.items()}
            compiled = {mode: traffic_by_link(found[mode][0], rest[1]).total for mode in MODES}
            orders = [sorted(MODES, key=each.__getitem__) for each in (sent, compiled)]
            names = ("features", "hidden", "devices", "partitioner")
            yield {
                **dict(zip(names, cell, strict=True)),
                "predicted_ms": seconds,
                "measured_ms": medians,
                "same_order": in_same_order(medians, seconds, errors),
                "same_order_of_bytes": orders[0] == orders[1],
            }


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
    report(f"A step of GCN, {NODES} nodes, degree {DEGREE}", found, options.json)
    for name in ("same_order", "same_order_of_bytes"):
        print(f"{name}: {sum(cell[name] for cell in found)} of {len(found)}")


if __name__ == "__main__":
    main()
