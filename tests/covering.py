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
      cost: of a case; the more expensive a case is, the more values have to meet in it.
    """
    met = {case: meetings(case, size) for case in cases}
    holders: dict[Any, list[Any]] = {}
    for case in cases:
        for each in sorted(met[case]):
            holders.setdefault(each, []).append(case)
    missing = set(holders).difference(*(meetings(case, size) for case in first))
    chosen = list(first)
    for each in holders:
        if each in missing:
            gain = {case: len(met[case] & missing) for case in holders[each]}
            chosen.append(max(gain, key=lambda case: gain[case] / cost(case) ** 0.3))
            missing -= met[chosen[-1]]
    return chosen
