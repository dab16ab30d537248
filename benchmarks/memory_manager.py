"""Transfers of ROC's memory manager against no cache and least recently used, as its figure 10.

A training step of GCN on one device, from counts of the graph alone: Reddit's 232,965 nodes,
114,848,857 edges of 4 bytes, 602 features and 41 classes, in float32. Capacities go from the least
that works (share 0), where the largest operation fits alone, to the most that a step uses (1).
Bytes are those between host and device in both directions; every schedule is executed by the
simulator, which checks it. "write-back" is a least-recently-used cache that knows no future: it
saves every tensor that it drops. "LRU" knows the tensors that no later operation reads.

    python -m benchmarks.memory_manager
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.command_line import make_parser, report
from jaxgraph.planner.memory.cache_policies import check_capacity, least_recently_used
from jaxgraph.planner.memory.dataflow import Dataflow, Operation, Tensor
from jaxgraph.planner.memory.dynamic_program import least_transfer
from jaxgraph.planner.memory.schedule import Action, MemorySchedule, Step, simulate

NODES, EDGES, FEATURES, CLASSES, EDGE_BYTES = 232_965, 114_848_857, 602, 41, 4
_NUMBER_BYTES = 4
"""Of a feature, and of a label."""


def no_cache(dataflow: Dataflow, capacity: int) -> MemorySchedule:
    """Has every operation fetch its inputs and save its outputs, as NeuGraph streams them.

    References:
      Ma et al., "NeuGraph: parallel deep neural network computation on large graphs", 2019.
    """
    check_capacity(dataflow, capacity)
    everything = frozenset(dataflow.bytes)
    return MemorySchedule.of_steps(
        dataflow, [Step(operation, everything) for operation in dataflow.operations]
    )


def write_back_cache(dataflow: Dataflow, capacity: int) -> MemorySchedule:
    """Drops the least recently used tensor, and saves it unless the host has it.

    This cache does not know the future: it keeps, and saves, tensors that nothing will read.
    Arguments as `least_recently_used`.
    """
    check_capacity(dataflow, capacity)
    results = {each.key for each in dataflow.tensors if each.is_result}
    on_host = {each.key for each in dataflow.tensors if each.on_host}
    on_device: dict[str, None] = {}  # the least recently used first
    actions = []

    def save(key: str) -> None:
        if key not in on_host:
            actions.append(Action("save", key))
            on_host.add(key)

    for operation in dataflow.operations:
        needed = operation.tensors
        for key in [key for key in on_device if key not in needed]:
            if dataflow.size(needed | on_device.keys()) <= capacity:
                break
            save(key)
            del on_device[key]
            actions.append(Action("drop", key))
        actions += [Action("fetch", key) for key in operation.reads if key not in on_device]
        actions.append(Action("run", operation.name))
        for key in (*operation.reads, *operation.writes):
            on_device.pop(key, None)
            on_device[key] = None
    for key in on_device:
        if key in results:
            save(key)
    return MemorySchedule(dataflow, tuple(actions))


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


BASELINES = {
    "no cache": no_cache,
    "write-back": write_back_cache,
    "LRU": least_recently_used,
}


def measure(layers: int, hidden: int, shares: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Plans one model at capacities from the least (0) to the most (1)."""
    widths = (FEATURES, *[hidden] * (layers - 1), CLASSES)
    flow = gcn_step(NODES, EDGES, widths, EDGE_BYTES)
    least, _ = flow.least_capacity()
    everything = sum(flow.bytes.values())
    most = simulate(least_recently_used(flow, everything), everything).peak
    for share in shares:
        capacity = int(least + share * (most - least))
        planned = simulate(least_transfer(flow, capacity), capacity).transferred
        moved = {
            name: simulate(schedule(flow, capacity), capacity).transferred
            for name, schedule in BASELINES.items()
        }
        yield {
            "layers": layers,
            "hidden": hidden,
            "share": share,
            "capacity": capacity,
            "ROC": planned,
            **moved,
            **{f"{name} / ROC": size / planned for name, size in moved.items()},
        }


def conclusions(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The range of each ratio, in sentences."""
    for name in BASELINES:
        ratios = sorted(row[f"{name} / ROC"] for row in rows)
        low, middle, high = (f"{ratios[at]:.2f}" for at in (0, len(ratios) // 2, -1))
        yield f"{name}: {low} to {high} times ROC's bytes, {middle} in the middle"


def main() -> None:
    """Reads the command line, plans and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--hidden", type=int, nargs="+", default=[16, 32, 64, 128, 256])
    parser.add_argument("--shares", type=float, nargs="+", default=[0, 0.25, 0.5, 0.75, 0.95])
    options = parser.parse_args()
    rows = [
        row
        for layers in options.layers
        for hidden in options.hidden
        for row in measure(layers, hidden, options.shares)
    ]
    report("Bytes between host and device per step of GCN on Reddit", rows, options.json)
    print(*conclusions(rows), sep="\n")


if __name__ == "__main__":
    main()
