"""Stand-ins for the devices of a streamed function: one times its steps, one counts its bytes."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import jax
import numpy as np

from benchmarks.stream_schedule.two_stages import Job
from jaxgraph.parallel.streaming import function
from jaxgraph.parallel.streaming.aggregation import AggregationOverParts
from jaxgraph.parallel.streaming.devices import Devices
from jaxgraph.parallel.streaming.programs import Spread, Waiting
from jaxgraph.parallel.streaming.rehearsal import Rehearsal, total_bytes

ARRAYS, OWN_ROWS, OTHER_ROWS = "arrays", "own rows", "other rows"


@dataclasses.dataclass
class Times:
    """Things that were timed, one after another.

    Attributes:
      passes: the jobs of each pass over the parts.
      rest: seconds of programs outside of passes.
      returned: seconds of results on their way back to the host.
    """

    passes: list[list[Job]] = dataclasses.field(default_factory=list)
    rest: float = 0.0
    returned: float = 0.0


class _OneByOne(Devices):
    """Loads when a result is taken, waits for every program and every write, and times them."""

    def __init__(self, host: Any, executables: Any, times: Times) -> None:
        super().__init__(host, executables)
        self.times, self.is_visit, self._jobs = times, False, None

    @contextlib.contextmanager
    def visit(self, aggregation: Any, share: float, values: Callable[[], Any]) -> Iterator[None]:
        """Marks the load as one of rows of another part."""
        self.is_visit = True
        yield

    def send(self, tree: Any) -> Any:
        """See `Devices.send`."""
        return jax.block_until_ready(super().send(tree))

    def call(self, program: Any, *arguments: Any, donates: bool = False, **options: Any) -> Any:
        """See `Devices.call`."""
        started = time.perf_counter()
        found = jax.block_until_ready(super().call(program, *arguments, donates=donates, **options))
        seconds = time.perf_counter() - started
        if self._jobs:
            job = self._jobs[-1]
            self._jobs[-1] = dataclasses.replace(job, programs=job.programs + seconds)
        else:
            self.times.rest += seconds
        return found

    def bring(self, value: Spread, write: Callable[[int, Any], None]) -> None:
        """See `Devices.bring`."""
        started = time.perf_counter()
        super().bring(value, write)
        self._writer.finish()
        self.times.returned += time.perf_counter() - started

    @contextlib.contextmanager
    def feed(self, loads: Iterable[Callable[[], Any]]) -> Iterator[Any]:
        """See `Devices.feed`."""
        self._loads, self._jobs = iter(loads), []
        self.times.passes.append(self._jobs)
        yield self
        self._jobs = None

    def take(self) -> Any:
        """The next result, loaded now."""
        assert self._jobs is not None
        self.is_visit, before = False, self.moved.sent
        load = next(self._loads)
        started = time.perf_counter()
        found = load()
        seconds = time.perf_counter() - started
        self._jobs.append(Job(seconds, 0.0, self.moved.sent - before, self.is_visit))
        return found


@dataclasses.dataclass
class Sent:
    """The bytes that a rehearsed run sends.

    Attributes:
      bytes: by kind: `ARRAYS` of parts, such as their edges; rows of the own part; rows of others.
      loads: how often each array of parts was sent, by its number and turn.
      edges: the numbers of the arrays that hold edges.
      chunks: of each aggregation, the bytes of all rows of a turn that it reads first.
      read: the bytes of rows of others that are read; others fill tables of few sizes.
    """

    bytes: Counter[str] = dataclasses.field(default_factory=Counter)
    loads: Counter[tuple[int, int]] = dataclasses.field(default_factory=Counter)
    edges: frozenset[int] = frozenset()
    chunks: dict[Any, int] = dataclasses.field(default_factory=dict)
    read: float = 0.0


class _OfPart(Waiting):
    """An array of each part of a turn that is none of features."""


class _Counted(Rehearsal):
    """A rehearsal that counts the bytes of each kind that it sends."""

    def __init__(self, host: Any, executables: Any, sent: Sent) -> None:
        super().__init__(host, executables)
        self.sent, self._is_visit = sent, False
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(host.like)]
        names = [jax.tree_util.keystr(path) for path in paths]
        self._features = next(at for at, name in enumerate(names) if name.endswith("].nodes"))
        groups = (".incoming", ".outgoing")
        found = (at for at, name in enumerate(names) if any(each in name for each in groups))
        sent.edges = frozenset(found)

    @contextlib.contextmanager
    def visit(self, aggregation: Any, share: float, values: Callable[[], Any]) -> Iterator[None]:
        """Counts what the load sends as rows of other parts."""
        arrays = [array for leaf in jax.tree.leaves(values()) for array in leaf.arrays]
        self.sent.chunks.setdefault(aggregation, total_bytes(arrays))
        self.sent.read += share * total_bytes(arrays)
        self._is_visit = True
        yield
        self._is_visit = False

    def leaf(self, number: int, turn: int) -> Waiting:
        """See `Devices.leaf`."""
        found = super().leaf(number, turn)
        self.sent.loads[number, turn] += 1
        return found if number == self._features else _OfPart(found.arrays)

    def send(self, tree: Any) -> Any:
        """See `Devices.send`."""
        for leaf in jax.tree.leaves(tree):
            if isinstance(leaf, Waiting):
                self.sent.bytes[self._kind(leaf)] += total_bytes(list(leaf.arrays))
            elif isinstance(leaf, np.ndarray):
                self.sent.bytes[ARRAYS] += leaf.nbytes
        return super().send(tree)

    def _kind(self, leaf: Waiting) -> str:
        is_floating = np.issubdtype(leaf.arrays[0].dtype, np.floating)
        if isinstance(leaf, _OfPart) or not is_floating:
            return ARRAYS
        return OTHER_ROWS if self._is_visit else OWN_ROWS


_visit = AggregationOverParts._visit


def _watched_visit(
    self: Any, run: Any, exchange: Any, turn: int, other: int, values: Callable[[], Any]
) -> Any:
    """In place of `AggregationOverParts._visit`: tells the devices of rows of other turns."""
    if other == turn or not isinstance(run.devices, _OneByOne | _Counted):
        return _visit(self, run, exchange, turn, other, values)
    rows = sum(map(len, exchange.tables(other, turn)))
    share = rows / (exchange.devices * exchange.node_rows)
    with run.devices.visit(self, share, values):
        return _visit(self, run, exchange, turn, other, values)


@contextlib.contextmanager
def one_by_one() -> Iterator[Times]:
    """Runs streamed functions without any overlap; returns their times."""
    times = Times()
    made = lambda host, executables: _OneByOne(host, executables, times)  # noqa: E731
    with (
        mock.patch.object(function, "Devices", made),
        mock.patch.object(AggregationOverParts, "_visit", _watched_visit),
    ):
        yield times


@contextlib.contextmanager
def counted() -> Iterator[list[Sent]]:
    """Counts what rehearsals send, each on its own."""
    found: list[Sent] = []

    def made(host: Any, executables: Any) -> _Counted:
        found.append(Sent())
        return _Counted(host, executables, found[-1])

    with (
        mock.patch.object(function, "Rehearsal", made),
        mock.patch.object(AggregationOverParts, "_visit", _watched_visit),
    ):
        yield found
