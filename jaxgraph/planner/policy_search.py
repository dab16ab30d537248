"""The search for the cheapest policy under which a step of training fits a device's memory.

The rungs of a ladder are policies at falling memory and rising cost. The compiler decides which of
them fit: the first is found by bisection. So the least limit that a failed search names works.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from flax import nnx
from jax.sharding import Mesh

from jaxgraph.layers import ACTIVATED, INPUT, LAYER_INPUT, MAPPED, STATISTICS, RematPolicy
from jaxgraph.nn.stack import Stack
from jaxgraph.parallel import KEPT, ShardedGraph


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
    """

    limit: int
    needed: Needed
    policy: tuple[RematPolicy, ...] | None = None

    def lines(self) -> list[str]:
        """The plan in words."""
        found = [
            f"{self.needed.total:,} of {self.limit:,} bytes of a device, "
            f"{self.needed.host:,} of the host"
        ]
        if self.policy is None:
            return [*found, "policy as without a limit"]
        return [*found, *(f"layer {i} {each.in_words()}" for i, each in enumerate(self.policy))]


def cheapest_fitting(
    model: nnx.Module,
    sharded: ShardedGraph,
    limit: int,
    needs: Callable[[nnx.Module], Needed],
) -> tuple[nnx.Module, MemoryPlan]:
    """Finds the cheapest policy of a model under which a program fits."""
    needed = [needs(model)]
    if needed[0].total <= limit:
        return model, MemoryPlan(limit, needed[0])
    found, ladder = None, _ladder(offload=_offloads(sharded.mesh))
    low, high = 0, len(ladder) - 1
    while low <= high and isinstance(model, Stack):
        middle = (low + high) // 2
        policy = (ladder[middle],) * len(model.layers)
        other = model.with_policy(policy)
        needed.append(needs(other))
        if needed[-1].total <= limit:
            found, high = (other, MemoryPlan(limit, needed[-1], policy)), middle - 1
        else:
            low = middle + 1
    if found is None:
        raise ValueError(_none_fits(model, limit, needed, sharded.mesh))
    return found


def _ladder(*, offload: bool) -> list[RematPolicy]:
    """Policies of a layer at falling memory and rising cost."""

    def policy(*save: str, offload: Sequence[str] = (), again: Sequence[str] = ()) -> RematPolicy:
        return RematPolicy((STATISTICS, *save), tuple(offload), tuple(again), rest="recompute")

    # Elementwise steps are computed again first, then products, then sums over edges; attention
    # computes what it reads row by row.
    found = [policy(*KEPT, MAPPED), policy(*KEPT), policy(), policy(again=(INPUT, MAPPED))]
    if offload:
        everything = (*KEPT, MAPPED, LAYER_INPUT, ACTIVATED)
        found += [policy(*KEPT, offload=(LAYER_INPUT,)), policy(offload=everything)]
    return found


def _offloads(mesh: Mesh) -> bool:
    """True where arrays in the host's memory take none of a device: not on CPU."""
    return mesh.devices.flat[0].platform != "cpu"


def _none_fits(model: nnx.Module, limit: int, needed: Sequence[Needed], mesh: Mesh) -> str:
    least = min(needed, key=lambda each: each.total)
    found = (
        f"memory_limit is {limit:,} bytes of a device; the least that works is {least.total:,}, "
        f"{least.arguments:,} of them for graph, parameters and optimizer state"
    )
    if not isinstance(model, Stack):
        found += f". A {type(model).__name__} has no policies; a jaxgraph.nn.Stack has"
    elif not _offloads(mesh):
        found += ". On CPU nothing is offloaded: the device's memory is the host's"
    return f"{found}. Allow that, or take more devices"
