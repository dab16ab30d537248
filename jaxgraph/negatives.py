"""Pairs of nodes that are no links, drawn by hash: the same on any number of processes."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxgraph.seeds import mix

_MOST_DRAWS = 100
"""Draws of a pair after which a graph has too few pairs that are not known."""


@dataclasses.dataclass(frozen=True, eq=False)
class NodePairs:
    """Pairs of nodes, with types or without.

    Attributes:
      heads, tails: int [pairs], rows of the sets of both ends.
      types: int [pairs], or None.
    """

    heads: np.ndarray
    tails: np.ndarray
    types: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.heads)

    def chosen(self, which: np.ndarray) -> NodePairs:
        """Some of the pairs."""
        types = None if self.types is None else self.types[which]
        return NodePairs(self.heads[which], self.tails[which], types)

    def reversed(self) -> NodePairs:
        """The pairs from the other end."""
        return NodePairs(self.tails, self.heads, self.types)


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """A set of links, to look pairs up in.

    Attributes:
      keys: int64 [links], sorted; a number for each type, head and tail.
      num_tails, num_heads: nodes of the sets of the ends.
    """

    keys: np.ndarray
    num_heads: int
    num_tails: int

    @classmethod
    def of(cls, sizes: tuple[int, int], *links: NodePairs, both_ways: bool) -> Known:
        """The set of some links, given the numbers of nodes; `both_ways`: from both ends."""
        num_heads, num_tails = sizes
        types = max((int(x.types.max(initial=0)) for x in links if x.types is not None), default=0)
        if (types + 1) * num_heads * num_tails >= 2**63:
            raise ValueError(
                f"{num_heads:,} x {num_tails:,} nodes of {types + 1:,} types are too many pairs to "
                "number them in 64 bits, and known ones are told apart so; draw without known links"
            )
        none = cls(np.zeros(0, np.int64), *sizes)
        every = [*links, *(each.reversed() for each in links if both_ways)]
        return dataclasses.replace(none, keys=np.unique(np.concatenate(list(map(none.key, every)))))

    def key(self, links: NodePairs) -> np.ndarray:
        """int64 [links], the numbers of links."""
        first = links.heads.astype(np.int64)
        if links.types is not None:
            first = first + links.types.astype(np.int64) * self.num_heads
        return first * self.num_tails + links.tails

    def holds(self, links: NodePairs) -> np.ndarray:
        """bool [links], those that are in the set."""
        keys = self.key(links)
        place = np.searchsorted(self.keys, keys)
        return self.keys.take(place, mode="clip") == keys if len(self.keys) else place < 0


def drawn(
    links: NodePairs,
    count: int,
    sizes: tuple[int, int],
    key: int,
    *,
    one_end: bool,
    is_one_set: bool,
    known: Known | None,
) -> NodePairs:
    """Draws so many pairs for each link, [links * count], of its type, by the key and its number.

    `sizes` are the nodes of the sets of both ends. With `one_end` a pair has one end of its link.
    """
    heads, tails = (np.repeat(each, count).astype(np.int64) for each in (links.heads, links.tails))
    types = None if links.types is None else np.repeat(links.types, count)
    found, left = NodePairs(heads, tails, types), np.arange(len(heads))
    given = found.chosen(left)
    for attempt in range(_MOST_DRAWS):
        words = mix(left.astype(np.uint64) ^ np.uint64(key))
        words = [mix(words + np.uint64(3 * attempt + which)) for which in range(3)]
        random = [_below(word, size) for word, size in zip(words, sizes, strict=False)]
        keeps_head = one_end & (words[2] & np.uint64(1) > 0)
        keeps_tail = one_end & ~keeps_head
        heads[left] = np.where(keeps_head, given.heads[left], random[0])
        tails[left] = np.where(keeps_tail, given.tails[left], random[1])
        again = np.zeros(len(left), bool)
        if is_one_set:
            again |= heads[left] == tails[left]
        if known is not None:
            again |= known.holds(found.chosen(left))
        left = left[again]
        if not len(left):
            return found
    raise ValueError(
        f"{len(left)} pairs were known links {_MOST_DRAWS} times in a row: nearly all pairs of the "
        "graph are links. Draw without known links, or fewer pairs"
    )


def _below(words: np.ndarray, size: int) -> np.ndarray:
    """Numbers from 0 to `size` - 1 of random words of 64 bits."""
    return ((words >> np.uint64(32)) * np.uint64(size) >> np.uint64(32)).astype(np.int64)
