"""The cost of a training step before it runs: by its trace, and as compiled for a target."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import optax
from flax import nnx

from jaxgraph.analysis.links import Sent
from jaxgraph.analysis.liveness import temporary_bytes
from jaxgraph.analysis.traced import argument_bytes, live_steps, sent_by_link
from jaxgraph.analysis.traffic import traffic_by_link
from jaxgraph.parallel import ShardedGraph
from jaxgraph.planner.policy_search import Needed
from jaxgraph.planner.targets import Target
from jaxgraph.planner.work import Work, work_of
from jaxgraph.train.step import trace_train_step
from jaxgraph.train.task import Task

TEMPORARY_RANGE = (0.45, 1.8)
"""Predicted temporary memory over compiled. Seen: 0.48, of residual models of 6 layers, to 1.78, of
attention under SAR on a power law. No bound: what is predicted refuses nothing."""


@dataclasses.dataclass(frozen=True)
class Memory(Needed):
    """Bytes of one device, and of its share of the host's memory.

    Attributes:
      is_compiled: whether a compiler said so, or the traced program.
    """

    is_compiled: bool

    def range(self) -> tuple[int, int]:
        """Bytes of the device, from and to, as the compiled program may need them."""
        if self.is_compiled:
            return self.total, self.total
        low, high = TEMPORARY_RANGE
        return self.arguments + int(self.temporary / high), self.arguments + int(
            self.temporary / low
        )


@dataclasses.dataclass(frozen=True)
class DryRun:
    """The cost of one training step on a target.

    Attributes:
      memory: of a device.
      sent: bytes that leave each device, inside a host and between hosts.
      work: that of a device.
      communication: seconds of messages.
      hidden: seconds of them under which kernels run.
      compiled_for: the platform of the compiled program; None: it was traced alone.
    """

    memory: Memory
    sent: Sent
    work: Work
    communication: float
    hidden: float
    compiled_for: str | None

    @property
    def seconds(self) -> float:
        """Of a training step, by the roofline."""
        return self.work.seconds + self.communication - self.hidden


def dry_run(
    model: nnx.Module,
    sharded: ShardedGraph,
    optimizer: optax.GradientTransformation,
    target: Target,
    *,
    task: Task | None = None,
    compile: bool = True,
    most: int | None = None,
) -> DryRun:
    """Finds the cost of a training step without running it."""
    traced, arguments = trace_train_step(model, sharded, optimizer, task=task)
    found = _predicted(traced, arguments, sharded, target)
    if not compile or (most is not None and found.memory.arguments > most):
        return found
    compiled = traced.lower().compile()
    return dataclasses.replace(
        found,
        memory=_memory_of(compiled, argument_bytes(traced, arguments, on_host=True)),
        sent=traffic_by_link(compiled, target.per_host),
        compiled_for=target.compiled_for,
    )


def _predicted(
    traced: jax.stages.Traced, arguments: Any, sharded: ShardedGraph, target: Target
) -> DryRun:
    jaxpr = traced.jaxpr.jaxpr
    steps = list(live_steps(jaxpr))
    sent = sent_by_link(steps, target.per_host)
    manifest, shard = sharded.manifest, sharded.shards
    implementation = next(iter(shard.tables.values())).implementation
    work = work_of(steps, manifest, target, implementation)
    communication = _communication(sent, work.messages, target)
    hidden = _hidden(sharded, sent, work, communication)
    on_host = argument_bytes(traced, arguments, on_host=True)
    memory = Memory(argument_bytes(traced, arguments), temporary_bytes(jaxpr), on_host, False)
    return DryRun(memory, sent, work, communication, hidden, None)


def _communication(sent: Sent, messages: float, target: Target) -> float:
    speed, turns = target.speed, target.devices if target.chip == "cpu" else 1
    inside = sum(sent.inside.values()) / speed.inside.bandwidth
    between = sum(sent.between.values()) / speed.between.bandwidth
    # A message is under way inside and between hosts at once.
    latency = (speed.between if target.hosts > 1 else speed.inside).latency
    return turns * max(inside, between) + messages * latency


def _hidden(sharded: ShardedGraph, sent: Sent, work: Work, communication: float) -> float:
    """The time of messages under which kernels run: all but one step's with prefetch."""
    shard = sharded.shards
    prefetch = any(exchange.prefetch for exchange in shard.exchanges.values())
    if not prefetch or not sent.total or shard.manifest.num_parts < 3:
        return 0.0
    permutes = sum(each.get("collective-permute", 0) for each in (sent.inside, sent.between))
    steps = shard.manifest.num_parts - 1
    travelling = communication * permutes / sent.total
    return min(travelling, work.edge_seconds) * (steps - 1) / steps


def _memory_of(compiled: jax.stages.Compiled, on_host: int) -> Memory:
    """The memory of a program of whose arguments so many bytes are in the host's memory.

    Without a device XLA counts those among the device's arguments. The program's first line, a
    `device_put` to `jax.memory.Space.Host`, counts them as temporary memory of the host once more.
    """
    found = compiled.memory_analysis()
    if found is None:
        raise ValueError("the compiler of this platform does not tell the memory of a program")
    misplaced = on_host - found.host_argument_size_in_bytes
    # Beside the state that is taken over, a step returns a loss.
    returned = found.output_size_in_bytes - found.alias_size_in_bytes
    return Memory(
        found.argument_size_in_bytes - misplaced + returned,
        found.temp_size_in_bytes,
        found.host_temp_size_in_bytes + found.host_argument_size_in_bytes,
        True,
    )
