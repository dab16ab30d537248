"""Dropout of attention coefficients: masks are hashed from a seed and ids, and never stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.lanes import Lanes
from pallas_kernels.pytrees import pytree
from pallas_kernels.rows import Item
from pallas_kernels.teams import Team

__all__ = ["Dropout", "EdgeIds", "keep_masks", "kept", "kept_scale", "spread_seed"]

FIRST_WORD, SECOND_WORD, EDGE_MASK = 0x9E3779B9, 0x85EBCA6B, 0x165667B1
LOWEST = np.int32(-(1 << 31))


@pytree
class Dropout:
    """The dropout of coefficients: one is kept where a hash of its edge and head is large enough.

    keep_eh = mix(start_e + h step_e) >= threshold, with start_e and step_e computed from the seed,
    the ids of receiver and sender and the repetition of the edge.

    Attributes:
      words: int32 [2], the result of `spread_seed`.
      firsts: int32 [2], the indices of the first receiver's and of the first sender's id.
      receiver_ids, sender_ids: int32, ids of the rows.
      repetition: int32 [slots], the index of each edge among equal edges; None: no equal edges.
      threshold: in [0, 2 ** 32).
      scale: the factor of kept coefficients.
    """

    words: jax.Array
    firsts: jax.Array
    receiver_ids: jax.Array
    sender_ids: jax.Array
    repetition: jax.Array | None
    threshold: int = dataclasses.field(metadata={"static": True})
    scale: float = dataclasses.field(metadata={"static": True})

    def operands(self) -> dict[str, jax.Array]:
        """The arrays, by the names of their references in `EdgeIds`."""
        found = {
            "words": self.words,
            "firsts": self.firsts,
            "receiver_ids": self.receiver_ids,
            "sender_ids": self.sender_ids,
        }
        return found if self.repetition is None else {**found, "repetition": self.repetition}


def spread_seed(seed: jax.Array) -> jax.Array:
    """Both words of a seed, mixed into two.

    Args:
      seed: uint32 [2].

    Returns:
      int32 [2].
    """
    words = lax.bitcast_convert_type(seed, jnp.int32)
    first = _mix(words[0] ^ _signed(FIRST_WORD ^ EDGE_MASK))
    second = _mix((words[1] ^ _signed(SECOND_WORD)) + first)
    return jnp.stack([_mix(first ^ second), second])


@dataclasses.dataclass(frozen=True)
class EdgeIds:
    """The ids of an item's edges, and the masks of its coefficients.

    Attributes:
      lanes, team: those that read them.
      dropout: the dropout; only static fields are read.
      references: the references of `Dropout.operands()`, by name.
      side: "receiver" or "sender", the end that the rows are.
      item: the row.
      own: int32 [lanes], the id of the row.
    """

    lanes: Lanes
    team: Team
    dropout: Dropout
    references: Mapping[str, Any]
    side: str
    item: Item
    own: jax.Array

    @classmethod
    def of_row(
        cls,
        lanes: Lanes,
        team: Team,
        dropout: Dropout | None,
        references: Mapping[str, Any],
        side: str,
        item: Item,
    ) -> EdgeIds | None:
        """The ids of the edges of a row; None without dropout."""
        if dropout is None:
            return None
        place = item.row + references["firsts"][0 if side == "receiver" else 1]
        own = lanes.read(references[f"{side}_ids"], place, mask=item.valid)[0]
        return cls(lanes, team, dropout, references, side, item, own)

    def read(self, neighbor: jax.Array, slot: jax.Array, mask: jax.Array) -> list[jax.Array]:
        """The id of a neighbor, and the repetition of the edge at a slot if there are any."""
        far, place = ("sender", 1) if self.side == "receiver" else ("receiver", 0)
        ids = self.references[f"{far}_ids"]
        found = [self.lanes.read(ids, neighbor + self.references["firsts"][place], mask=mask)[0]]
        if "repetition" not in self.references:
            return found
        return [*found, self.lanes.read(self.references["repetition"], slot, mask=mask)[0]]

    def keep(self, reads: Sequence[list[jax.Array]]) -> list[jax.Array]:
        """bool [lanes] for each of several edges, from the results of `read`.

        A hash costs as much as the rest of an edge. The lanes of a team, which all need the same
        masks, hash one edge each and exchange the results.
        """
        if not reads:
            return []
        shared = min(self.team.lanes, 1 << (len(reads).bit_length() - 1))
        own = self.item.lane & (shared - 1)
        mine = [_pick(own, part) for part in zip(*reads[:shared], strict=True)]
        bit = lax.shift_left(jnp.full_like(own, 1), own)
        word = jnp.where(self._keep(mine), bit, 0)
        distance = 1
        while distance < shared:
            word = word | self.lanes.exchange(word, distance)
            distance *= 2
        return [(word & (1 << each)) != 0 for each in range(shared)] + self.keep(reads[shared:])

    def _keep(self, read: Sequence[jax.Array]) -> jax.Array:
        ends = (self.own, read[0]) if self.side == "receiver" else (read[0], self.own)
        repetition = read[1] if len(read) > 1 else 0
        words = self.references["words"]
        bits = _edge_bits(words[0], words[1], *ends, repetition, self.item.head)
        return (bits ^ LOWEST) >= np.int32(self.dropout.threshold - (1 << 31))


def keep_masks(ids: EdgeIds | None, reads: Sequence[list[jax.Array]]) -> list[jax.Array | None]:
    """Masks of the coefficients that dropout keeps, one bool [lanes] per edge, or None.

    Args:
      ids: the ids of the edges; None: nothing is dropped.
      reads: the results of `ids.read` for each edge.

    Returns:
      The masks; None for each edge where nothing is dropped.
    """
    return [None] * len(reads) if ids is None else [*ids.keep(reads)]


def kept_scale(ids: EdgeIds | None) -> float:
    """The factor on the coefficients that dropout keeps; 1 without dropout."""
    return 1.0 if ids is None else ids.dropout.scale


def kept(lanes: Lanes, keep: jax.Array | None, values: Sequence[jax.Array]) -> list[jax.Array]:
    """Values [count, lanes], with 0 for dropped ones, even where these are NaN.

    Args:
      lanes: the lanes.
      keep: bool [lanes]; None: nothing is dropped.
      values: a few arrays.

    Returns:
      Equally many arrays.
    """
    if keep is None:
        return list(values)
    number = jnp.where(keep, 1, 0)
    return [jnp.where(lanes.spread(number, each.shape[0]) != 0, each, 0.0) for each in values]


def _pick(place: jax.Array, numbers: Sequence[jax.Array]) -> jax.Array:
    """The number at a place among numbers, of which there are a power of two."""
    if len(numbers) == 1:
        return numbers[0]
    half = len(numbers) // 2
    low, high = (_pick(place & (half - 1), part) for part in (numbers[:half], numbers[half:]))
    return jnp.where(place >= half, high, low)


def _edge_bits(
    first: jax.Array,
    second: jax.Array,
    receiver: jax.Array,
    sender: jax.Array,
    repetition: jax.Array | int,
    head: jax.Array,
) -> jax.Array:
    pair = _mix(receiver ^ first) + _mix(_mix(sender + second) ^ first)
    start = _mix(pair ^ _mix(repetition + second))
    step = _mix((start ^ second) + receiver) | 1
    return _mix(start + head * step)


def _mix(word: jax.Array) -> jax.Array:
    """A bijection of 32 bits in which every input bit flips half of the output bits."""
    word = (word ^ lax.shift_right_logical(word, jnp.full_like(word, 16))) * 0x21F0AAAD
    word = (word ^ lax.shift_right_logical(word, jnp.full_like(word, 15))) * 0x735A2D97
    return word ^ lax.shift_right_logical(word, jnp.full_like(word, 15))


def _signed(word: int) -> np.int32:
    return np.uint32(word).view(np.int32)
