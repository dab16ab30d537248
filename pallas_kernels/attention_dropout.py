"""Which attention coefficients are dropped: bits that depend on ids alone, and are never stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.lanes import Lanes
from pallas_kernels.rows import Item

__all__ = ["Dropout", "EdgeIds", "spread_seed"]

FIRST_WORD, SECOND_WORD, EDGE_MASK = 0x9E3779B9, 0x85EBCA6B, 0x165667B1
LOWEST = np.int32(-(1 << 31))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dropout:
    """Coefficients are kept where a hash of the ids of an edge and its head reaches a threshold.

    keep_eh = mix(start_e + h step_e) >= threshold, with start_e and step_e made of the seed, the
    ids of receiver and sender and the repetition of the edge.

    Attributes:
      words: int32 [2], of `spread_seed`.
      firsts: int32 [2], where the ids of the first receiver and of the first sender stand.
      receiver_ids, sender_ids: int32, ids of the rows.
      repetition: int32 [slots], which of several equal edges each one is; None: no equal edges.
      threshold: in [0, 2 ** 32).
      scale: what coefficients that are kept are multiplied with.
    """

    words: jax.Array
    firsts: jax.Array
    receiver_ids: jax.Array
    sender_ids: jax.Array
    repetition: jax.Array | None
    threshold: int = dataclasses.field(metadata={"static": True})
    scale: float = dataclasses.field(metadata={"static": True})

    def operands(self) -> dict[str, jax.Array]:
        """The arrays by the names under which `EdgeIds` looks for their references."""
        found = {
            "words": self.words,
            "firsts": self.firsts,
            "receiver_ids": self.receiver_ids,
            "sender_ids": self.sender_ids,
        }
        return found if self.repetition is None else {**found, "repetition": self.repetition}


def spread_seed(seed: jax.Array) -> jax.Array:
    """Both words of a seed, spread over two.

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
    """The ids of an item's edges.

    Attributes:
      lanes: that read them.
      dropout: of which the static part counts.
      references: of `Dropout.operands()`, by name.
      side: "receiver" or "sender", what the rows are.
      item: the row.
      own: int32 [lanes], the id of the row.
    """

    lanes: Lanes
    dropout: Dropout
    references: Mapping[str, Any]
    side: str
    item: Item
    own: jax.Array

    @classmethod
    def of_row(
        cls, lanes: Lanes, dropout: Dropout, references: Mapping[str, Any], side: str, item: Item
    ) -> EdgeIds:
        """The ids of the edges of a row."""
        place = item.row + references["firsts"][0 if side == "receiver" else 1]
        own = lanes.read(references[f"{side}_ids"], place, mask=item.valid)[0]
        return cls(lanes, dropout, references, side, item, own)

    def read(self, neighbor: jax.Array, slot: jax.Array, mask: jax.Array) -> list[jax.Array]:
        """The id of a neighbor, and the repetition of the edge at a slot if there are any."""
        far, place = ("sender", 1) if self.side == "receiver" else ("receiver", 0)
        ids = self.references[f"{far}_ids"]
        found = [self.lanes.read(ids, neighbor + self.references["firsts"][place], mask=mask)[0]]
        if "repetition" not in self.references:
            return found
        return [*found, self.lanes.read(self.references["repetition"], slot, mask=mask)[0]]

    def drop(self, weights: jax.Array, read: list[jax.Array]) -> jax.Array:
        """Weights [lanes] of the edge of which `read` has read, scaled or 0."""
        ends = (self.own, read[0]) if self.side == "receiver" else (read[0], self.own)
        repetition = read[1] if len(read) > 1 else 0
        words = self.references["words"]
        bits = _edge_bits(words[0], words[1], *ends, repetition, self.item.head)
        kept = (bits ^ LOWEST) >= np.int32(self.dropout.threshold - (1 << 31))
        return jnp.where(kept, weights * self.dropout.scale, 0.0)


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
    """A bijection of 32 bits in which every bit that goes in flips half of those that come out."""
    word = (word ^ lax.shift_right_logical(word, jnp.full_like(word, 16))) * 0x21F0AAAD
    word = (word ^ lax.shift_right_logical(word, jnp.full_like(word, 15))) * 0x735A2D97
    return word ^ lax.shift_right_logical(word, jnp.full_like(word, 15))


def _signed(word: int) -> np.int32:
    return np.uint32(word).view(np.int32)
