"""A rehearsal of a run: the same loop over the parts, on shapes instead of arrays.

It can compile every program that the run calls, and counts the bytes that it holds and moves.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import jax
import numpy as np

from jaxgraph.parallel.streaming.devices import Devices
from jaxgraph.parallel.streaming.graph import HostParts, Moved
from jaxgraph.parallel.streaming.programs import (
    Executables,
    Spread,
    Waiting,
    is_spread,
    map_arrays,
    spread_type,
    type_of,
)

Pytree = Any


@dataclasses.dataclass(frozen=True)
class Needs:
    """The bytes that a run needs and moves.

    Attributes:
      device: the most that is on each device at one time.
      host: the most that waits on the host, in memory or in files, beside the parts.
      sent: from the host to the devices of this process.
      returned: from these devices to the host.
    """

    device: int
    host: int
    sent: int
    returned: int

    def then(self, other: Needs) -> Needs:
        """Those of this run and then another."""
        return Needs(
            max(self.device, other.device),
            max(self.host, other.host),
            self.sent + other.sent,
            self.returned + other.returned,
        )


@dataclasses.dataclass
class _Count:
    now: int = 0
    most: int = 0

    def add(self, size: int) -> None:
        """Counts bytes that are held from now on."""
        self.now += size
        self.most = max(self.most, self.now)


class _OnDevice:
    """The type of an array on the devices, which is counted as long as anything refers to it.

    Args:
      like: the type.
      count: the bytes of each device.
      devices: over how many of them it is split.
    """

    def __init__(self, like: Any, count: _Count, devices: int = 1) -> None:
        self.shape, self.dtype = tuple(like.shape), like.dtype
        self._count, self._held = count, _size(self) // devices
        count.add(self._held)

    def donate(self) -> None:
        """Gives the memory to a result."""
        self._count.now -= self._held
        self._held = 0

    def __del__(self) -> None:
        self._count.now -= self._held


class _Types:
    """A store of types; see `jaxgraph.parallel.streaming.store.MemoryStore`."""

    def __init__(self) -> None:
        self.count = _Count()
        self._held: dict[tuple[Hashable, int], jax.ShapeDtypeStruct] = {}

    def put(self, key: Hashable, part: int, values: Any) -> None:
        self.drop(key, part)
        self._held[key, part] = type_of(values)
        self.count.add(_size(values))

    def get(self, key: Hashable, part: int) -> Any:
        return self._held[key, part]

    def add(self, key: Hashable, part: int, rows: Any, values: Any, like: Any) -> None:
        if (key, part) not in self._held:
            self.put(key, part, like)

    def has(self, key: Hashable, part: int) -> bool:
        return (key, part) in self._held

    def drop(self, key: Hashable, part: int) -> None:
        if (key, part) in self._held:
            self.count.now -= _size(self._held.pop((key, part)))


class _Packing:
    def rows(self, values: Any, rows: np.ndarray, room: int) -> Any:
        return jax.ShapeDtypeStruct((room, *values.shape[1:]), values.dtype)

    def read_by(self, token: Any, buffers: list[Any]) -> None: ...


class _Feed:
    """Loads as many results ahead as the thread of a run."""

    def __init__(self, loads: Iterable[Callable[[], Any]], ahead: int) -> None:
        self._loads, self._ahead = iter(loads), ahead
        self._waiting: deque[Any] = deque()

    def take(self) -> Any:
        self._load(1)
        found = self._waiting.popleft()
        # One more than may wait: it was loaded before there was room.
        self._load(self._ahead + 1)
        return found

    def _load(self, most: int) -> None:
        while len(self._waiting) < most:
            load = next(self._loads, None)
            if load is None:
                return
            self._waiting.append(load())

    def __enter__(self) -> _Feed:
        return self

    def __exit__(self, *error: Any) -> None:
        self._waiting.clear()


class Rehearsal(Devices):
    """Devices that compute types, in place of `Devices`.

    Args:
      host: the parts of the graph; their arrays are not read.
      executables: the programs so far; those that are not compiled have no temporary memory.
    """

    def __init__(self, host: HostParts, executables: Executables) -> None:
        self.host, self.executables = host, executables
        self.moved, self.packing, self.store = Moved(), _Packing(), _Types()
        self._count, self._numbers = _Count(), {}
        self._leaves = jax.tree.leaves(host.like)
        self._behind: deque[Any] = deque(maxlen=host.pipeline.in_flight)

    @property
    def needs(self) -> Needs:
        """The bytes of the run so far."""
        return Needs(self._count.most, self.store.count.most, self.moved.sent, self.moved.returned)

    def _shared(self, leaf: Any) -> _OnDevice:
        return leaf if isinstance(leaf, _OnDevice) else _OnDevice(leaf, self._count)

    def _counted(self, like: Spread) -> Spread:
        return Spread(_OnDevice(like.array, self._count, self.host.devices), like.is_number)

    def hold(self, tree: Pytree) -> Pytree:
        """See `Devices.hold`."""
        return jax.tree.map(self._shared, tree)

    def leaf(self, number: int, turn: int) -> Waiting:
        """See `Devices.leaf`."""
        return Waiting((self._leaves[number],) * len(self.host.local))

    def send(self, tree: Pytree) -> Pytree:
        """See `Devices.send`."""

        def one(leaf: Any) -> Any:
            if isinstance(leaf, Waiting):
                self.moved.sent += sum(map(_size, leaf.arrays))
                return self._counted(spread_type(leaf.arrays[0], self.host.devices))
            if isinstance(leaf, np.ndarray):
                self.moved.sent += leaf.nbytes
            return self._shared(leaf)

        return jax.tree.map(one, tree)

    def call(
        self, program: Callable[..., Any], *arguments: Any, donates: bool = False, **options: Any
    ) -> Any:
        """See `Devices.call`."""
        leaves, structure = jax.tree.flatten(arguments)
        found = self.executables.of(program, leaves, structure, donates, tuple(options.items()))
        for leaf, donated in zip(leaves, found.donated, strict=True):
            if donated and isinstance(leaf, _OnDevice):
                leaf.donate()
        results = map_arrays(
            lambda leaf: self._counted(leaf) if is_spread(leaf) else self._shared(leaf),
            found.outputs,
        )
        self._count.most = max(self._count.most, self._count.now + found.temporary)
        return results

    def bring(self, value: Spread, write: Callable[[int, Any], None]) -> None:
        """See `Devices.bring`."""
        rows, *columns = value.array.shape or (1,)
        shape = () if value.is_number else (rows // self.host.devices, *columns)
        like = jax.ShapeDtypeStruct(shape, value.dtype)
        self.moved.returned += _size(like) * len(self.host.local)
        self._behind.append(value)
        for number in self.host.local:
            write(number, like)

    def feed(self, loads: Iterable[Callable[[], Any]]) -> Any:
        """See `Devices.feed`."""
        return _Feed(loads, self.host.pipeline.ahead)

    def finish(self) -> None:
        """See `Devices.finish`."""
        self._behind.clear()

    def close(self) -> None:
        """See `Devices.close`."""
        self._behind.clear()


def total_bytes(tree: Pytree) -> int:
    """The bytes of arrays, or of types of arrays."""
    return sum(map(_size, jax.tree.leaves(tree)))


def _size(leaf: Any) -> int:
    return math.prod(leaf.shape) * leaf.dtype.itemsize
