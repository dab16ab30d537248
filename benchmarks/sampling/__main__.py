"""Samples beside DGL's: seeds per second, an epoch of GraphSAGE, and the sizes of batches.

Every library runs in its own process, as for `benchmarks.cpu`, on the same generated graphs of
ogbn-arxiv's and ogbn-products' degrees, and they take turns. A round of sampling is 16 batches of
1,024 seeds; figures are medians of rounds. jaxgraph's samples are its loader's batches, on the
device and with both orientations of their edges; DGL's are its blocks, which make formats later.
Seeds per CPU second divide by the time of all threads. Training is a GraphSAGE 3 x 256 with batch
norm and dropout, by Adam, on two cores; `waited` is the share in which the device had no batch.

    python -m benchmarks.sampling --peer-python PYTHON

`PYTHON` is an interpreter that imports `torch` and `dgl`.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.command_line import make_parser, report, write_figures
from benchmarks.cpu.inputs import Data
from benchmarks.cpu.process import Contestant, Worker, WorkerFailure, WorkerRefusal, start_worker
from benchmarks.generated import OGBN_ARXIV, OGBN_PRODUCTS, Shape, generate
from benchmarks.sampling.tasks import BATCH, Sampling, Training, seeds_of

FANOUTS = ((15, 10, 5), (25, 10), (20, 20, 20))
OTHERS = tuple(Sampling(FANOUTS[0], how) for how in ("replace", "weighted", "labor"))
"""Tasks beside the uniform samples, on the first graph alone."""
EPOCH_SEEDS = 90_941
"""Training nodes of ogbn-arxiv."""
OURS = "jaxgraph"
Row = dict[str, Any]


def make_data(shape: Shape, scale: int = 1) -> Data:
    """A generated graph, with random weights of its edges."""
    graph = generate(shape, scale=scale)
    weight = np.random.default_rng(0).random(graph.num_edges, np.float32)
    train = np.random.default_rng(1).permutation(graph.num_nodes) < EPOCH_SEEDS
    ends = graph.senders.astype(np.int32), graph.receivers.astype(np.int32)
    assert graph.labels is not None
    return Data(*ends, weight, graph.nodes, graph.labels, train, shape.num_classes)


def start(contestants: list[Contestant], data: Data, cores: int, folder: Path) -> dict[str, Worker]:
    """A worker for each contestant that can start."""
    workers = {}
    for each in contestants:
        worker = start_worker(each, cores, folder)
        try:
            worker.request("start", each.library, each.options, None)
            worker.request("load", data)
            workers[each.name] = worker
        except WorkerFailure as reason:
            worker.kill()
            Console().print(f"{each.name} does not take part: {reason}", markup=False)
    return workers


def prepared(workers: Mapping[str, Worker], task: Sampling | Training) -> dict[str, Any]:
    """The results of the libraries that have the task."""
    found = {}
    for name, worker in workers.items():
        try:
            found[name] = worker.request("prepare", task)[0]
        except (WorkerRefusal, WorkerFailure) as reason:
            Console().print(f"{name}, {task.label}: {reason}", markup=False)
    return found


def in_turns(
    workers: Mapping[str, Worker], names: Mapping[str, Any], rounds: int, clock: str
) -> dict[str, float]:
    """Median seconds of a run of each library."""
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, each in seconds.items():
            each += workers[name].request("run", 1, False, clock)
    return {name: statistics.median(each) for name, each in seconds.items()}


def sample(
    workers: Mapping[str, Worker], data: Data, task: Sampling, rounds: int, cores: int
) -> Row:
    """Thousands of seeds per second, of CPU on one core and of the clock on several."""
    found = prepared(workers, task)
    clock = "process_time" if cores == 1 else "perf_counter"
    seconds = in_turns(workers, found, rounds, clock)
    seeds = len(seeds_of(data, task)) / 1e3
    row: Row = {"threads": cores, "samples": task.label}
    row |= {name: seeds / each for name, each in seconds.items()}
    if OURS in seconds and len(seconds) > 1:
        fastest = min(each for name, each in seconds.items() if name != OURS)
        row["times"] = fastest / seconds[OURS]
    counts = {name: int(each["edges"].sum()) for name, each in found.items()}
    return row | {"edges": counts}


def sizes(worker: Worker, fanouts: tuple[int, ...], batches: int) -> Row:
    """Sizes of the batches of jaxgraph."""
    found = worker.request("prepare", Sampling(fanouts, batches=batches))[0]
    return {"fanouts": fanouts} | {name: each.tolist() for name, each in found.items()}


def train(workers: Mapping[str, Worker], data: Data, task: Training, rounds: int) -> list[Row]:
    """Seconds of each library for the steps on so many batches, and for those of an epoch."""
    found = prepared(workers, task)
    seconds = in_turns(workers, found, rounds, "perf_counter")
    whole = np.count_nonzero(data.train_mask) / len(seeds_of(data, task))
    rows = [
        {"library": name, "ms a batch": 1e3 * each / task.batches, "epoch s": each * whole}
        | {key: float(value) for key, value in found[name].items()}
        for name, each in seconds.items()
    ]
    for row in rows:
        row["times"] = row["epoch s"] / rows[0]["epoch s"]
    return rows


def main() -> int:
    """Measures and shows."""
    parser = make_parser(__doc__)
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter of the peers")
    parser.add_argument("--only", nargs="+", choices=("sampling", "training", "sizes"))
    parser.add_argument("--graphs", nargs="+", default=["arxiv", "products"])
    parser.add_argument("--products-scale", type=int, default=4, help="fewer nodes by this factor")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=16, help="of a round of training")
    options, figures = parser.parse_args(), []
    wanted = options.only or ("sampling", "training", "sizes")
    shapes = {"arxiv": (OGBN_ARXIV, 1), "products": (OGBN_PRODUCTS, options.products_scale)}

    def peer(name: str, **arguments: Any) -> Contestant:
        return Contestant(name, "sampling_dgl", arguments, options.peer_python)

    def show(title: str, rows: list[Row]) -> None:
        report(f"{title} (load before {os.getloadavg()[0]:.1f})", rows, None)
        figures.extend({"table": title} | row for row in rows)

    with tempfile.TemporaryDirectory(prefix="benchmarks-sampling-") as folder:
        for name in options.graphs:
            data = make_data(*shapes[name])
            title = f"{name}, {data.num_nodes:,} nodes, {len(data.senders):,} edges"
            for cores in (1, 2) if "sampling" in wanted else ():
                libraries = [Contestant(OURS, "sampling_jaxgraph", {"threads": cores})]
                libraries += [peer(f"DGL int{bits}", bits=bits) for bits in (64, 32)]
                workers = start(libraries, data, cores, Path(folder))
                todo = [Sampling(fanouts) for fanouts in FANOUTS]
                todo += OTHERS if name == "arxiv" else ()
                unit = "CPU second" if cores == 1 else "second"
                rows = [sample(workers, data, each, options.rounds, cores) for each in todo]
                show(f"{title}: thousands of seeds per {unit}", rows)
                _end(workers)
            if "sizes" in wanted:
                workers = start([Contestant(OURS, "sampling_jaxgraph")], data, 2, Path(folder))
                batches = -(-EPOCH_SEEDS // BATCH)
                rows = [sizes(workers[OURS], each, batches) for each in FANOUTS]
                show(f"{title}: batches", rows)
                _end(workers)
            if "training" in wanted and name == "arxiv":
                libraries = [Contestant(OURS, "sampling_jaxgraph")]
                libraries += [
                    peer(f"DGL int{bits}, {count} workers", bits=bits, workers=count)
                    for bits, count in ((64, 0), (32, 0), (32, 1))
                ]
                workers = start(libraries, data, 2, Path(folder))
                rows = train(workers, data, Training(FANOUTS[0], options.batches), options.rounds)
                show(f"{title}: GraphSAGE 3 x 256", rows)
                _end(workers)
    write_figures(options.json, figures)
    return 0


def _end(workers: Mapping[str, Worker]) -> None:
    for worker in workers.values():
        worker.kill()


if __name__ == "__main__":
    sys.exit(main())
