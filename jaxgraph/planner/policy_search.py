"""The search for the cheapest policy under which a step of training fits a device's memory.

The rungs of a ladder are policies at falling memory and rising cost: plans of the mixed-integer
program at falling capacities, then those that keep nothing. The compiler decides which of them fit:
the first is found by bisection. So the least limit that a failed search names works.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial

import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from jaxgraph import layers
from jaxgraph.layers import RematPolicy
from jaxgraph.layout.manifest import Manifest
from jaxgraph.nn import GAT, GCN, DeepGCN, GraphSAGE
from jaxgraph.nn.stack import Stack
from jaxgraph.parallel import KEPT, ShardedGraph
from jaxgraph.planner.memory.cache_policies import least_recently_used
from jaxgraph.planner.memory.choices import Choices, policy_of
from jaxgraph.planner.memory.dataflow import Dataflow, Rates
from jaxgraph.planner.memory.integer_program import least_memory, plan_memory
from jaxgraph.planner.memory.schedule import MemorySchedule, simulate
from jaxgraph.planner.memory.step_dataflow import (
    EDGES,
    FEATURES,
    LABELS,
    PARAMETERS,
    Shape,
    training_step,
)
from jaxgraph.planner.targets import Speed, speed_of

__all__ = ["MemoryPlan", "Needed", "cheapest_fitting", "offloads", "shape_of"]

RUNGS = 6
"""Capacities that are planned for; with the default, at most four programs are compiled."""
_INPUTS = (FEATURES, EDGES, LABELS, PARAMETERS)
_LARGE = (*KEPT, layers.MAPPED, layers.LAYER_INPUT, layers.ACTIVATED)
"""Tensors of a row for every node."""
_KINDS = {GCN: "gcn", DeepGCN: "gcn", GraphSAGE: "sage", GAT: "gat"}


@dataclasses.dataclass(frozen=True)
class Needed:
    """Bytes that a compiled program needs.

    Attributes:
      arguments: of a device: the program's inputs and results.
      temporary: of a device, beside them.
      host: of a device's share of the host's memory.
    """

    arguments: int
    temporary: int
    host: int

    @property
    def total(self) -> int:
        """Bytes of the device."""
        return self.arguments + self.temporary


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """The policy under which training fits a limit.

    Attributes:
      limit: bytes of a device.
      needed: by the compiled program.
      policy: one for each layer; None: the model's own.
      host: bytes of a device that were planned to wait in the host's memory.
      seconds: of transfers and repetitions that were planned in a step.
    """

    limit: int
    needed: Needed
    policy: tuple[RematPolicy, ...] | None = None
    host: int = 0
    seconds: float = 0.0

    def lines(self) -> list[str]:
        """The plan in words."""
        found = [
            f"{self.needed.total:,} of {self.limit:,} bytes of a device, "
            f"{self.needed.host:,} of the host"
        ]
        if self.policy is None:
            return [*found, "policy as without a limit"]
        return [*found, *(f"layer {i} {each.in_words()}" for i, each in enumerate(self.policy))]


@dataclasses.dataclass(frozen=True)
class _Rung:
    policy: tuple[RematPolicy, ...]
    host: int = 0
    seconds: float = 0.0


def offloads(mesh: Mesh) -> bool:
    """True where arrays in the host's memory take none of a device: not on CPU."""
    return mesh.devices.flat[0].platform != "cpu"


def cheapest_fitting(
    model: nnx.Module,
    sharded: ShardedGraph,
    limit: int,
    needs: Callable[[nnx.Module], Needed],
) -> tuple[nnx.Module, MemoryPlan]:
    """Finds the cheapest policy of a model under which a program fits.

    Args:
      model: its own policy is tried first.
      sharded: the graph, with or without data.
      limit: bytes of one device.
      needs: compiles the program of a model.

    Returns:
      The model with that policy, and the plan.

    Raises:
      ValueError: none fits; the message names the least limit that works.
    """
    needed = [needs(model)]
    if needed[0].total <= limit:
        return model, MemoryPlan(limit, needed[0])
    found, ladder = None, _ladder(model, sharded)
    low, high = 0, len(ladder) - 1
    while low <= high and isinstance(model, Stack):
        middle = (low + high) // 2
        rung = ladder[middle]()
        other = model.with_policy(rung.policy)
        needed.append(needs(other))
        if needed[-1].total <= limit:
            plan = MemoryPlan(limit, needed[-1], rung.policy, rung.host, rung.seconds)
            found, high = (other, plan), middle - 1
        else:
            low = middle + 1
    if found is None:
        raise ValueError(_none_fits(model, limit, needed, sharded.mesh))
    return found


def _none_fits(model: nnx.Module, limit: int, needed: Sequence[Needed], mesh: Mesh) -> str:
    least = min(needed, key=lambda each: each.total)
    found = (
        f"memory_limit is {limit:,} bytes of a device; the least that works is {least.total:,}, "
        f"{least.arguments:,} of them for graph, parameters and optimizer state"
    )
    if not isinstance(model, Stack):
        found += f". A {type(model).__name__} has no policies; a jaxgraph.nn.Stack has"
    elif not offloads(mesh):
        found += ". On CPU nothing is offloaded: the device's memory is the host's"
    return f"{found}. Allow that, or take more devices"


