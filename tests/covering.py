"""Cases of several factors, so chosen that every few values meet in one of them."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, TypeVar

__all__ = ["cover", "meetings"]

C = TypeVar("C", bound=tuple[Any, ...])


def meetings(case: tuple[Any, ...], size: int) -> frozenset[Any]:
    """Every `size` values of a case, each with its place."""
    return frozenset(combinations(enumerate(case), size))


def cover(
    cases: Sequence[C],
    size: int,
    first: Sequence[C] = (),
    cost: Callable[[C], float] = lambda case: 1.0,
) -> list[C]:
    """Some cases in which every `size` values meet that meet in any case; a greedy choice.

    Args:
      cases: all there are.
      size: 2 for every pair of values, 3 for every three.
      first: cases that are taken in any case.
      cost: of a case; of those in which equally many values meet, the cheapest is taken.
    """
    numbers: dict[Any, int] = {}
    holders: dict[int, list[tuple[C, int]]] = {}
    for case in cases:
        # A case's meetings are bits of a number, so that many cases are compared in no time.
        met = [
            numbers.setdefault(each, len(numbers)) for each in combinations(enumerate(case), size)
        ]
        bits = sum(1 << number for number in met)
        for number in met:
            holders.setdefault(number, []).append((case, bits))
    chosen, missing = list(first), (1 << len(numbers)) - 1
    for case in first:
        missing &= ~sum(1 << numbers[each] for each in combinations(enumerate(case), size))
    for number, those in holders.items():
        if missing >> number & 1:
            case, bits = max(
                those, key=lambda each: ((each[1] & missing).bit_count(), -cost(each[0]))
            )
            chosen.append(case)
            missing &= ~bits
    return chosen
