"""The layers of a model as tasks to time, forward and backward, as they run in training.

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
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxgraph.graph import Graph
from jaxgraph.kinds import kind_of
from jaxgraph.nn.layer import joined_width
from jaxgraph.nn.protocol import declaration
from jaxgraph.nn.stack import Stack
from jaxgraph.ops.core.message_functions import sum_message
from jaxgraph.ops.core.messages import Inputs, Wanted
from jaxgraph.ops.core.reducers import Sum
from jaxgraph.parallel.exchange import Call, Exchange
from jaxgraph.parallel.relation import Relation
from jaxgraph.parallel.whole_graph import on_whole_graph
from jaxgraph.planner.chips import CHIPS
from jaxgraph.planner.cost.features import Access
from pallas_kernels.pytrees import pytree

Pytree = Any
WINDOW_SECONDS = 0.01
"""A window repeats its task until it is at least about as long."""


class Reference:
    """A task of about ten milliseconds that is timed beside every window.

    Other programs, and the clock of the chip, slow both; their ratio repeats where times do not. It
    sums neighbours' rows and multiplies matrices, as layers do.

    Args:
        device: where it runs; None: JAX's default device.
        clock: returns seconds. `time.process_time`, on a CPU of one core that other programs use as
            well, leaves out the time that they take.

    Attributes:
        seconds: its own time, by which ratios become seconds; so the samples of one model should
            share a reference.
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
    """Names the hardware of a layer: the kind of the device, and the number of cores of a CPU."""
    if device.platform != "cpu":
        return device.device_kind
    return f"cpu {platform.machine()}, {len(os.sched_getaffinity(0))} core(s)"


def check_profiled(model: Any, graph: Graph, layers: Sequence[int] | None = None) -> None:
    """Checks that the layers of a model can be timed on a graph; computes nothing."""
    if not isinstance(model, Stack) or type(model).__call__ is not Stack.__call__:
        raise ValueError(
            f"model: got {kind_of(model)}, which is not its layers one after the other; expected "
            "a jaxgraph.nn.Stack, such as jaxgraph.nn.GCN."
        )
    for index in layers or ():
        if not 0 <= index < len(model.layers):
            last = len(model.layers) - 1
            raise ValueError(f"layers: got {index}; expected indices from 0 to {last}.")
    if graph.nodes is None:
        raise ValueError("graph: has no node features; expected as many as the model takes.")


def layer_tasks(
    model: Any, part: Relation, columns: int, layers: Sequence[int] | None = None
) -> list[LayerTask]:
    """Describes the layers of a model on the parts of a graph; compiles nothing."""
    tasks, widths = [], [columns]
    for index, layer in enumerate(model.layers):
        joins = model.jumping if index == len(model.layers) - 1 else None
        columns = widths[-1] if joins is None else joined_width(joins, widths[1:])
        tasks.append(LayerTask.of(layer.convolution, part, columns, is_first=index == 0))
        widths.append(tasks[-1].gradient.shape[1])
    return [task for index, task in enumerate(tasks) if layers is None or index in layers]


def access_of(task: LayerTask) -> Access:
    """The access of a layer: 16 numbers of 32 bits are a cache line of a CPU."""
    if task.device.platform == "cpu":
        return Access(task.sent_columns, task.sent_bytes, 16, _cpu_cache_bytes())
    kind = task.device.device_kind
    sizes = (chip.cache for name, chip in CHIPS.items() if name.upper() in kind)
    return Access(task.sent_columns, task.sent_bytes, 32, next(sizes, CHIPS["a100"].cache))


def _cpu_cache_bytes() -> int:
    try:
        size = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text(encoding="utf-8")
        return int(size.strip().removesuffix("K")) << 10
    except (ValueError, OSError):  # Not every system tells.
        return 1 << 20


@pytree
class HaloGiven(Exchange):
    """An exchange that is given the rows of the halo when messages are reduced.

    Attributes:
      part: the part alone, whose senders have a halo.
      halo_of: `own sent rows -> rows of the halo`, pytrees of arrays [rows, ...].
    """

    part: Relation | None = None
    halo_of: Callable[[Pytree], Pytree] = dataclasses.field(
        default=lambda own: own, metadata={"static": True}
    )

    def propagate(self, call: Call) -> Pytree:
        """See `jaxgraph.parallel.relation.Relation.propagate`."""
        everything, loops = self._with_halo(call.inputs), call.self_loops
        return self._part.propagate(call.message, call.reducer, everything, self_loops=loops)

    def pull_sum(self, call: Call, gradient: Pytree, wanted: Wanted) -> Inputs:
        """See `jaxgraph.parallel.relation.Relation.pull_sum`."""
        given = call.message, call.reducer, self._with_halo(call.inputs)
        found = self._part.pull_sum(*given, gradient, wanted)
        own = [leaf[: self._part.receiver_rows] for leaf in found.sender]
        return dataclasses.replace(found, sender=own)

    @property
    def _part(self) -> Relation:
        assert self.part is not None
        return self.part

    def _with_halo(self, inputs: Inputs) -> Inputs:
        halo = self.halo_of(inputs.sender)
        sender = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), inputs.sender, halo)
        return dataclasses.replace(inputs, sender=sender)


