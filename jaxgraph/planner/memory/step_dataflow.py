"""The dataflow of a model's training step, from counts of its graph and widths of its layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from jaxgraph.planner.memory.dataflow import Dataflow, Operation, Rates, Tensor

__all__ = ["EDGES", "FEATURES", "KINDS", "LABELS", "PARAMETERS", "Shape", "training_step"]

KINDS = ("gcn", "sage", "gat")
"""The layers that are known."""

FEATURES, EDGES, LABELS, PARAMETERS = "features", "edges", "labels", "parameters"
"""Names of the inputs: the graph's features, edges and labels, and what a layer owns."""

# The names of `jaxgraph.layers` and `jaxgraph.parallel`, which import jax; a test compares them.
MAPPED, REDUCED, HALOS = "mapped_features", "reduced_messages", "halos"
STATISTICS, LAYER_INPUT, ACTIVATED = "batch_statistics", "layer_input", "activated_features"

_INDEX_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Shape:
    """The model and the share of the graph that a device has.

    Attributes:
      kind: "gcn", "sage" or "gat".
      nodes: rows of the device's share.
      edges: of the device's share.
      widths: columns of the features, of each layer's output, and of the classes.
      heads: of "gat"; they divide the widths of its layers.
      halo_rows: rows of other devices that an aggregation reads; 0 on one device.
      mode: "sar", which receives them part by part and keeps none, or "domain".
      has_norm: whether a batch norm follows all layers but the last.
      has_residual: whether all layers but the last have a residual connection.
      number_bytes: of a feature.
      edge_bytes: of an edge.
      workspace_bytes: that an aggregation or its backward takes beside the tensors named here; a
        compiled step tells.
    """

    kind: str
    nodes: int
    edges: int
    widths: tuple[int, ...]
    heads: int = 1
    halo_rows: int = 0
    mode: str = "sar"
    has_norm: bool = False
    has_residual: bool = False
    number_bytes: int = 4
    edge_bytes: int = 8
    workspace_bytes: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", tuple(self.widths))
        for name, found, known in (
            ("kind", self.kind, KINDS),
            ("mode", self.mode, ("sar", "domain")),
        ):
            if found not in known:
                raise ValueError(f"{name} is {found!r}; expected one of {', '.join(known)}")
        for name in ("nodes", "heads", "number_bytes", "edge_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        for name in ("edges", "halo_rows", "workspace_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 0")
        if len(self.widths) < 2 or min(self.widths) < 1:
            raise ValueError(
                f"widths is {self.widths}; expected those of the features, of every layer and of "
                "the classes, each at least 1"
            )
        if self.kind == "gat" and any(width % self.heads for width in self.widths[1:-1]):
            raise ValueError(f"widths is {self.widths}; expected multiples of {self.heads} heads")

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.widths) - 1


def training_step(shape: Shape, rates: Rates) -> Dataflow:
    """Makes the dataflow of the forward, the loss and the backward of a model.

    Tensors have the names that `jaxgraph.layers.RematPolicy` knows; the scores of attention have
    none, and are recomputed from mapped rows. A layer starts with the norm and the activation that
    follow the convolution before, as in `jaxgraph.nn.Stack`. Steps that XLA fuses are one
    operation. GCN and GraphSAGE map first where that makes features narrower.

    Args:
      shape: the model and the graph.
      rates: those of the device; an operation takes the time of its products or of its memory.

    Returns:
      The dataflow. Layers may repeat their own operations, but for the one that ends them.
    """
    step = _Step(shape, rates)
    for layer in range(shape.num_layers):
        _Layer(step, layer).forward()
    step.loss()
    for layer in reversed(range(shape.num_layers)):
        _Layer(step, layer).backward()
    return Dataflow(tuple(step.tensors.values()), tuple(step.operations))


