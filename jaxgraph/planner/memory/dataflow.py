"""The operations of a training step and the tensors that they read and write."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import cached_property


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor that a training step reads or writes.

    Attributes:
      key: its name.
      bytes: its size.
      on_host: whether the host has a copy from the start, as of inputs and parameters.
      is_result: whether the host needs a copy at the end.
    """

    key: str
    bytes: int
    on_host: bool = False
    is_result: bool = False


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of a training step, which needs all its tensors on the device at once.

    Attributes:
      name: unique in the dataflow.
      reads: keys of tensors.
      writes: keys of tensors; one that nothing reads is gone after the operation.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @property
    def tensors(self) -> frozenset[str]:
        """Keys of all that it reads or writes."""
        return frozenset(self.reads) | frozenset(self.writes)


@dataclasses.dataclass(frozen=True)
class Dataflow:
    """A directed acyclic graph of operations and tensors.

    Attributes:
      tensors: those that operations read or write; each is written once.
      operations: each after those that write its inputs.
    """

    tensors: tuple[Tensor, ...]
    operations: tuple[Operation, ...]

    @cached_property
    def bytes(self) -> dict[str, int]:
        """Size of each tensor, by key."""
        return {each.key: each.bytes for each in self.tensors}

    @cached_property
    def writers(self) -> dict[str, Operation]:
        """The operation that writes each tensor; inputs have none."""
        return {key: each for each in self.operations for key in each.writes}

    def size(self, keys: Iterable[str]) -> int:
        """Bytes of tensors together."""
        return sum(self.bytes[key] for key in keys)

    def least_capacity(self) -> tuple[int, Operation]:
        """Bytes of the largest operation with all its tensors, and the operation."""
        sizes = [(self.size(each.tensors), each) for each in self.operations]
        return max(sizes, key=lambda pair: pair[0])
