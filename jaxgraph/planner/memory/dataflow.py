"""The operations of a training step and the tensors that they read and write."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

_NUMBER_BYTES = 4
"""Of a feature, and of a label."""


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


def gcn_step(nodes: int, edges: int, widths: Sequence[int], edge_bytes: int) -> Dataflow:
    """Makes the dataflow of the forward, the loss and the backward of a GCN on one device.

    A layer starts with the activation that follows the convolution before. It maps first where that
    makes features narrower. Steps that XLA fuses are one operation.
    """
    last = len(widths) - 2
    sizes = {"features": nodes * widths[0] * _NUMBER_BYTES, "labels": nodes * _NUMBER_BYTES}
    inputs = (sizes | {"edges": edges * edge_bytes}).items()
    tensors = [Tensor(key, size, on_host=True) for key, size in inputs]
    tensors.append(Tensor("logits", nodes * widths[-1] * _NUMBER_BYTES))
    forward: list[Operation] = []
    backward: list[Operation] = []
    for layer in range(last + 1):
        width, out = widths[layer : layer + 2]
        tensors += _tensors(layer, nodes, width, out)
        output = "logits" if layer == last else f"input[{layer + 1}]"
        steps = _Layer(layer, maps_first=out <= width, output=output)
        forward += steps.forward()
        backward = [*steps.backward(), *backward]
    loss = Operation("loss", ("logits", "labels"), (f"gradient_of_output[{last}]",))
    operations = (*forward, loss, *backward)
    used = {key for each in operations for key in each.tensors}
    return Dataflow(tuple(each for each in tensors if each.key in used), operations)


def _tensors(layer: int, nodes: int, width: int, out: int) -> Iterator[Tensor]:
    names = ("mapped", "gradient_of_mapped", "gradient_of_output")
    columns = dict.fromkeys(names, out)
    names = ("input", "activated", "reduced", "gradient_of_reduced", "gradient_of_activated")
    columns |= dict.fromkeys(names, width)
    for name, count in columns.items():
        yield Tensor(f"{name}[{layer}]", nodes * count * _NUMBER_BYTES)
    parameters = (width * out + out) * _NUMBER_BYTES
    yield Tensor(f"parameters[{layer}]", parameters, on_host=True)
    yield Tensor(f"gradient_of_parameters[{layer}]", parameters, is_result=True)


@dataclasses.dataclass(frozen=True)
class _Layer:
    """The operations of one layer, which writes `output`."""

    index: int
    maps_first: bool
    output: str

    def key(self, name: str) -> str:
        """Of a tensor or an operation of this layer."""
        return f"{name}[{self.index}]"

    @property
    def given(self) -> str:
        return self.key("activated") if self.index else "features"

    def forward(self) -> Iterator[Operation]:
        key = self.key
        if self.index:
            yield Operation(key("activate"), (key("input"),), (self.given,))
        if self.maps_first:
            yield Operation(key("map"), (self.given, key("parameters")), (key("mapped"),))
            yield Operation(key("aggregate"), (key("mapped"), "edges"), (self.output,))
        else:
            yield Operation(key("aggregate"), (self.given, "edges"), (key("reduced"),))
            yield Operation(key("map"), (key("reduced"), key("parameters")), (self.output,))

    def backward(self) -> Iterator[Operation]:
        key, gradient = self.key, self.key("gradient_of_output")
        of_parameters, of_given = key("gradient_of_parameters"), key("gradient_of_activated")
        of_mapped, of_reduced = key("gradient_of_mapped"), key("gradient_of_reduced")
        if self.maps_first:
            yield Operation(key("pull_aggregate"), (gradient, "edges"), (of_mapped,))
            reads = (of_mapped, self.given, key("parameters"))
            writes = (of_given, of_parameters) if self.index else (of_parameters,)
            yield Operation(key("pull_map"), reads, writes)
        else:
            reads = (gradient, key("reduced"), key("parameters"))
            writes = (of_reduced, of_parameters) if self.index else (of_parameters,)
            yield Operation(key("pull_map"), reads, writes)
            if self.index:
                yield Operation(key("pull_aggregate"), (of_reduced, "edges"), (of_given,))
        if self.index:
            before = f"gradient_of_output[{self.index - 1}]"
            yield Operation(key("pull_activate"), (of_given, self.given), (before,))
