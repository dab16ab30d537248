"""Times of layers on parts: window by window between epochs, or all at once."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from flax import nnx

from jaxgraph.graph import Graph
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel import ShardedGraph, make_mesh
from jaxgraph.parallel.part_alone import PartAlone, on_host, part_alone
from jaxgraph.partition import Partition
from jaxgraph.planner.cost.features import FEATURES, Access, part_features
from jaxgraph.planner.cost.linear_model import CostModel, Sample, fit_layers
from jaxgraph.planner.cost.profiling import (
    WINDOW_SECONDS,
    LayerTask,
    Reference,
    access_of,
    check_profiled,
    hardware_name,
    layer_tasks,
)

reference_of = lru_cache(maxsize=1)(Reference)
"""Of a device: samples of several runs share one."""


class OnlineProfile:
    """Times of the layers of a model on the parts of a sharded graph, taken window by window.

    A window is a layer's forward and backward on one part, repeated, between two runs of the
    reference task. All parts are timed on the first device
    of the mesh, to which they are copied one after the other without the features and labels of
    their nodes: so each layer is one program for all parts. Windows go from layer to layer, then
    from part to part.

    Args:
        model: a `jaxgraph.nn.Stack`.
        graph: the graph, with features.
        sharded: the graph on its mesh, in mode "domain" or "sar".
        partition: that of the sharded graph.
        layers: indices of the layers to time; None: all.
        reference: the task beside it; None: that of the device.

    Attributes:
        compile_seconds: for compiling the programs and running each for the first times.
        longest_seconds: of the windows so far, all that belongs to them included.
    """

    def __init__(
        self,
        model: Any,
        graph: Graph,
        sharded: ShardedGraph,
        partition: Partition,
        layers: Sequence[int] | None = None,
        reference: Reference | None = None,
    ) -> None:
        started = time.perf_counter()
        self._graph, self._partition = graph, partition
        self._mode = sharded.shards.manifest.mode
        self._edges_only = _without_node_data(sharded)
        self._device = sharded.mesh.devices.flat[0]
        self._reference = reference_of(self._device) if reference is None else reference
        self._part = 0, self._taken(0)
        self._tasks = layer_tasks(model, self._part[1], graph.num_features, layers)
        self._ratios: dict[tuple[int, int], list[float]] = {}
        self._count = 0
        self.longest_seconds = 0.0
        for task in self._tasks:
            _window(task, self._part[1], self._reference)
            begun = time.perf_counter()
            _window(task, self._part[1], self._reference)
            self.longest_seconds = max(self.longest_seconds, time.perf_counter() - begun)
        self.compile_seconds = time.perf_counter() - started

    @property
    def rounds(self) -> int:
        """The number of windows that every layer and part has had."""
        return self._count // (len(self._tasks) * self._partition.num_parts)

    def take(self) -> float:
        """Takes the next window."""
        started = time.perf_counter()
        part, layer = divmod(self._count, len(self._tasks))
        part %= self._partition.num_parts
        if self._part[0] != part:
            self._part = part, self._taken(part)
        ratio = _window(self._tasks[layer], self._part[1], self._reference)
        self._ratios.setdefault((layer, part), []).append(ratio)
        self._count += 1
        seconds = time.perf_counter() - started
        self.longest_seconds = max(self.longest_seconds, seconds)
        return seconds

    def part_seconds(self) -> list[float]:
        """Returns the time of the timed layers of every part; empty before the first round."""
        if not self.rounds:
            return []
        seconds = [0.0] * self._partition.num_parts
        for (_, part), ratios in self._ratios.items():
            seconds[part] += statistics.median(ratios) * self._reference.seconds
        return seconds

    def samples(self) -> list[Sample]:
        """Returns a sample for every layer and part that has a window: the median of its windows.

        Their repeat error is the relative difference of the medians of every other window; 0 for
        one window.
        """
        found = []
        for (layer, part), ratios in sorted(self._ratios.items()):
            halves = [statistics.median(half) for half in (ratios[::2], ratios[1::2]) if half]
            seconds = statistics.median(ratios) * self._reference.seconds
            values = dict(zip(FEATURES, self._features[layer][part].tolist(), strict=True))
            error = abs(halves[0] / halves[-1] - 1)
            kind = *self._kinds[layer], self._graph.name, part
            found.append(Sample(*kind, values, seconds, error))
        return found

    def models(self, earlier: Sequence[Sample] = ()) -> list[CostModel]:
        """Returns the model of each layer that is timed, learned from all samples of its name."""
        by_name = fit_layers([*earlier, *self.samples()])
        return [by_name[task.name] for task in self._tasks]

    @cached_property
    def _kinds(self) -> list[tuple[str, str, str, Access]]:
        """Layer, mode, hardware and access of the samples of each layer."""
        hardware = hardware_name(self._device)
        return [(each.name, self._mode, hardware, access_of(each)) for each in self._tasks]

    @cached_property
    def _features(self) -> list[np.ndarray]:
        """All features of the parts, float64 [parts, features], of each layer."""
        given, names = (self._graph, self._partition), tuple(FEATURES)
        return [part_features(*given, access, names) for *_, access in self._kinds]

    def _taken(self, part: int) -> PartAlone:
        return part_alone(self._edges_only, part, self._device)


def _window(task: LayerTask, part: PartAlone, reference: Reference) -> float:
    """The time of a layer on a part over that of the reference task."""
    inputs = task.inputs()

    def run() -> Any:
        return task.program(task.params, part, *inputs)

    one = reference.time_of(run)  # Also touches memory for the first time.
    count = max(1, round(WINDOW_SECONDS / max(one, 1e-9)))
    before = reference.time()
    seconds = reference.time_of(run, count)
    return 2 * seconds / (before + reference.time())


def _without_node_data(sharded: ShardedGraph) -> ShardedGraph:
    names = ("nodes", "labels", "train_mask", "val_mask", "test_mask")
    shards = dataclasses.replace(sharded.shards, **dict.fromkeys(names))
    return dataclasses.replace(sharded, shards=shards)


def profile(
    model: nnx.Module,
    graph: Graph,
    partition: Partition,
    *,
    mode: str = "domain",
    layers: Sequence[int] | None = None,
    windows: int = 8,
    reference: Reference | None = None,
) -> list[Sample]:
    """Times the layers of a model on every part of a graph, each part alone on a device.

    A layer is its convolution, forward and backward, without the elementwise operations around it.
    Windows of a part are far apart in time: every part takes its first window, then every part its
    second. Every other window against the rest tells how well a measurement repeats.

    Args:
        model: a `jaxgraph.nn.Stack`, such as `jaxgraph.nn.GCN`.
        graph: a graph with features, as many as the model takes.
        partition: a part for every node.
        mode: the schedule, "domain" or "sar".
        layers: indices of the layers to time; None: all.
        windows: short times taken of each part, each divided by those of a reference task before
            and after it; at least 2.
        reference: the task beside it, which samples of one model should share; None: that of the
            device.

    Returns:
        A sample for every layer and part.

    Raises:
        ValueError: there are fewer than two windows, no such layer, or no features; or as
            `jaxgraph.parallel.shard`.
    """
    if windows < 2:
        raise ValueError(f"windows: got {windows}; expected 2 or more, whose halves are compared.")
    if mode not in ("domain", "sar"):
        raise ValueError(f"mode: got {mode!r}; expected 'domain' or 'sar'.")
    check_profiled(model, graph, layers)
    sharded = on_host(tabulate(graph, partition, mode), make_mesh(1))
    timed = OnlineProfile(model, graph, sharded, partition, layers, reference)
    while timed.rounds < windows:
        timed.take()
    return timed.samples()
