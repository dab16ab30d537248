"""The order in which parts visit each other: first those of their own host, then host by host.

With P parts, H hosts and L = P / H parts on each host, step s pairs part (h, l) with the part
(h - s // L, l - s % L) behind it, each modulo the number of hosts or of parts on a host. The first
L - 1 steps stay inside a host. With one host it is the ring p - s.

Tables of a part list its edges by their distance on the ring of all parts, whatever the hosts: one
folder of parts serves any number of them.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax

__all__ = ["RingOrder"]

Number = TypeVar("Number", int, jax.Array)
"""A part: every device computes its own."""


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
