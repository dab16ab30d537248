"""The bytes that mini-batches send: rows of features, or edges and first activations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxgraph.graph import Graph
from jaxgraph.kinds import check_positive, kind_of
from jaxgraph.layout.sample_tables import SampleSizes, block_shapes
from jaxgraph.partition import partition
from jaxgraph.sampling.neighbors import check_method
from jaxgraph.sampling.usual import usual_sizes

KINDS = ("rows", "structure", "forward", "backward")
"""Rows of nodes and requests for them; nodes and edges; partial activations; their gradients."""
_WORD = 4
_OF_ROW = 4 + 4 + 4 + 1
"""Bytes of a row beside its features: the request; label, degree, training mask."""
_OF_SENDER = 4 + 1
"""Bytes of a sender that is pushed: where its columns are, mask."""
_OF_RECEIVER = 4 + 4
"""Bytes of a receiver: degree, its edges over those drawn."""


@dataclasses.dataclass(frozen=True)
class SampledChoice:
    """The bytes that a step on a mini-batch sends in each mode.

    Attributes:
      num_devices: of all hosts.
      method: the partitioner.
      sent: bytes that leave each device, by mode, "domain" and "p3", and by kind: "rows" of nodes,
        "structure" of the first layer, its partial activations "forward", and their gradients
        "backward".
    """

    num_devices: int
    method: str
    sent: Mapping[str, Mapping[str, int]]

    @property
    def total(self) -> dict[str, int]:
        """Bytes of each mode."""
        return {mode: sum(kinds.values()) for mode, kinds in self.sent.items()}

    @property
    def mode(self) -> str:
        """The mode that sends less; "domain" where both send as much."""
        return min(self.total, key=self.total.__getitem__)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("mode", *KINDS, "total")]
        for mode, kinds in self.sent.items():
            counts = [f"{x:,}" for x in (*(kinds[kind] for kind in KINDS), self.total[mode])]
            rows.append((mode, *counts))
        lines = [f"Bytes that leave each of {self.num_devices} device(s) in a step:"]
        lines += [f"{mode:6}" + "".join(f"{x:>15}" for x in numbers) for mode, *numbers in rows]
        return "\n".join([*lines, f"Chosen: {self.mode}"])


def choose_for_samples(
    graph: Graph,
    fanouts: Sequence[int],
    *,
    num_devices: int,
    hidden: int,
    batch_size: int = 1024,
    method: str = "hash",
    sample_method: str = "neighbors",
    seed: int = 0,
) -> SampledChoice:
    """Chooses whether mini-batches pull rows of features, or push edges and pull activations.

    With G devices, F features, H hidden values, N and M senders and receivers of the first layer
    and R rows that a device asks of each other one, bytes leave each device in a step:

        domain: (G - 1) R (4 F + 13)
        p3:     (G - 1) (structure + 5 N + 8 M + 2 * 4 M H) + rows of M without features

    Sizes are those of some batches, padded as a step is compiled for. Bytes are those of GraphSAGE
    in float32; a GCN pushes degrees of senders, too, and attention sends more. The gradient of the
    parameters is left out: it is the same in both.

    Args:
      graph: the graph, with dense features and training nodes.
      fanouts: as for `jaxgraph.sampling.Loader`.
      num_devices: G.
      hidden: H, the width of the first layer's output.
      batch_size: seeds of a batch, of all devices together.
      method: the partitioner.
      sample_method: `method` of the loader.
      seed: of the partition, the order and the draws.

    Returns:
      The bytes of both modes, and the one that sends less.

    Raises:
      ValueError: an argument is of the wrong kind or out of range, or the graph has no features or
        no training nodes.

    References:
      P3, section 3.2.2.
    """
    if not isinstance(graph, Graph):
        raise ValueError(f"graph is {kind_of(graph)}; expected a jaxgraph.Graph")
    if graph.num_features < 1:
        raise ValueError(
            "the graph has no features, which batches would read; give Graph nodes=..."
        )
    check_method(sample_method, name="sample_method")
    check_positive("num_devices", num_devices)
    if num_devices > graph.num_nodes:
        raise ValueError(
            f"num_devices is {num_devices}; expected at most one for each of {graph.num_nodes} "
            "nodes"
        )
    check_positive("batch_size", batch_size)
    check_positive("hidden", hidden)
    parts = partition(graph, num_devices, method=method, seed=seed)
    drawn: dict[str, Any] = {"batch_size": batch_size, "method": sample_method, "seed": seed}
    by_row, by_column = usual_sizes(graph, fanouts, parts, **drawn)
    sent = {
        mode: bytes_sent(sizes, graph.num_features, hidden)
        for mode, sizes in (("domain", by_row), ("p3", by_column))
    }
    return SampledChoice(parts.num_parts, method, sent)


def bytes_sent(
    sizes: SampleSizes, num_features: int, hidden: int, holders: int | None = None
) -> dict[str, int]:
    """Bytes that leave a device in a step, by kind.

    Args:
      sizes: of the samples.
      num_features: of a node.
      hidden: width of the first layer's output.
      holders: devices that hold all columns together; None: all devices.
    """
    features = 0 if sizes.by_column else num_features
    found: dict[str, int] = dict.fromkeys(KINDS, 0)
    found["rows"] = (sizes.parts - 1) * sizes.asked[0] * (_WORD * features + _OF_ROW)
    if not sizes.by_column:
        return found
    block, shapes = sizes.block(0, 0), block_shapes(sizes.block(0, 0))
    # Features have no gradient, so that no device reads the edges by sender.
    words = sum(math.prod(x) for name, x in shapes.items() if name.startswith("by_receiver/"))
    nodes = block.num_senders * _OF_SENDER + block.num_receivers * _OF_RECEIVER
    others = (holders or sizes.parts) - 1
    activations = others * block.num_receivers * hidden * _WORD
    structure = others * (_WORD * words + nodes)
    return found | {"structure": structure, "forward": activations, "backward": activations}
