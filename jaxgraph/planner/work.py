"""The work of a device in one run of a traced training step, and the time that it takes.

A step of the program takes the longer of two times, that of its operations and that of its bytes (a
roofline). Elementwise steps are fused into others and count nothing. A kernel over edges reads a
row of its widest operand, and an index, for every edge that it visits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxgraph.analysis.traced import Step, is_opaque, size_of
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.placed import placed_shapes
from jaxgraph.layout.typed_manifest import TypedManifest
from jaxgraph.planner.targets import Target

_MOVED = frozenset(
    (
        *("all_gather", "all_to_all", "argmax", "argsort", "concatenate", "cumsum"),
        *("dynamic_update_slice", "ppermute", "reduce_max", "reduce_min", "reduce_scatter"),
        *("reduce_sum", "scatter", "scatter-add", "scatter_add", "sort"),
    )
)
_SENDS = ("all_gather", "all_to_all", "ppermute", "psum_invariant", "reduce_scatter")


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of a device in one step of training.

    Attributes:
      flops: operations of dense products.
      bytes: read and written in its memory.
      edge_seconds: time of the kernels over edges, under which messages may travel.
      seconds: time of all of it.
      messages: collectives that are started.
    """

    flops: float
    bytes: float
    edge_seconds: float
    seconds: float
    messages: float


def work_of(steps: Sequence[Step], manifest: Manifest, target: Target, implementation: str) -> Work:
    """Sums the work of a traced program."""
    # Emulated devices take turns on the cores of one machine, which visits the edges of all parts;
    # devices of their own wait for the part with the most.
    turns = target.devices if target.chip == "cpu" else 1
    visits, speed = _visits(manifest, implementation, of_mean=turns > 1), target.speed
    flops = moved = edge_seconds = seconds = messages = 0.0
    for step in steps:
        times = float(step.times)
        messages += times * (step.name in _SENDS)
        visit = _visit(step.equation, visits)
        own_flops = 0.0 if visit else _flops(step)
        own_bytes = _edge_bytes(step, visit) if visit else _bytes(step, own_flops)
        time = max(own_flops / speed.flops, own_bytes / speed.bandwidth)
        flops += times * own_flops
        moved += times * own_bytes
        seconds += times * time
        edge_seconds += times * time if visit else 0.0
    return Work(flops, moved, turns * edge_seconds, turns * seconds, messages)


@dataclasses.dataclass(frozen=True)
class _Visit:
    """The share of one kernel in a table of edges: its rows and its slots."""

    rows: float
    slots: float


def _visits(manifest: Manifest, implementation: str, *, of_mean: bool) -> Mapping[int, _Visit]:
    """By the slots of the table that a kernel is given.

    Tables have the slots of the largest part; with `of_mean`, the mean part's edges count.
    """
    if isinstance(manifest, TypedManifest):
        found = {}
        for member in manifest.members.values():
            found |= _visits(member, implementation, of_mean=of_mean)
        return found
    shapes = placed_shapes(manifest, implementation)
    groups = manifest.num_parts if manifest.mode == "sar" else 1
    shares = {"columns": 1.0, "outgoing": 1 / max(groups - 1, 1), "incoming": 1 / groups}
    found = {}
    for edges, share in shares.items():
        name = f"{edges}/by_receiver/neighbors"
        if name in shapes:
            slots = shapes[name][0][-1]
            filled = 1.0
            if of_mean and edges != "columns" and manifest.counts is not None:
                filled = min(1.0, manifest.counts.num_edges / manifest.num_parts / slots)
            found[slots] = _Visit(share, share * filled)
    return found


def _visit(equation: Any, visits: Mapping[int, _Visit]) -> _Visit | None:
    if not is_opaque(equation):
        return None
    for variable in equation.invars:
        aval = variable.aval
        shape = getattr(aval, "shape", ())
        if len(shape) == 1 and shape[0] in visits and aval.dtype.kind == "i":
            return visits[shape[0]]
    return None


def _row_bytes(variable: Any) -> int:
    aval = variable.aval
    shape = getattr(aval, "shape", ())
    if len(shape) < 2 or getattr(aval.dtype, "kind", "f") not in "fV":
        return 0
    return math.prod(shape[1:]) * aval.dtype.itemsize


def _edge_bytes(step: Step, visit: _Visit) -> float:
    equation = step.equation
    edges = max(math.prod(getattr(v.aval, "shape", ())[:1]) for v in equation.invars)
    row = max((_row_bytes(variable) for variable in equation.invars), default=0)
    return edges * visit.slots * (row + 4) + visit.rows * sum(map(size_of, equation.outvars))


def _flops(step: Step) -> float:
    equation = step.equation
    if step.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        inner = math.prod(left[axis] for axis in contracted)
        return 2.0 * inner * math.prod(equation.outvars[0].aval.shape)
    if step.name == "ffi_call" and len(equation.invars) >= 2:
        left, right = (tuple(v.aval.shape) for v in equation.invars[:2])
        out = equation.outvars[0].aval.shape
        if len(left) == len(right) == 2 and left[0] == right[0] and out == (left[1], right[1]):
            return 2.0 * left[0] * math.prod(out)
    return 0.0


def _bytes(step: Step, flops: float) -> float:
    equation = step.equation
    if step.name in ("gather", "dynamic_slice", "ffi_call") and not flops:
        return 2.0 * sum(map(size_of, equation.outvars))
    if flops or step.name in _MOVED:
        return float(sum(map(size_of, (*equation.invars, *equation.outvars))))
    return 0.0
