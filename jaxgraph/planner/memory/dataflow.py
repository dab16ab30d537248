"""The operations of a training step and the tensors that they read and write."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import cached_property

__all__ = ["Dataflow", "Operation", "Rates", "Tensor"]


@dataclasses.dataclass(frozen=True)
class Rates:
    """The rates at which a device computes and moves bytes; all are positive.

    Attributes:
      flops: operations per second in matrix products.
      memory: bytes per second of its own memory.
      host: bytes per second between it and the host.
      link: bytes per second between it and other devices.
    """

    flops: float
    memory: float
    host: float
    link: float

    def __post_init__(self) -> None:
        for name, rate in vars(self).items():
            if not rate > 0:
                raise ValueError(f"the rate {name} is {rate}; expected a positive number")


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor that a training step reads or writes.

    Attributes:
      name: its name in a policy, such as `jaxgraph.layers.MAPPED`.
      bytes: its size.
      layer: index of the layer that computes it; None: it belongs to no layer.
      on_host: whether the host has a copy from the start, as of inputs and parameters.
      is_result: whether the host needs a copy at the end.
    """

    name: str
    bytes: int
    layer: int | None = None
    on_host: bool = False
    is_result: bool = False

    def __post_init__(self) -> None:
        if self.bytes != int(self.bytes) or self.bytes < 0:
            raise ValueError(f"{self.key} has {self.bytes} bytes; expected a whole number >= 0")

    @property
    def key(self) -> str:
        """Its name in the dataflow: "mapped_features[2]" of layer 2, "edges" of none."""
        return self.name if self.layer is None else f"{self.name}[{self.layer}]"


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of a training step, which needs all its tensors on the device at once.

    Attributes:
      name: unique in the dataflow.
      reads: keys of tensors.
      writes: keys of tensors; one that nothing reads is a workspace, gone after the operation.
      seconds: its duration.
      sent_bytes: bytes that it sends between devices, such as the halos under SAR.
      layer: index of its layer, or None.
      is_backward: whether it belongs to the backward.
      is_repeatable: whether the backward of its layer may run it again.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    seconds: float = 0.0
    sent_bytes: int = 0
    layer: int | None = None
    is_backward: bool = False
    is_repeatable: bool = False

    def __post_init__(self) -> None:
        for field in ("seconds", "sent_bytes"):
            if not getattr(self, field) >= 0:
                raise ValueError(f"{field} of {self.name} is {getattr(self, field)}; expected >= 0")

    @property
    def tensors(self) -> frozenset[str]:
        """Keys of all that it reads or writes."""
        return frozenset(self.reads) | frozenset(self.writes)


@dataclasses.dataclass(frozen=True)
class Dataflow:
    """A directed acyclic graph of operations and tensors.

    Attributes:
      tensors: those that operations read or write.
      operations: each after those that write its inputs.

    Raises:
      ValueError: a name is taken twice, a tensor is unknown, written twice or read too early.
    """

    tensors: tuple[Tensor, ...]
    operations: tuple[Operation, ...]

    def __post_init__(self) -> None:
        for what, names in (
            ("tensor", [each.key for each in self.tensors]),
            ("operation", [each.name for each in self.operations]),
        ):
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise ValueError(f"{what} {min(twice)!r} occurs twice in the dataflow; rename one")
        known = {each.key for each in self.tensors}
        there = {each.key for each in self.tensors if each.on_host}
        for operation in self.operations:
            _check(operation, known, there)
            there |= set(operation.writes)

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


def _check(operation: Operation, known: set[str], there: set[str]) -> None:
    unknown = sorted(operation.tensors - known)
    if unknown:
        raise ValueError(f"{operation.name} names the tensor {unknown[0]!r}; add it to `tensors`")
    early = sorted(set(operation.reads) - there)
    if early:
        raise ValueError(
            f"{operation.name} reads {early[0]!r}, which no operation before it writes and the "
            "host does not have; put its writer first, or set on_host"
        )
    again = sorted(set(operation.writes) & there)
    if again:
        raise ValueError(
            f"{operation.name} writes {again[0]!r}, which is there already; a tensor is written "
            "once. Give the new value a name of its own"
        )
