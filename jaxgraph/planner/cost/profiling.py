"""Times of each part's layers, forward and backward, as they run in training.

A part is alone on its device, with the shapes, padding and trip counts that it has on the mesh.
The rows of other parts are given where the mesh would have brought them: after the layer has mapped
its own rows, before it reduces messages. So the map of other parts' rows is not timed, and their
gradient, which would be sent back, is computed.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxgraph.graph import Graph
from jaxgraph.ops.core.message_functions import sum_message
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.core.reducers import Reducer, Sum
from jaxgraph.parallel import PartAlone, make_mesh, part_alone, shard
from jaxgraph.parallel.whole_graph import on_whole_graph
from jaxgraph.partition import Partition
from jaxgraph.planner.cost.features import FEATURES, Access, part_features
from jaxgraph.planner.cost.linear_model import Sample

__all__ = ["Reference", "hardware_name", "profile"]

Pytree = Any
_WINDOW_SECONDS = 0.01
"""A window repeats its task until it is at least about as long."""
_GPU_CACHE_BYTES = {"A100": 40 << 20, "H100": 50 << 20, "H200": 50 << 20, "B200": 126 << 20}


class Reference:
    """A task of about ten milliseconds that is timed beside every window.

    Other programs, and the clock of the chip, slow both; their ratio repeats where times do not. It
    sums neighbours' rows and multiplies matrices, as layers do.

    Args:
        device: where it runs; None: JAX's default device.
        clock: returns seconds. `time.process_time`, on a CPU of one core that other programs use as
            well, leaves out the time that they take.

    Attributes:
        seconds: what it takes, by which ratios become seconds; so the samples of one model should
            share one.
    """

    def __init__(self, device: Any = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        device = jax.devices()[0] if device is None else device
        rng = np.random.default_rng(0)
        nodes, edges, width = 20_000, 300_000, 64
        ends = rng.integers(0, nodes, (2, edges)).astype(np.int32)
        with jax.default_device(device):
            whole = on_whole_graph(Graph.from_edges(*ends, num_nodes=nodes)).shard
            rows = jnp.asarray(rng.standard_normal((nodes, width), np.float32))
            kernel = jnp.asarray(rng.standard_normal((width, width), np.float32))

            @jax.jit
            def task(whole: Any, rows: jax.Array, kernel: jax.Array) -> jax.Array:
                return whole.propagate(sum_message, Sum(), Inputs((), rows @ kernel, (), ()))

        self._run = lambda: task(whole, rows, kernel)
        self.time()
        self.seconds = statistics.median(self.time() for _ in range(15))

    def time(self) -> float:
        """Returns the seconds that one run takes now."""
        return self.time_of(self._run)

    def time_of(self, run: Callable[[], Pytree], count: int = 1) -> float:
        """Returns the seconds that a run of another task takes, the mean of several."""
        started = self.clock()
        for _ in range(count):
            jax.block_until_ready(run())
        return (self.clock() - started) / count


def hardware_name(device: Any) -> str:
    """Names what a layer runs on: the kind of the device, and how many cores of a CPU."""
    if device.platform != "cpu":
        return device.device_kind
    return f"cpu {platform.machine()}, {len(os.sched_getaffinity(0))} core(s)"


def profile(
    model: nnx.Module,
    graph: Graph,
    partition: Partition,
    *,
    mode: str = "domain",
    layers: Sequence[int] | None = None,
    windows: int = 8,
    width: int | None = None,
    cache_bytes: int | None = None,
    reference: Reference | None = None,
) -> list[Sample]:
    """Times the layers of a model on every part of a graph, each part alone on a device.

    A layer is its convolution, forward and backward, without what is elementwise around it. Windows
    of a part are far apart in time: all parts take the first half of theirs, then all the second.
    The medians of the two halves tell how well a measurement repeats.

    Args:
        model: a `jaxgraph.nn.Stack`, such as `jaxgraph.nn.GCN`.
        graph: a graph with features, as many as the model takes.
        partition: a part for every node.
        mode: the schedule, "domain" or "sar".
        layers: indices of the layers to time; None: all.
        windows: short times taken of each part, each divided by those of the reference task before
            and after it; at least 2.
        width, cache_bytes: as of `Access`; None: those of the device.
        reference: the task beside it; None: a new one. Samples of one model should share one.

    Returns:
        A sample for every layer and part.

    Raises:
        ValueError: there are fewer than two windows, no such layer, no features, or an empty part
            list; or as `jaxgraph.parallel.shard`.
    """
    convolutions = _convolutions(model, layers)
    if windows < 2:
        raise ValueError(f"windows: got {windows}; expected 2 or more, whose halves are compared.")
    if graph.nodes is None:
        raise ValueError("graph: has no node features; expected as many as the model takes.")
    mesh = make_mesh(1)
    sharded = shard(graph, partition, mesh, mode)
    device = mesh.devices.flat[0]
    reference = Reference(device) if reference is None else reference
    alone = [part_alone(sharded, part) for part in range(partition.num_parts)]
    samples: list[Sample] = []
    features_of: dict[Access, np.ndarray] = {}
    columns = graph.num_features
    for index, convolution in enumerate(convolutions):
        task = _LayerTask.of(convolution, alone[0], columns, is_first=index == 0)
        name = f"{type(convolution).__name__} {columns}->{task.out_columns}"
        name += ", first" if index == 0 else ""  # Whose input has no gradient.
        columns = task.out_columns
        if layers is not None and index not in layers:
            continue
        access = _access(device, task, width, cache_bytes)
        if access not in features_of:
            features_of[access] = part_features(graph, partition, access, tuple(FEATURES))
        runs = [task.on(part) for part in alone]
        found = _times_of(runs, windows, reference)
        for part, (seconds, repeat_error) in enumerate(found):
            values = dict(zip(FEATURES, features_of[access][part].tolist(), strict=True))
            kind = (name, mode, hardware_name(device), access)
            samples.append(Sample(*kind, graph.name, part, values, seconds, repeat_error))
    return samples


def _convolutions(model: Any, layers: Sequence[int] | None) -> list[Any]:
    if not hasattr(model, "layers") or not all(hasattr(m, "convolution") for m in model.layers):
        raise ValueError(
            f"model: got a {type(model).__name__}, whose layers are not known here; expected a "
            "jaxgraph.nn.Stack, such as jaxgraph.nn.GCN."
        )
    found = [layer.convolution for layer in model.layers]
    for index in layers or ():
        if not 0 <= index < len(found):
            raise ValueError(f"layers: got {index}; expected indices from 0 to {len(found) - 1}.")
    return found


def _access(device: Any, task: _LayerTask, width: int | None, cache_bytes: int | None) -> Access:
    """The access of a layer: 16 numbers of 32 bits are a cache line of a CPU."""
    is_cpu = device.platform == "cpu"
    if width is None:
        width = 16 if is_cpu else 32
    if cache_bytes is None:
        kinds = (size for kind, size in _GPU_CACHE_BYTES.items() if kind in device.device_kind)
        cache_bytes = _cpu_cache_bytes() if is_cpu else next(kinds, 40 << 20)
    return Access(task.sent_columns, task.sent_bytes, width, cache_bytes)


def _cpu_cache_bytes() -> int:
    try:
        size = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text(encoding="utf-8")
        return int(size.strip().removesuffix("K")) << 10
    except (ValueError, OSError):  # Not every system tells.
        return 1 << 20


class InTraining:
    """A part whose layers are given its own rows, and its halo when messages are reduced.

    Args:
      part: the part alone.
      halo_of: `own sent rows -> rows of the halo`, pytrees of arrays [rows, ...].
    """

    def __init__(self, part: PartAlone, halo_of: Callable[[Pytree], Pytree]) -> None:
        self.part = part
        self.halo_of = halo_of

    @property
    def senders(self) -> Any:
        """The own nodes: the rows that a layer is given."""
        return self.part.receivers

    def own_rows(self, values: jax.Array) -> jax.Array:
        """`values`: senders are the receivers."""
        return values

    def propagate(
        self, message: MessageFn, reducer: Reducer, inputs: Inputs, *, self_loops: bool = False
    ) -> Pytree:
        """See `jaxgraph.parallel.neighborhood.Neighborhood.propagate`."""
        everything = self._with_halo(inputs)
        return self.part.propagate(message, reducer, everything, self_loops=self_loops)

    def pull_sum(
        self, message: MessageFn, reducer: Reducer, inputs: Inputs, gradient: Pytree, wanted: Wanted
    ) -> Inputs:
        """See `jaxgraph.parallel.shard.Shard.pull_sum`."""
        found = self.part.pull_sum(message, reducer, self._with_halo(inputs), gradient, wanted)
        own = [leaf[: self.part.receiver_rows] for leaf in found.sender]
        return dataclasses.replace(found, sender=own)

    def _with_halo(self, inputs: Inputs) -> Inputs:
        halo = self.halo_of(inputs.sender)
        sender = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), inputs.sender, halo)
        return dataclasses.replace(inputs, sender=sender)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.part, name)


@dataclasses.dataclass(frozen=True, eq=False)
class _LayerTask:
    """A layer's forward and backward, compiled for the shapes of the parts of a graph.

    Args:
      program: `(params, part, x, halos, gradient) -> (y, gradients)`.
      params: of the layer.
      x: float [rows, columns], of the own nodes.
      halos: the rows of other parts, for every reduction of messages in the layer.
      gradient: float [rows, out columns], of the outputs.
      sent_columns, sent_bytes: of a row that an edge reads at its sender.
    """

    program: Callable[..., Pytree]
    params: Pytree
    x: jax.Array
    halos: list[Pytree]
    gradient: jax.Array
    sent_columns: int
    sent_bytes: int

    @property
    def out_columns(self) -> int:
        """Columns of the output."""
        return self.gradient.shape[1]

    @classmethod
    def of(cls, convolution: Any, part: PartAlone, columns: int, *, is_first: bool) -> _LayerTask:
        definition, params, rest = nnx.split(convolution, nnx.Param, ...)

        def layer(params: Pytree, part: PartAlone, x: jax.Array, halo_of: Any) -> jax.Array:
            merged = nnx.merge(definition, params, rest)
            return merged(InTraining(part, halo_of), x, key=jax.random.key(0), train=True)

        rows, halo_rows = part.receiver_rows, part.sender_rows - part.receiver_rows
        sent: list[Pytree] = []

        def listed(own: Pytree) -> Pytree:
            sent.append(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), own))
            return jax.tree.map(lambda a: jnp.zeros((halo_rows, *a.shape[1:]), a.dtype), own)

        x = _random((rows, columns), jnp.float32, 0)
        y = jax.eval_shape(lambda p, part, x: layer(p, part, x, listed), params, part, x)
        halos = [
            jax.tree.map(lambda s: _random((halo_rows, *s.shape), s.dtype, 1), each)
            for each in sent
        ]
        leaves = jax.tree.leaves(sent)

        @jax.jit
        def program(
            params: Pytree, part: PartAlone, x: jax.Array, halos: Any, gradient: Any
        ) -> Any:
            def run(params: Pytree, x: jax.Array, halos: list[Pytree]) -> jax.Array:
                given = iter(halos)
                return layer(params, part, x, lambda own: next(given))

            if is_first:
                y, pull = jax.vjp(lambda p, halos: run(p, x, halos), params, halos)
            else:
                y, pull = jax.vjp(run, params, x, halos)
            return y, pull(gradient)

        return cls(
            program,
            params,
            x,
            halos,
            _random(y.shape, y.dtype, 2),
            sum(int(np.prod(leaf.shape)) for leaf in leaves),
            sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves),
        )

    def on(self, part: PartAlone) -> Callable[[], Pytree]:
        """The task on a part, ready to run."""
        return lambda: self.program(self.params, part, self.x, self.halos, self.gradient)


def _random(shape: tuple[int, ...], dtype: Any, seed: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def _times_of(
    runs: Sequence[Callable[[], Pytree]], windows: int, reference: Reference
) -> list[tuple[float, float]]:
    """The seconds of every task, and the relative difference of the two halves of its windows."""
    repeats = []
    for run in runs:
        reference.time_of(run)  # Compiles, and touches memory for the first time.
        repeats.append(max(1, round(_WINDOW_SECONDS / max(reference.time_of(run), 1e-9))))
    halves: list[list[list[float]]] = [[], []]
    for half in halves:
        for run, count in zip(runs, repeats, strict=True):
            half.append(_ratios(run, count, -(-windows // 2), reference))
    found = []
    for first, second in zip(*halves, strict=True):
        middles = statistics.median(first), statistics.median(second)
        ratio = statistics.median([*first, *second])
        found.append((ratio * reference.seconds, abs(middles[0] / middles[1] - 1)))
    return found


def _ratios(
    run: Callable[[], Pytree], count: int, windows: int, reference: Reference
) -> list[float]:
    """Times of windows of a task, each divided by the reference before and after it."""
    ratios, before = [], reference.time()
    for _ in range(windows):
        seconds = reference.time_of(run, count)
        after = reference.time()
        ratios.append(2 * seconds / (before + after))
        before = after
    return ratios
