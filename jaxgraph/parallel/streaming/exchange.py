"""The rows that parts need of each other: which leave the host, and where each part finds its own.

The parts of a turn are on the devices at one time. The rows that any of them needs of a part of
another turn leave the host once, as a *table*: it goes to one device, and is handed on along the
ring of devices, each of which takes its own rows from it (NeuGraph, section 3.3).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

_SMALLEST_ROOM = 16
"""Rows of the smallest table that is sent."""


class Listed(NamedTuple):
    """Rows that a part exchanges, on the host.

    Attributes:
      rows: int32, of all steps.
      ptr: int32 [steps + 1], where each step's rows start.
    """

    rows: np.ndarray
    ptr: np.ndarray

    def of_step(self, step: int) -> np.ndarray:
        """The rows of a step, from 1."""
        return self.rows[self.ptr[step - 1] : self.ptr[step]]


class Move(NamedTuple):
    """The tables of a turn after they were handed on a number of times: one on each device.

    Attributes:
      steps: for each device, the distance of its part and the table's on the ring.
      places: int32 [rows], for each device, the table's rows that its part needs, then any number
        that is no row; None: all rows, in order.
    """

    steps: tuple[int, ...]
    places: tuple[np.ndarray, ...] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Exchange:
    """The rows that parts need of each other, in one direction.

    Attributes:
      listed: for each part, its rows that others need; empty where there is one part.
      sign: 1: steps lead to the parts ahead, which need the rows; -1: to the parts behind.
      devices: parts of a turn.
      node_rows: rows of a part.
      most: the most rows that a part needs of another.
      whole_from: tables with this share of the rows of a part, or more, are all of its rows.
    """

    listed: tuple[Listed, ...]
    sign: int
    devices: int
    node_rows: int
    most: int
    whole_from: float = math.inf

    @property
    def turns(self) -> int:
        """The number of turns."""
        return max(len(self.listed) // self.devices, 1)

    def visits(self, turn: int) -> list[int]:
        """The turns of which a turn needs rows, itself first, the others in their order."""
        return self._visits_of_all[turn]

    @functools.cached_property
    def _visits_of_all(self) -> list[list[int]]:
        found = []
        for turn in range(self.turns):
            around = [(turn - self.sign * k) % self.turns for k in range(self.turns)]
            found.append([each for each in around if any(map(len, self.tables(each, turn)))])
        return found

    def tables(self, other: int, turn: int) -> list[np.ndarray]:
        """For each part of a turn, its rows that the parts of another turn need, each once."""
        return [self._table(of, turn) for of in self._parts(other)]

    def is_whole(self, other: int, turn: int) -> bool:
        """True where the tables of another turn are its arrays, as they wait."""
        most = max(map(len, self.tables(other, turn)))
        return other != turn and most >= self.whole_from * self.node_rows

    def answered(self, other: int, turn: int) -> list[np.ndarray] | None:
        """For each part of another turn, the rows of the gradient of its tables; None: all."""
        whole = self.devices > 1 and self.is_whole(other, turn)
        return None if whole else self.tables(other, turn)

    def table_room(self, other: int, turn: int) -> int:
        """Rows of the arrays of such tables."""
        if self.is_whole(other, turn):
            return self.node_rows
        return room_of(max(map(len, self.tables(other, turn))), self._largest_table)

    @functools.cached_property
    def _largest_table(self) -> int:
        return self.most if self.devices == 1 else max(map(len, self._tables_of_all.values()))

    def moves(self, other: int, turn: int) -> Iterator[Move]:
        """The ways in which a turn reads the tables of another, handed on from one to the next."""
        parts, here, whole = len(self.listed), self._parts(turn), self.is_whole(other, turn)
        for handed in range(int(other == turn), self.devices):
            there = [self._parts(other)[(at - handed) % self.devices] for at in range(self.devices)]
            pairs = list(zip(there, here, strict=True))
            steps = tuple(self.sign * (to - of) % parts for of, to in pairs)
            reads_all = self.devices == 1 and not whole
            yield Move(steps, None if reads_all else self._places(pairs, whole=whole))

    def _places(self, pairs: list[tuple[int, int]], *, whole: bool) -> tuple[np.ndarray, ...]:
        found = [self._rows(*pair) if whole else self._places_of_all[pair] for pair in pairs]
        room = room_of(max(map(len, found)), self.most)
        return tuple(padded(each, room) for each in found)

    def _parts(self, turn: int) -> range:
        return range(turn * self.devices, (turn + 1) * self.devices)

    def _rows(self, of: int, to: int) -> np.ndarray:
        """Rows of a part that another needs."""
        return self.listed[of].of_step(self.sign * (to - of) % len(self.listed))

    def _table(self, of: int, turn: int) -> np.ndarray:
        others = [to for to in self._parts(turn) if to != of] if self.listed else []
        if self.devices == 1:
            return self._rows(of, others[0]) if others else np.zeros(0, np.int32)
        return self._tables_of_all[of, turn]

    @functools.cached_property
    def _tables_of_all(self) -> dict[tuple[int, int], np.ndarray]:
        found = {}
        for of in range(len(self.listed)):
            for turn in range(self.turns):
                rows = [self._rows(of, to) for to in self._parts(turn) if to != of]
                found[of, turn] = np.unique(np.concatenate(rows))
        return found

    @functools.cached_property
    def _places_of_all(self) -> dict[tuple[int, int], np.ndarray]:
        parts = range(len(self.listed))
        return {
            (of, to): np.searchsorted(
                self._table(of, to // self.devices), self._rows(of, to)
            ).astype(np.int32)
            for of in parts
            for to in parts
            if to != of
        }


def padded(rows: np.ndarray, room: int) -> np.ndarray:
    """Numbers of rows, int32 [room]: those given, then any number that is no row."""
    padding = np.iinfo(np.int32).max
    return np.pad(rows.astype(np.int32), (0, room - len(rows)), constant_values=padding)


def room_of(count: int, most: int) -> int:
    """The size of a table of so many rows: one of few, so that few programs are compiled."""
    room = max(most, 1)
    while -(-room // 2) >= max(count, _SMALLEST_ROOM):
        room = -(-room // 2)
    return max(room, count)
