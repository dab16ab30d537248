"""The links that a collective's bytes take: inside a host, or between hosts.

Devices are numbered as the mesh lists them, and each run of `per_host` of them is a host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

# Bytes that leave a device over bytes of its operand, by the number of devices in the group.
RULES: dict[str, Callable[[int], Fraction]] = {
    "all-gather": lambda size: Fraction(size - 1),
    "all-reduce": lambda size: Fraction(2 * (size - 1), size),
    "all-to-all": lambda size: Fraction(size - 1, size),
    "collective-broadcast": lambda size: Fraction(size - 1, size),
    "ragged-all-to-all": lambda size: Fraction(size - 1, size),
    "reduce-scatter": lambda size: Fraction(size - 1, size),
}
PERMUTE = "collective-permute"
_DIRECT = ("all-to-all", "ragged-all-to-all")


@dataclass(frozen=True)
class Share:
    """Bytes that leave a device over bytes of its operand, mean over devices.

    Attributes:
      inside: to devices of the same host.
      between: to those of other hosts.
    """

    inside: Fraction
    between: Fraction


@dataclass(frozen=True)
class Sent:
    """Bytes that leave each device in one run of a program, mean over devices.

    Attributes:
      inside: {collective: bytes} to devices of the same host.
      between: the same to those of other hosts.
    """

    inside: dict[str, int]
    between: dict[str, int]

    @classmethod
    def of(cls, sums: Mapping[tuple[str, str], Fraction]) -> Sent:
        """Of bytes by collective and link."""
        found: dict[str, dict[str, int]] = {"inside": {}, "between": {}}
        for (name, link), size in sorted(sums.items()):
            found[link][name] = round(size)
        return cls(**found)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.inside.values()) + sum(self.between.values())


def share_of_pairs(
    pairs: Sequence[tuple[int, int]], num_devices: int, per_host: int | None
) -> Share:
    """The share of a permute."""
    moved = [(source, target) for source, target in pairs if source != target]
    between = 0
    if per_host is not None:
        between = sum(source // per_host != target // per_host for source, target in moved)
    return Share(Fraction(len(moved) - between, num_devices), Fraction(between, num_devices))


def share_of_groups(
    collective: str, groups: Sequence[Sequence[int]], per_host: int | None
) -> Share:
    """The share of a collective among groups of devices.

    All-to-all sends to each device directly. The others go around a ring that visits one host after
    the other, so that one device of each host sends to another host.
    """
    total = between = Fraction(0)
    for group in groups:
        size, all_bytes = len(group), RULES[collective](len(group)) * len(group)
        total += all_bytes
        hosts = {} if per_host is None else _counts([each // per_host for each in group])
        if len(hosts) < 2:
            continue
        if collective in _DIRECT:
            same = sum(count * (count - 1) for count in hosts.values())
            between += all_bytes * (1 - Fraction(same, size * (size - 1)))
        else:
            between += all_bytes * Fraction(len(hosts), size)
    devices = sum(map(len, groups))
    return Share((total - between) / devices, between / devices)


def _counts(hosts: Sequence[int]) -> dict[int, int]:
    return {host: hosts.count(host) for host in set(hosts)}
