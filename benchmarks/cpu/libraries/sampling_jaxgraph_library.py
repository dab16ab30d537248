"""jaxgraph: its loader, and training on its batches."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from typing import Any

import jax
import numpy as np
import optax

import jaxgraph as jg
from benchmarks.cpu.inputs import Data
from benchmarks.cpu.libraries.jaxgraph_library import make_graph
from benchmarks.cpu.worker import Prepared
from benchmarks.generated import make_model
from benchmarks.sampling import tasks
from benchmarks.sampling.tasks import Sampling, Training, seeds_of
from jaxgraph.layout.sample_tables import COUNTS, edges_prefix
from jaxgraph.train.epoch import programs_of
from jaxgraph.train.fit_state import first_held
from jaxgraph.train.sampled import SampledEpoch
from jaxgraph.train.step import make_learner


class Library:
    """`jaxgraph.sampling` on one device.

    Args:
      threads: that make batches.
    """

    def __init__(self, threads: int = 1) -> None:
        jg.process.tune_process()
        self._threads = threads

    def load(self, data: Data) -> None:
        """Takes a graph."""
        self._data, self._graph = data, make_graph(data)
        self._sharded = jg.parallel.shard(
            self._graph, jg.partition.partition(self._graph, 1), jg.parallel.make_mesh(1)
        )

    def lay_out(self, task: Sampling | Training) -> None:
        """Makes the loader."""
        how = task.how if isinstance(task, Sampling) else "uniform"
        self._loader = jg.sampling.Loader(
            self._graph,
            task.fanouts,
            sharded=self._sharded,
            batch_size=tasks.BATCH,
            nodes=seeds_of(self._data, task),
            replace=how == "replace",
            method="labor" if how == "labor" else "neighbors",
            weights=self._data.edge_weight if how == "weighted" else None,
            threads=self._threads,
        )

    def prepare(self, task: Sampling | Training) -> Prepared:
        """Prepares a task."""
        return self._sampling() if isinstance(task, Sampling) else self._training(task)

    def _sampling(self) -> Prepared:
        epoch = 0

        def run() -> None:
            nonlocal epoch
            epoch += 1
            for _ in self._loader.batches(epoch):
                pass

        def results() -> dict[str, np.ndarray]:
            return _sizes(jax.device_get(batch.shards.sample) for batch in self._loader.batches(0))

        return Prepared(results, run)

    def _training(self, task: Training) -> Prepared:
        data, graph = self._data, self._loader.sharded
        model = make_model("sage", data.nodes.shape[1], tasks.WIDTH, data.num_classes, tasks.LAYERS)
        optimizer = optax.adam(tasks.LEARNING_RATE)
        learner = make_learner(model, optimizer, jg.train.NodeClassification())
        program = SampledEpoch(learner, (graph,), loader=self._loader)
        held = first_held(model, optimizer, graph, 0)
        start = time.perf_counter()
        program.compile(held)
        compile_seconds = time.perf_counter() - start
        epoch, waited = 0, []

        def run() -> None:
            nonlocal held, epoch
            state, _, share = program.steps(held, epoch)
            held, epoch = held._replace(state=state), epoch + 1
            waited.append(share["waited"])

        def results() -> dict[str, np.ndarray]:
            seconds = []
            for _ in range(4):
                start = time.perf_counter()
                jax.block_until_ready(programs_of(learner).evaluate(held.state, graph))
                seconds.append(time.perf_counter() - start)
                run()
            found = {"evaluation": statistics.median(seconds[1:]), "waited": max(waited[1:])}
            return {name: np.asarray(value) for name, value in found.items()}

        return Prepared(results, run, compile_seconds=compile_seconds)


def _sizes(samples: Any) -> dict[str, np.ndarray]:
    """Sizes of whole batches, by name: means, largest over mean, bytes and kinds of shapes."""
    nodes, edges, kinds = [], [], Counter()
    for sample in samples:
        views = sample.sizes.views(np.asarray(sample.words)[0])
        kinds[sample.sizes] += 1
        if views[COUNTS][-1, 0] == sample.sizes.rows[-1][0]:
            nodes.append(views[COUNTS][:, 0].copy())
            starts = (
                views[
                    edges_prefix(layer, sample.sizes.ends[0][0]) + "by_receiver/compressed_starts"
                ]
                for layer in range(len(sample.sizes.edges))
            )
            edges.append([each.max() for each in starts])
    nodes, edges = np.array(nodes), np.array(edges)
    largest = next(iter(sorted(kinds, key=lambda sizes: -sizes.words)))
    usual = kinds.most_common(1)[0][0]
    return {
        "nodes": nodes.mean(0),
        "edges": edges.mean(0),
        "nodes, largest over mean": nodes.max(0) / nodes.mean(0),
        "edges, largest over mean": edges.max(0) / edges.mean(0),
        "rows over nodes": np.ravel(usual.rows) / nodes.mean(0),
        "slots over edges": np.ravel(usual.edges) / edges.mean(0),
        "MB": np.array(4e-6 * largest.words),
        "shapes": np.array(len(kinds)),
    }
