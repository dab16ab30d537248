"""Exchange of rows between parts, one part of the ring at a time.

Step s pairs every part with the one that `RingOrder` says, p + s on one host. A message is cut into
segments, and each travels between the pairs that need it: a step is a short list of partial
permutations, fixed before compilation.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgraph.ops.core.chosen_rows import chosen_rows, is_wide
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.core.propagation import Schedule, propagate_by, pull_once
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.core.rows import entry_at, rows_from
from pallas_kernels.pytrees import pytree

Pytree = Any
Units = tuple[tuple[int, ...], ...]
Number = TypeVar("Number", int, jax.Array)
"""A part: every device computes its own."""


@pytree
class HaloTable:
    """The own rows at one end of the edges between this part and each other part.

    Attributes:
      rows: int32 [rows of all steps], own rows in the order in which they travel.
      ptr: int32 [steps + 1], where each step's rows start.
      position: int32 [steps, boundary rows], the index of each own row in a step, -1: absent.
    """

    rows: jax.Array
    ptr: jax.Array
    position: jax.Array


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of `Relation.propagate`, or of `Relation.pull_sum`."""

    relation: Any
    message: MessageFn
    reducer: Reducer
    inputs: Inputs
    self_loops: bool = False

    def run(self) -> Pytree:
        """Reduces the messages."""
        loops = self.self_loops
        return self.relation.propagate(self.message, self.reducer, self.inputs, self_loops=loops)


@pytree
class Exchange:
    """The rows that the parts of a pair of node tables send each other.

    This class sends none: all senders' rows are here. Its subclasses, one for each schedule, bring
    them here from other parts.

    Attributes:
      send: the rows that other parts aggregate.
      axis: name of the mesh axis, or of several that together count the parts.
      num_parts: number of parts.
      hosts: over how many hosts the parts are spread, in runs of equal length; schedules visit the
        parts of the own host first.
      prefetch: whether the next part's rows are fetched while the current ones are aggregated.
      halo_unit, halo_units: as of `jaxgraph.layout.manifest.Manifest`.
    """

    send: HaloTable | None = None
    axis: str | tuple[str, ...] = dataclasses.field(default=(), metadata={"static": True})
    num_parts: int = dataclasses.field(default=1, metadata={"static": True})
    hosts: int = dataclasses.field(default=1, metadata={"static": True})
    prefetch: bool = dataclasses.field(default=False, metadata={"static": True})
    halo_unit: int = dataclasses.field(default=1, metadata={"static": True})
    halo_units: Units = dataclasses.field(default=((0,),), metadata={"static": True})

    reads_own_rows: ClassVar[bool] = True
    """True where a device computes senders' values from own rows, and has no halo."""

    def schedule(self, relation: Any, self_loops: bool) -> Schedule:
        """The messages of a relation, in the order in which they are reduced."""
        return relation.block().with_loops(self_loops)

    def propagate(self, call: Call) -> Pytree:
        """See `jaxgraph.parallel.relation.Relation.propagate`."""
        schedule = self.schedule(call.relation, call.self_loops)
        return propagate_by(schedule, call.message, call.reducer, call.inputs)

    def pull_sum(self, call: Call, gradient: Pytree, wanted: Wanted) -> Inputs:
        """See `jaxgraph.parallel.relation.Relation.pull_sum`."""
        schedule = self.schedule(call.relation, False)
        return pull_once(schedule, call.message, call.reducer, call.inputs, gradient, wanted)

    def propagate_all(self, calls: Any) -> list[Pytree]:
        """Reduces the messages of several relations of this exchange."""
        return [self.propagate(call) for call in calls]

    def halo_route(self) -> Route:
        """The route of `send`: a part sends the rows that the part ahead aggregates."""
        return _route(self.halo_units, self.halo_unit, self.hosts, to_part=True)

    def reach_route(self, units: Units) -> Route:
        """The route on which a part sends its rows that have edges from the part behind."""
        return _route(units, self.halo_unit, self.hosts, to_part=False)