def in_training(part: Relation, halo_of: Callable[[Pytree], Pytree]) -> Relation:
    """A part whose layers are given its own rows, and its halo when messages are reduced."""
    exchange = HaloGiven(part=part, halo_of=halo_of)
    return dataclasses.replace(part, senders=part.receivers, exchange=exchange)


@dataclasses.dataclass(frozen=True, eq=False)
class LayerTask:
    """A layer's forward and backward, one program for all parts of a graph.

    Args:
      name: the layer's type and widths, as of `Sample`.
      program: `(params, part, x, halos, gradient) -> (y, gradients)`.
      params: of the layer.
      x: float [rows, columns], of the own nodes.
      halos: the rows of other parts, for every reduction of messages in the layer.
      gradient: float [rows, out columns], of the outputs. These are shapes; see `inputs`.
      sent_columns, sent_bytes: of a row that an edge reads at its sender.
      device: where it runs.
    """

    name: str
    program: Callable[..., Pytree]
    params: Pytree
    x: jax.ShapeDtypeStruct
    halos: list[Pytree]
    gradient: jax.ShapeDtypeStruct
    sent_columns: int
    sent_bytes: int
    device: Any

    @classmethod
    def of(cls, convolution: Any, part: Relation, columns: int, *, is_first: bool) -> LayerTask:
        """Describes the task of a convolution."""
        definition, params, rest = nnx.split(convolution, nnx.Param, ...)
        (device,) = part.receivers.node_ids.devices()
        takes_initial = declaration(convolution).takes_initial

        def layer(params: Pytree, part: Relation, x: jax.Array, halo_of: Any) -> jax.Array:
            merged = nnx.merge(definition, params, rest)
            extra = {"initial": x} if takes_initial else {}
            return merged(in_training(part, halo_of), x, key=jax.random.key(0), train=True, **extra)

        rows, halo_rows = part.receiver_rows, part.sender_rows - part.receiver_rows
        sent: list[Pytree] = []

        def listed(own: Pytree) -> Pytree:
            sent.append(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), own))
            return jax.tree.map(lambda a: jnp.zeros((halo_rows, *a.shape[1:]), a.dtype), own)

        x = jax.ShapeDtypeStruct((rows, columns), jnp.float32)
        y = jax.eval_shape(lambda p, part, x: layer(p, part, x, listed), params, part, x)
        leaves = jax.tree.leaves(sent)

        @jax.jit
        def program(params: Pytree, part: Relation, x: jax.Array, halos: Any, gradient: Any) -> Any:
            def run(params: Pytree, x: jax.Array, halos: list[Pytree]) -> jax.Array:
                given = iter(halos)
                return layer(params, part, x, lambda own: next(given))

            if is_first:
                y, pull = jax.vjp(lambda p, halos: run(p, x, halos), params, halos)
            else:
                y, pull = jax.vjp(run, params, x, halos)
            return y, pull(gradient)

        name = f"{type(convolution).__name__} {columns}->{y.shape[1]}"
        return cls(
            f"{name}, first" if is_first else name,  # Whose input has no gradient.
            program,
            jax.device_put(params, device),
            x,
            jax.tree.map(lambda s: jax.ShapeDtypeStruct((halo_rows, *s.shape), s.dtype), sent),
            jax.ShapeDtypeStruct(y.shape, y.dtype),
            max(1, sum(int(np.prod(leaf.shape)) for leaf in leaves)),
            max(1, sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)),
            device,
        )

    def inputs(self) -> tuple[Any, ...]:
        """x, halos and gradient, made anew."""
        leaves, structure = jax.tree.flatten((self.x, self.halos, self.gradient))
        with jax.default_device(self.device):
            made = [_waves(leaf.shape, leaf.dtype, seed) for seed, leaf in enumerate(leaves)]
        return jax.tree.unflatten(structure, made)


@partial(jax.jit, static_argnums=(0, 1))
def _waves(shape: tuple[int, ...], dtype: Any, seed: int) -> jax.Array:
    """Numbers from -1 to 1, for less than random ones would cost."""
    count = jnp.arange(int(np.prod(shape)), dtype=jnp.float32).reshape(shape)
    return jnp.sin(count + seed).astype(dtype)
