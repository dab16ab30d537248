"""ROC's figures 8 and 9: training throughput and inference time, by partitioner and devices.

    python -m benchmarks.roc --figures 8 9

Figure 8: steps of a GCN of 3 layers, 128 wide, on a power law whose ids follow density, as ids that
follow time or subject do. The cost model learns from parts of this graph under the equal cuts.
Figure 9: a GIN of 3 layers predicts four graphs; the cost model, learned from six others, sees them
for the first time. They are power laws with four times the nodes of PPI's graphs, and its degree.

Devices are emulated and share the cores of this machine: on more devices than cores, times of steps
show the work of all parts, not the wait for the slowest. So the slowest part's layers, forward and
backward, are timed alone as well: what devices of their own would take, but for communication.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

import jaxgraph as jg
from benchmarks.command_line import keep_freed_memory, make_parser, report
from benchmarks.cost_model import density_blocked
from jaxgraph.partition import Partition
from jaxgraph.planner.cost.profiling import Reference

COLUMNS, CLASSES = 128, 16
PARTITIONERS = ("equal-vertices", "equal-edges", "cost")
LEARNED, UNSEEN = 6, 4
WINDOWS = 4
"""Short times of each part that `profile` takes."""


def make_graph(nodes: int, degree: float, seed: int) -> jg.Graph:
    """A power law of exponent 2.5 in blocks of unequal density, with features and labels."""
    graph, rng = density_blocked(nodes, degree, 2.5, seed), np.random.default_rng(seed)
    return graph.replace(
        nodes=rng.standard_normal((nodes, COLUMNS), np.float32),
        labels=rng.integers(0, CLASSES, nodes).astype(np.int32),
        train_mask=np.ones(nodes, bool),
        name=f"density, seed {seed}",
    )


def make_model(figure: int) -> Any:
    """The model of a figure."""
    kind: Any = jg.nn.GCN if figure == 8 else jg.nn.GIN
    return kind(COLUMNS, COLUMNS, CLASSES, num_layers=3, rngs=nnx.Rngs(0))


def learn(model: Any, graphs: Sequence[jg.Graph], counts: Sequence[int]) -> list[Any]:
    """Models of the layers' costs, from the parts of equal cuts of some graphs."""
    reference, samples = Reference(), []
    for index, graph in enumerate(graphs):
        for count in counts:
            method = PARTITIONERS[(index + count) % 2]
            parts = jg.partition.partition(graph, count, method)
            samples += jg.planner.profile(model, graph, parts, windows=WINDOWS, reference=reference)
    return list(jg.planner.fit_layers(samples).values())


def alone(model: Any, graph: jg.Graph, parts: Partition, reference: Any) -> tuple[float, float]:
    """Seconds of the slowest part's layers, and those of the mean part."""
    samples = jg.planner.profile(model, graph, parts, windows=WINDOWS, reference=reference)
    seconds = np.bincount([s.part for s in samples], [s.seconds for s in samples])
    return float(seconds.max()), float(seconds.mean())


def training(model: Any, sharded: Any) -> Callable[[], Any]:
    """A train step, which carries its state on."""
    optimizer = optax.adam(1e-2)
    step = jg.train.compile_train_step(model, sharded, optimizer)
    state = jg.train.initial_state(model, sharded, optimizer)

    def run() -> Any:
        nonlocal state
        state, loss = step(state, sharded, jax.random.key(0))
        return loss

    return run


def inference(model: Any, sharded: Any) -> Callable[[], Any]:
    """The outputs of all nodes, on the host."""
    return lambda: jg.train.predict(model, sharded)


def time_by_turns(runs: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """The median seconds of each task; the first turn, which may compile, does not count."""
    taken: list[list[float]] = [[] for _ in runs]
    for turn in range(rounds + 1):
        for run, times in zip(runs, taken, strict=True):
            started = time.perf_counter()
            jax.block_until_ready(run())
            times += [time.perf_counter() - started] if turn else []
    return [statistics.median(times) for times in taken]


def measure(figure: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Times every partitioner on every number of devices."""
    model = make_model(figure)
    if figure == 8:
        graphs, task = [make_graph(options.nodes or 40_000, 40, 61)], training
        models = learn(model, graphs, (3, 4, 7, 8))
    else:
        nodes, seeds = options.nodes or 9_492, range(62, 62 + LEARNED + UNSEEN)
        made = [make_graph(nodes, 28, seed) for seed in seeds]
        graphs, task, models = made[LEARNED:], inference, learn(model, made[:LEARNED], (4,))
    costs = [jg.planner.node_cost(models, graph) for graph in graphs]
    reference = Reference()
    for devices in options.devices:
        methods = PARTITIONERS if devices > 1 else PARTITIONERS[:1]
        mesh, found = jg.parallel.make_mesh(devices), []
        for graph, cost in zip(graphs, costs, strict=True):
            parts = [
                jg.partition.partition(
                    graph, devices, method, node_cost=cost if method == "cost" else None
                )
                for method in methods
            ]
            runs = [task(model, jg.parallel.shard(graph, p, mesh, "domain")) for p in parts]
            seconds = time_by_turns(runs, options.rounds)
            layers = [alone(model, graph, each, reference) for each in parts]
            found.append([(s, *pair) for s, pair in zip(seconds, layers, strict=True)])
        for method, (seconds, slowest, mean) in zip(methods, np.mean(found, axis=0), strict=True):
            yield {
                "figure": figure,
                "devices": devices,
                "partitioner": method if devices > 1 else "one part",
                "ms": 1e3 * float(seconds),
                "a_second": 1 / float(seconds),
                "slowest_part_alone_ms": 1e3 * float(slowest),
                "slowest_alone_a_second": 1 / float(slowest),
                "slowest_over_mean": float(slowest / mean),
            }


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--figures", type=int, nargs="+", choices=(8, 9), default=[8, 9])
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--nodes", type=int, help="of each graph")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    keep_freed_memory("benchmarks.roc")
    jg.process.tune_process(num_devices=max(options.devices))
    jg.parallel.emulate_devices(max(options.devices))
    rows = [row for figure in options.figures for row in measure(figure, options)]
    report("Figure 8: train steps; 9: inference, mean of the graphs", rows, options.json)


if __name__ == "__main__":
    main()
