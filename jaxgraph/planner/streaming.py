"""The number of parts with which a graph is streamed through the memory of a device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxgraph.byte_amounts import bytes_of
from jaxgraph.graph import Graph
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel import make_mesh
from jaxgraph.parallel.streaming.graph import StreamedGraph, outlined_graph
from jaxgraph.parallel.streaming.rehearsal import Needs
from jaxgraph.partition import Partition, partition
from jaxgraph.train.arguments import check_model, check_optimizer, checked_graphs, checked_task
from jaxgraph.train.epoch import Kept
from jaxgraph.train.state import abstract_state, replicated_shape
from jaxgraph.train.step import make_learner
from jaxgraph.train.streamed_epoch import StreamedEpoch
from jaxgraph.train.task import Task

__all__ = ["fewest_parts", "streamed_needs"]

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
    task: Task | None = None,
    **options: Any,
) -> Partition:
    """Cuts a graph into the fewest parts with which a streamed epoch fits the memory of a device.

    The number of parts is doubled until it does: 1, 2, 4, ... The bytes are those of a rehearsal,
    see `streamed_needs`.

    Args:
      model: the model.
      graph: the graph.
      optimizer: of optax.
      memory_limit: bytes of the device, or text such as "2GB".
      task: the task to learn; None: node classification.
      options: of `jaxgraph.partition.partition`, such as its method.

    Returns:
      The partition, for `jaxgraph.parallel.shard(..., mode="stream")`.

    Raises:
      ValueError: an argument is not of its kind, model, graph and task do not fit together, or no
        number of parts fits; the message names the least limit that works.
    """
    limit, least = bytes_of("memory_limit", memory_limit), None
    for power in range(MOST_PARTS.bit_length()):
        parts = 1 << power
        if parts > graph.num_nodes:
            break
        found = partition(graph, parts, **options)
        outlined = outlined_graph(tabulate(graph, found, "sar"), make_mesh(1))
        needs = streamed_needs(model, outlined, optimizer, task=task, compile=False)
        if needs.device <= limit:
            needs = streamed_needs(model, outlined, optimizer, task=task)
            if needs.device <= limit:
                return found
        gains = least is None or needs.device <= GAIN * least[1]
        if least is None or needs.device < least[1]:
            least = parts, needs.device
        if not gains and parts > 2:
            break
    assert least is not None
    raise ValueError(
        f"memory_limit is {limit:,} bytes of the device; the least that works is about "
        f"{least[1]:,}, with {least[0]} parts: allow that, or make the model narrower"
    )


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
      compile: whether to compile the programs; else what they take beside arguments and results is
        not counted.

    Returns:
      The bytes.

    Raises:
      ValueError: model, graph and task do not fit together, or the model cannot be streamed.
    """
    task = checked_task(task)
    graphs = checked_graphs(sharded, task, train=True)
    check_model(model, graphs)
    check_optimizer(optimizer, model)
    state = abstract_state(model, optimizer, sharded)
    val_loss = replicated_shape(jnp.result_type(float), sharded)
    kept = Kept(state.params, state.statistics, val_loss)
    key = replicated_shape(jax.eval_shape(lambda: jax.random.key(0)).dtype, sharded)
    epoch = StreamedEpoch(make_learner(model, optimizer, task), (sharded,), True)
    return epoch.needs(state, kept, key, compile=compile)
