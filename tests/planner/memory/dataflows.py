"""Small dataflows: those of ROC's paper, and random ones."""

import numpy as np

from jaxgraph.planner.memory.dataflow import Dataflow, Operation, Tensor


def chain(length: int = 3) -> Dataflow:
    """x -> t0 -> t1 -> ..., all tensors of size 1."""
    tensors = [Tensor("x", 1, on_host=True), *(Tensor(f"t{i}", 1) for i in range(length))]
    keys = [each.key for each in tensors]
    operations = [Operation(f"o{i}", (keys[i],), (keys[i + 1],)) for i in range(length)]
    return Dataflow(tuple(tensors), tuple(operations))


def figure_3() -> Dataflow:
    """ROC's figure 3: one layer of GIN. Operation 7 reads a, as table 3 has it."""
    inputs = [Tensor(name, 1, on_host=True) for name in ("h0", "g", "w1", "w2")]
    written = [Tensor(name, 1) for name in ("a", "b", "h1", "dh1", "db", "da", "dh0")]
    return Dataflow(
        (*inputs, *written),
        (
            Operation("1", ("h0", "g"), ("a",)),
            Operation("2", ("a", "w1"), ("b",)),
            Operation("3", ("b", "w2"), ("h1",)),
            Operation("4", ("h1",), ("dh1",)),
            Operation("5", ("dh1", "w2", "b"), ("db",)),
            Operation("6", ("db", "w1", "a", "b"), ("da",)),
            Operation("7", ("da", "g", "a"), ("dh0",)),
        ),
    )


def random_dataflow(rng: np.random.Generator) -> Dataflow:
    """Two to four operations."""
    tensors = [Tensor(f"i{k}", int(rng.integers(5)), on_host=True) for k in range(2)]
    operations: list[Operation] = []
    for index in range(rng.integers(2, 5)):
        reads = [tensors[k].key for k in np.flatnonzero(rng.random(len(tensors)) < 0.5)]
        written = [
            Tensor(f"t{index}{k}", int(rng.integers(5)), is_result=bool(rng.random() < 0.2))
            for k in range(rng.integers(1, 3 if len(tensors) < 5 else 2))
        ]
        tensors += written
        operations.append(Operation(f"o{index}", tuple(reads), tuple(each.key for each in written)))
    return Dataflow(tuple(tensors), tuple(operations))