class _Step:
    """Collects the tensors and the operations."""

    def __init__(self, shape: Shape, rates: Rates) -> None:
        self.shape, self.rates = shape, rates
        self.tensors: dict[str, Tensor] = {}
        self.operations: list[Operation] = []
        edges = shape.edges * shape.edge_bytes
        self.features = self.add(Tensor(FEATURES, self.rows(shape.widths[0]), on_host=True))
        self.edges = self.add(Tensor(EDGES, edges, on_host=True))
        self.labels = self.add(Tensor(LABELS, shape.nodes * _INDEX_BYTES, on_host=True))

    def add(self, tensor: Tensor) -> str:
        """The key of a tensor, which is added unless it is there."""
        return self.tensors.setdefault(tensor.key, tensor).key

    def rows(self, width: int) -> int:
        """Bytes of a row of this width for every node."""
        return self.shape.nodes * width * self.shape.number_bytes

    def run(
        self,
        name: str,
        reads: Sequence[str],
        writes: Sequence[str],
        *,
        flops: float = 0.0,
        gathered: float = 0.0,
        **rest,
    ) -> None:
        """Adds an operation that also reads `gathered` bytes at random."""
        moved = sum(self.tensors[key].bytes for key in (*reads, *writes)) + gathered
        seconds = max(flops / self.rates.flops, moved / self.rates.memory)
        self.operations.append(Operation(name, tuple(reads), tuple(writes), seconds, **rest))

    def loss(self) -> None:
        last = self.shape.num_layers - 1
        logits = Tensor("logits", self.rows(self.shape.widths[-1]), last).key
        gradient = self.add(Tensor("gradient_of_output", self.tensors[logits].bytes, last))
        self.run("loss", [logits, self.labels], [gradient], is_backward=True)


