"""The number of parts with which a graph is streamed through the memory of a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import optax
from flax import nnx
from jax.sharding import Mesh

from jaxgraph.byte_amounts import bytes_of
from jaxgraph.graph import Graph
from jaxgraph.kinds import check_graph, kind_of
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel import make_mesh
from jaxgraph.parallel.streaming.graph import StreamedGraph, streamed_graph
from jaxgraph.parallel.streaming.rehearsal import Needs
from jaxgraph.partition import Partition, partition
from jaxgraph.train.arguments import check_optimizer, checked_graph, checked_task
from jaxgraph.train.epoch import StreamedEpoch
from jaxgraph.train.fit_state import abstract_held
from jaxgraph.train.step import make_learner
from jaxgraph.train.task import Task

MOST_PARTS = 64
"""Parts beyond which bytes moved and Python per chunk dominate."""
GAIN = 0.9
"""More parts are tried as long as twice as many need at most this share of the memory."""


def fewest_parts(
    model: nnx.Module,
    graph: Graph,
    optimizer: optax.GradientTransformation,
    memory_limit: int | str,
    *,
    mesh: Mesh | None = None,
    task: Task | None = None,
    **options: Any,
) -> Partition:
    """Cuts a graph into the fewest parts with which a streamed epoch fits the memory of a device.

    The number of parts is doubled until it does, from one for each device. The bytes are those of a
    rehearsal, see `streamed_needs`.

    Args:
      model: the model.
      graph: the graph.
      optimizer: of optax.
      memory_limit: bytes of each device, or text such as "2GB".
      mesh: the devices that parts visit; None: one.
      task: the task to learn; None: node classification.
      options: of `jaxgraph.partition.partition`, such as its method.

    Returns:
      The partition, for `jaxgraph.parallel.shard(..., mode="stream")`.

    Raises:
      ValueError: an argument is not of its kind, model, graph and task do not fit together, or no
        number of parts fits; the message names the least limit that works.
    """
    check_graph(graph, "fewest_parts(model, graph, optimizer, memory_limit)")
    limit, least = bytes_of("memory_limit", memory_limit), None
    mesh = make_mesh(1) if mesh is None else mesh
    for tried in tried_parts(model, graph, optimizer, limit, mesh, task=task, **options):
        if tried.needs.device <= limit:
            return tried.parts
        if least is None or tried.needs.device < least.needs.device:
            least = tried
    assert least is not None
    raise ValueError(
        f"memory_limit is {limit:,} bytes of a device; the least that works is about "
        f"{least.needs.device:,}, with {least.parts.num_parts} part(s): allow that, or make the "
        "model narrower"
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Tried:
    """A number of parts, and what an epoch on so many needs.

    Attributes:
      parts: the partition.
      sharded: the graph, as shapes.
      needs: the bytes.
      is_compiled: whether the programs were compiled; if not, `needs` has no temporary memory.
    """

    parts: Partition
    sharded: StreamedGraph
    needs: Needs
    is_compiled: bool


def tried_parts(
    model: nnx.Module,
    graph: Graph,
    optimizer: optax.GradientTransformation,
    limit: int,
    mesh: Mesh,
    *,
    task: Task | None = None,
    compile: bool = True,
    **options: Any,
) -> Iterator[Tried]:
    """Doubles the number of parts until an epoch fits, or more parts do not help."""
    least = 0
    for power in range(MOST_PARTS.bit_length()):
        count = mesh.size << power
        if count > graph.num_nodes or (power and count > MOST_PARTS):
            return
        parts = partition(graph, count, **options)
        source = tabulate(graph, parts, "sar").without_data()
        sharded = streamed_graph(source, mesh, outlined=True)
        needs = streamed_needs(model, sharded, optimizer, task=task, compile=False)
        may_fit = compile and needs.device <= limit
        if may_fit:
            needs = streamed_needs(model, sharded, optimizer, task=task)
        yield Tried(parts, sharded, needs, may_fit)
        # The rows that wait ahead are those of two parts, too.
        helps = power < 2 or needs.device <= GAIN * least
        if needs.device <= limit or not helps:
            return
        least = needs.device


def streamed_needs(
    model: nnx.Module,
    sharded: StreamedGraph,
    optimizer: optax.GradientTransformation,
    *,
    task: Task | None = None,
    compile: bool = True,
) -> Needs:
    """Finds the bytes that an epoch on a streamed graph needs and moves, without running it.

    Args:
      model: the model.
      sharded: the graph.
      optimizer: of optax.
      task: the task to learn; None: node classification.
      compile: whether to compile the programs; if not, their temporary memory is left out.

    Returns:
      The bytes.

    Raises:
      ValueError: model, graph and task do not fit together, or the model cannot be streamed.
    """
    if not isinstance(sharded, StreamedGraph):
        raise ValueError(
            f"sharded is {kind_of(sharded)}; expected a graph in mode 'stream', such as "
            "jaxgraph.parallel.shard(graph, parts, mesh, mode='stream') returns"
        )
    task = checked_task(task)
    checked_graph(model, sharded, task, train=True)
    check_optimizer(optimizer, model)
    learner = make_learner(model, optimizer, task)
    held = abstract_held(model, optimizer, sharded)
    return StreamedEpoch(learner, (sharded,)).needs(held, compile=compile)