@dataclasses.dataclass(frozen=True)
class RingOrder:
    """The partner of every part at every step.

    Attributes:
      parts: number of parts.
      hosts: hosts that hold equally many of them, host h the h-th run.
    """

    parts: int
    hosts: int = 1

    def behind(self, part: Number, step: jax.Array | int) -> Number:
        """Returns the part whose rows `part` receives at a step, from 1."""
        return self._moved(part, step, -1)

    def ahead(self, part: Number, step: jax.Array | int) -> Number:
        """Returns the part that receives rows of `part` at a step, from 1."""
        return self._moved(part, step, 1)

    def arriving(self, part: Number, step: jax.Array | int) -> Number:
        """Returns the distance on the ring of the part behind: the group of its edges."""
        return (part - self.behind(part, step)) % self.parts

    def leaving(self, part: Number, step: jax.Array | int) -> Number:
        """Returns the distance on the ring of the part ahead."""
        return (self.ahead(part, step) - part) % self.parts

    def _moved(self, part: Number, step: Any, sign: int) -> Number:
        size = self.parts // self.hosts
        host = (part // size + sign * (step // size)) % self.hosts
        return host * size + (part % size + sign * (step % size)) % size


MOST_SEGMENTS = 4
"""Most permutations per step: more would send fewer rows in more and smaller messages."""
FEWER_SEGMENTS_RATIO = 1.05
"""Rows sent per row needed, at most, to save permutations: each adds a latency, and XLA hides one
at a time under the work on another part."""

WHOLE_ANSWER_RATIO = 1.2
"""Rows sent per row needed, at most, to send an answer uncut."""


@dataclasses.dataclass(frozen=True)
class Segment:
    """Rows [start, stop) of a message, and the pairs (source, target) that exchange them."""

    start: int
    stop: int
    pairs: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Route:
    """The pairs of devices that exchange rows at each step.

    Attributes:
      steps: for every step, the segments of its message.
      rows: rows of the largest message, at least 1.
    """

    steps: tuple[tuple[Segment, ...], ...]
    rows: int

    def answers(self) -> Route:
        """Returns the route on which the answer to each message travels back.

        An answer is computed in a table of all rows, when memory use is highest. A nearly full
        table travels whole: cut into segments it would be held three times.
        """
        return Route(tuple(self._answers_of(step) for step in self.steps), self.rows)

    def _answers_of(self, step: tuple[Segment, ...]) -> tuple[Segment, ...]:
        back = tuple(
            dataclasses.replace(segment, pairs=tuple((b, a) for a, b in segment.pairs))
            for segment in step
        )
        needed = sum((segment.stop - segment.start) * len(segment.pairs) for segment in step)
        if back and self.rows * len(back[0].pairs) <= WHOLE_ANSWER_RATIO * needed:
            return (Segment(0, self.rows, back[0].pairs),)
        return back


def _segments(counts: dict[tuple[int, int], int], unit: int) -> tuple[Segment, ...]:
    needed = sum(counts.values())
    levels = sorted({count for count in counts.values() if count})
    while len(levels) > 1:
        # Without a level its pairs send up to the next one: drop the cheapest level.
        extra = [
            (after - level) * sum(count == level for count in counts.values())
            for level, after in itertools.pairwise(levels)
        ]
        cheapest = int(np.argmin(extra))
        rows = sum(counts.values()) + extra[cheapest]
        if len(levels) <= MOST_SEGMENTS and rows > FEWER_SEGMENTS_RATIO * needed:
            break
        dropped, target = levels[cheapest], levels[cheapest + 1]
        counts = {pair: target if count == dropped else count for pair, count in counts.items()}
        del levels[cheapest]
    return tuple(
        Segment(
            low * unit, high * unit, tuple(sorted(pair for pair, c in counts.items() if c >= high))
        )
        for low, high in itertools.pairwise([0, *levels])
    )


def _route(units: Units, unit: int, hosts: int, *, to_part: bool) -> Route:
    order, steps = RingOrder(len(units), hosts), []
    for step in range(1, order.parts):
        counts = {}
        for part in range(order.parts):
            other = order.behind(part, step)
            pair = (other, part) if to_part else (part, other)
            counts[pair] = units[part][other]
        steps.append(_segments(counts, unit))
    # Received rows are indexed even where none arrive.
    rows = max(unit * max(max(row) for row in units), 1)
    return Route(tuple(steps), rows)


def rows_sent(units: Units, unit: int, hosts: int = 1) -> int:
    """Counts the rows that one exchange over the ring sends, over all pairs of parts."""
    route = _route(units, unit, hosts, to_part=True)
    return sum((s.stop - s.start) * len(s.pairs) for step in route.steps for s in step)


def send_rows(
    axis: str | tuple[str, ...],
    implementation: str,
    route: Route,
    table: HaloTable | None,
    tree: Pytree,
    step: jax.Array | int,
    after: jax.Array | None = None,
    *,
    hop: jax.Array | int | None = None,
) -> Pytree:
    """Sends rows to the partner of one step and returns the received rows."""
    leaves, structure = jax.tree.flatten(tree)
    bundles = _bundles(leaves)
    first = 0 if table is None else entry_at(table.ptr, step - 1)
    first = first if after is None else first + after

    def rows_of(segment: Segment, leaf: jax.Array) -> jax.Array:
        size = segment.stop - segment.start
        if table is None:
            return resized(leaf[segment.start :], size)
        rows = rows_from(table.rows, first + segment.start, size)
        return chosen_rows(leaf, rows, implementation)

    def branch(segments: tuple[Segment, ...], leaves: list[jax.Array]) -> list[jax.Array]:
        messages: list[jax.Array] = []
        for bundle in bundles:
            some = [leaves[i] for i in bundle]
            # XLA overlaps one message of a step with a kernel. Of a GAT's values and logits it
            # chose the logits in every second step (75% of the bytes for 8 H200s; 98% with the
            # barrier).
            if after is not None and messages:
                some, messages[-1] = lax.optimization_barrier((some, messages[-1]))
            messages.append(_permuted(segments, rows_of, some, route.rows, axis))
        return messages

    hop = step if hop is None else hop
    if isinstance(hop, int):
        messages = branch(route.steps[hop - 1], leaves)
    else:
        branches = [partial(branch, segments) for segments in route.steps]
        messages = lax.switch(hop - 1, branches, leaves)
    return jax.tree.unflatten(structure, _unpacked(bundles, messages, leaves))


def _permuted(
    segments: tuple[Segment, ...],
    rows_of: Callable[[Segment, jax.Array], jax.Array],
    leaves: list[jax.Array],
    rows: int,
    axis: str | tuple[str, ...],
) -> jax.Array:
    """Permutes rows of arrays, one message per segment, and returns the received rows."""
    if not segments:
        width = sum(math.prod(leaf.shape[1:]) for leaf in leaves)
        return match_variation(jnp.zeros((rows, width), leaves[0].dtype), leaves)
    pieces = []
    for segment in segments:
        # Segments are packed one by one: cutting a packed message would copy it.
        chosen = [rows_of(segment, leaf) for leaf in leaves]
        flat = [part.reshape(part.shape[0], -1) for part in chosen]
        packed = flat[0] if len(flat) == 1 else jnp.concatenate(flat, axis=1)
        pieces.append(lax.ppermute(packed, axis, segment.pairs))
    message = jnp.concatenate(pieces) if len(pieces) > 1 else pieces[0]
    return match_variation(resized(message, rows), leaves)


def _unpacked(
    bundles: list[list[int]], messages: list[jax.Array], likes: list[jax.Array]
) -> list[jax.Array]:
    """Splits messages into the arrays of their bundles, in the original order."""
    arrived: dict[int, jax.Array] = {}
    for bundle, message in zip(bundles, messages, strict=True):
        widths = [math.prod(likes[i].shape[1:]) for i in bundle]
        parts = jnp.split(message, np.cumsum(widths)[:-1], axis=1)
        for i, part in zip(bundle, parts, strict=True):
            arrived[i] = part.reshape(len(part), *likes[i].shape[1:])
    return [arrived[i] for i in range(len(likes))]


def _bundles(leaves: list[jax.Array]) -> list[list[int]]:
    """Groups arrays into messages: each wide one alone, the others by type.

    Packing and unpacking would copy wide arrays twice more, while a remote part takes memory. They
    come last: kernels run while the last message travels.
    """
    bundles: dict[tuple[Any, int | None], list[int]] = {}
    for index, leaf in enumerate(leaves):
        bundles.setdefault((leaf.dtype, index if is_wide(leaf) else None), []).append(index)
    return sorted(bundles.values(), key=lambda bundle: is_wide(leaves[bundle[0]]))


def resized(leaf: jax.Array, rows: int) -> jax.Array:
    """Returns the first rows of an array, padded with zeros."""
    if leaf.shape[0] >= rows:
        return leaf[:rows]
    return jnp.pad(leaf, ((0, rows - leaf.shape[0]), *((0, 0),) * (leaf.ndim - 1)))