class _Layer:
    """The operations of one layer."""

    def __init__(self, step: _Step, index: int) -> None:
        self.step, self.shape, self.index = step, step.shape, index
        self.kind = self.shape.kind
        self.width, self.out = self.shape.widths[index : index + 2]
        self.is_last = index == self.shape.num_layers - 1
        self.has_skip = self.shape.has_residual and not self.is_last
        self.is_attention = self.kind == "gat"
        self.maps_first = self.is_attention or self.out <= self.width
        # The last layer takes the mean of heads that are each as wide as its output.
        self.mapped_width = self.out * (self.shape.heads if self.is_last else 1)
        if not self.is_attention:
            self.mapped_width = self.out * (2 if self.kind == "sage" else 1)
        self.sent_width = self.mapped_width if self.is_attention else min(self.out, self.width)
        self.input = self._key(ACTIVATED, self.width) if index else step.features
        self.before = self._given(index) if index else ""
        self.output = self._key("logits", self.out) if self.is_last else self._given(index + 1)
        self.parameters = step.add(Tensor(PARAMETERS, self._parameter_bytes, index, on_host=True))

    @property
    def _parameter_bytes(self) -> int:
        count = self.width * self.mapped_width + self.out
        if self.has_skip and self.width != self.out:
            count += self.width * self.out
        return count * self.shape.number_bytes

    def _key(self, name: str, width: int) -> str:
        return self.step.add(Tensor(name, self.step.rows(width), self.index))

    def _given(self, index: int) -> str:
        return self.step.add(Tensor(LAYER_INPUT, self.step.rows(self.shape.widths[index]), index))

    def _run(self, name: str, reads: Sequence[str], writes: Sequence[str], **rest) -> None:
        if self.shape.workspace_bytes and name.endswith("aggregate"):
            space = Tensor(f"workspace_of_{name}", self.shape.workspace_bytes, self.index)
            writes = [*writes, self.step.add(space)]
        self.step.run(f"{name}[{self.index}]", reads, writes, layer=self.index, **rest)

    @property
    def _scores(self) -> int:
        return 2 * self.shape.heads if self.is_attention else 0

    @property
    def _mapped(self) -> str:
        return self._key(MAPPED, self.mapped_width)

    @property
    def _reduced(self) -> str:
        if not self.is_attention:
            return self._key(REDUCED, self.width)
        # Of every head the rows, the largest score and the sum; then the mean of the heads.
        mean = self.out if self.mapped_width > self.out else 0
        return self._key(REDUCED, self.mapped_width + self._scores + mean)

    @property
    def _gathered(self) -> int:
        """Bytes of the senders' rows that edges read."""
        return self.shape.edges * (self.sent_width + self._scores) * self.shape.number_bytes

    @property
    def _sent_bytes(self) -> int:
        width = self.sent_width + self._scores // 2
        return self.shape.halo_rows * width * self.shape.number_bytes

    @property
    def _flops(self) -> float:
        columns = self.mapped_width + (self.out if self.has_skip and self.width != self.out else 0)
        return 2.0 * self.shape.nodes * self.width * columns

    @property
    def _skipped(self) -> list[str]:
        """The tensors that the residual connection reads."""
        return [self.input, self.parameters] if self.has_skip else []

    def forward(self) -> None:
        if self.index:
            self._activate()
        if self.maps_first:
            self._run(
                "map",
                [self.input, self.parameters],
                [self._mapped],
                flops=self._flops,
                is_repeatable=True,
            )
            self._aggregate(self._mapped)
        else:
            self._aggregate(self.input)
            own = [self.input] if self.kind == "sage" or self.has_skip else []
            reads = [self._reduced, self.parameters, *own]
            self._run("map", reads, [self.output], flops=self._flops)

    def _activate(self) -> None:
        statistics = list(self._statistics())
        if statistics:
            self._run("statistics", [self.before], statistics, is_repeatable=True)
        self._run("activate", [self.before, *statistics], [self.input], is_repeatable=True)

    def _statistics(self) -> Iterator[str]:
        if self.shape.has_norm:
            size = 2 * self.width * self.shape.number_bytes
            yield self.step.add(Tensor(STATISTICS, size, self.index))

    def _halos(self) -> list[str]:
        if self.shape.mode == "sar" or not self.shape.halo_rows:
            return []
        return [self.step.add(Tensor(HALOS, self._sent_bytes, self.index))]

    def _aggregate(self, table: str) -> None:
        halos = self._halos()
        if halos:
            sent = {"sent_bytes": self._sent_bytes}
            self._run("receive", [table], halos, is_repeatable=True, **sent)
        rest = {"gathered": self._gathered, "sent_bytes": 0 if halos else self._sent_bytes}
        reads = [table, *halos, self.step.edges]
        if self.is_attention or not self.maps_first:
            self._run("aggregate", reads, [self._reduced], is_repeatable=True, **rest)
        else:
            self._run("aggregate", [*reads, *self._skipped], [self.output], **rest)
        if self.is_attention:
            self._run("update", [self._reduced, *self._skipped], [self.output])

    def backward(self) -> None:
        gradient = self._key("gradient_of_output", self.out)
        if self.maps_first:
            of_mapped = self._key("gradient_of_mapped", self.sent_width)
            attended = [self._mapped, self._reduced, *self._halos()] if self.is_attention else []
            self._pull([gradient, *attended], of_mapped, passes=2 if self.is_attention else 1)
            own = [gradient] if self.kind == "sage" or self.has_skip else []
            reads = [of_mapped, *own, self.input, self.parameters]
            self._pull_map(reads, [self._gradient_of_input] if self.index else [])
        else:
            self._backward_after(gradient)
        if self.index:
            read = [self.before, *self._statistics()] if self.shape.has_norm else [self.input]
            size = self.step.rows(self.width)
            before = self.step.add(Tensor("gradient_of_output", size, self.index - 1))
            self._run("pull_activate", [self._gradient_of_input, *read], [before], is_backward=True)

    def _backward_after(self, gradient: str) -> None:
        """The backward of a layer that maps what it has aggregated."""
        has_own = self.kind == "sage" or self.has_skip
        reads = [gradient, self._reduced, self.parameters, *([self.input] if has_own else [])]
        if not self.index:
            self._pull_map(reads, [])
            return
        of_reduced = self._key("gradient_of_reduced", self.width)
        own = [self._key("gradient_of_own", self.width)] if has_own else []
        self._pull_map(reads, [of_reduced, *own])
        self._pull([of_reduced, *own], self._gradient_of_input, passes=1)

    @property
    def _gradient_of_input(self) -> str:
        return self._key("gradient_of_input", self.width)

    def _pull(self, reads: Sequence[str], written: str, *, passes: int) -> None:
        has_halos = bool(self._halos())
        self._run(
            "pull_aggregate",
            [*reads, self.step.edges],
            [written],
            gathered=passes * self._gathered,
            sent_bytes=self._sent_bytes * (1 if has_halos else passes),
            is_backward=True,
        )

    def _pull_map(self, reads: Sequence[str], writes: Sequence[str]) -> None:
        size = self._parameter_bytes
        gradient = Tensor("gradient_of_parameters", size, self.index, is_result=True)
        writes = [*writes, self.step.add(gradient)]
        self._run("pull_map", reads, writes, flops=2 * self._flops, is_backward=True)