def _ladder(model: nnx.Module, sharded: ShardedGraph) -> list[Callable[[], _Rung]]:
    """Makers of policies, the cheapest first."""
    if not isinstance(model, Stack):
        return []
    offload = offloads(sharded.mesh)
    shape = shape_of(model, sharded.manifest, sharded.mesh.size)
    if shape is not None:
        return _planned_ladder(model, shape, _rates(speed_of(sharded.mesh)), offload=offload)
    kept = RematPolicy((layers.STATISTICS, *KEPT), rest="recompute")
    waiting = RematPolicy((layers.STATISTICS,), offload=(layers.LAYER_INPUT,), rest="recompute")
    policies = [kept, *([waiting] if offload else []), _least(offload=offload)]
    return [partial(_Rung, (policy,) * len(model.layers)) for policy in policies]


def _planned_ladder(
    model: Stack, shape: Shape, rates: Rates, *, offload: bool
) -> list[Callable[[], _Rung]]:
    flow = training_step(shape, rates)
    everything = flow.size(flow.bytes)
    unlimited = least_recently_used(flow, everything)
    most, read = simulate(unlimited, everything).peak, policy_of(unlimited)
    least = least_memory(flow, rates, kept=_INPUTS, offload=offload)

    def planned(share: float) -> _Rung:
        limit = math.ceil(least + share * (most - least))
        schedule = plan_memory(flow, limit, rates, kept=_INPUTS, offload=offload)
        return _of_schedule(schedule, rates, len(model.layers), shape.kind == "gat")

    host = sum(_bytes_on_host(flow, layer, each.kept) for layer, each in read.items())
    host = host if offload else 0
    policies = (_least(offload=offload),) * len(model.layers)
    return [
        *(partial(planned, 1 - rung / (RUNGS - 1)) for rung in range(RUNGS)),
        partial(_Rung, policies, host, 2 * host / rates.host),
    ]


def _least(*, offload: bool) -> RematPolicy:
    """Keeps nothing on the device."""
    if offload:
        return RematPolicy((layers.STATISTICS,), offload=_LARGE, rest="recompute")
    attended = (layers.INPUT, layers.MAPPED)
    return RematPolicy((layers.STATISTICS,), recompute=attended, rest="recompute")


def _of_schedule(schedule: MemorySchedule, rates: Rates, count: int, is_attention: bool) -> _Rung:
    """The policies that carry out a schedule of the named tensors."""
    usage = simulate(schedule, schedule.dataflow.size(schedule.dataflow.bytes))
    by_layer, policies, host = policy_of(schedule), [], 0
    for layer in range(count):
        found = by_layer.get(layer, Choices())
        offloaded = tuple(name for name in found.offloaded if name in _LARGE)
        again: tuple[str, ...] = ()
        if is_attention:
            again = (layers.INPUT,) if layer == 0 or layers.ACTIVATED in found.recomputed else ()
            again += (layers.MAPPED,) if layers.MAPPED in found.recomputed else ()
        kept = tuple(name for name in _LARGE if name in found.kept)
        policies.append(RematPolicy((layers.STATISTICS, *kept), offloaded, again, rest="recompute"))
        host += _bytes_on_host(schedule.dataflow, layer, offloaded)
    seconds = usage.repeated_seconds + usage.repeated_sent_bytes / rates.link
    return _Rung(tuple(policies), host, seconds + 2 * host / rates.host)


def _bytes_on_host(flow: Dataflow, layer: int | None, names: Sequence[str]) -> int:
    """Of those of a layer's tensors that a policy can name."""
    named = set(names) & set(_LARGE)
    return sum(each.bytes for each in flow.tensors if each.layer == layer and each.name in named)


def _rates(speed: Speed) -> Rates:
    return Rates(speed.flops, speed.bandwidth, speed.host.bandwidth, speed.inside.bandwidth)


def shape_of(model: Stack, manifest: Manifest, devices: int) -> Shape | None:
    """The counts of a model's step on a graph, or None where its dataflow is not known."""
    counts, kind = manifest.counts, _KINDS.get(type(model))
    if kind is None or counts is None or manifest.columns is not None:
        return None
    assert isinstance(model, GCN | GraphSAGE | GAT)
    if model.jumping is not None:
        return None
    heads = model.num_heads if isinstance(model, GAT) else 1
    hidden = [heads * model.hidden_features] * (model.num_layers - 1)
    return Shape(
        kind,
        manifest.node_rows * manifest.num_parts // devices,
        counts.num_edges // devices,
        (model.in_features, *hidden, model.out_features),
        heads=heads,
        halo_rows=counts.halo_rows_needed // devices,
        mode=manifest.mode,
        has_norm=model.norm is not None,
        has_residual=model.residual or model.outer_residual,
        number_bytes=4 if model.dtype is None else jnp.dtype(model.dtype).itemsize,
    )
