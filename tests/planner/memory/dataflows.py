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


def random_dataflow(rng: np.random.Generator, row: int = 0) -> Dataflow:
    """Two to four operations, or `row` of them, each of which reads what the one before wrote."""
    tensors = [Tensor(f"i{k}", int(rng.integers(5)), on_host=True) for k in range(2)]
    operations: list[Operation] = []
    for index in range(row or rng.integers(2, 5)):
        share = 2 / len(tensors) if row else 0.5
        reads = [tensors[k].key for k in np.flatnonzero(rng.random(len(tensors)) < share)]
        if row and operations:
            reads = list(dict.fromkeys([operations[-1].writes[0], *reads]))
        written = [
            Tensor(f"t{index}{k}", int(rng.integers(5)), is_result=bool(rng.random() < 0.2))
            for k in range(rng.integers(1, 3 if len(tensors) < 5 else 2))
        ]
        tensors += written
        operations.append(Operation(f"o{index}", tuple(reads), tuple(each.key for each in written)))
    return Dataflow(tuple(tensors), tuple(operations))


def random_training_step(rng: np.random.Generator) -> Dataflow:
    """Operations in a row, a loss, and a backward that reads some of what they read and wrote."""
    tensors = [Tensor(name, int(rng.integers(1, 4)), on_host=True) for name in ("x", "edges")]
    forward: list[Operation] = []
    for index in range(rng.integers(2, 4)):
        before = f"h{index - 1}" if index else "x"
        forward.append(
            Operation(
                f"f{index}",
                (before, "edges") if rng.random() < 0.5 else (before,),
                (f"h{index}",),
                seconds=float(rng.choice([1, 2, 6])),
                sent_bytes=int(rng.choice([0, 0, 5])),
                is_repeatable=bool(rng.random() < 0.8),
            )
        )
        tensors.append(Tensor(f"h{index}", int(rng.integers(2, 6))))
    gradient = "g"
    tensors.append(Tensor(gradient, 2))
    backward = [Operation("loss", (forward[-1].writes[0],), (gradient,))]
    for index, each in enumerate(reversed(forward)):
        read = [key for key in (*each.reads, *each.writes) if rng.random() < 0.8]
        after = f"g{index}"
        tensors.append(Tensor(after, int(rng.integers(1, 4))))
        backward.append(Operation(f"b{index}", (gradient, *read), (after,), is_backward=True))
        gradient = after
    return Dataflow(tuple(tensors), (*forward, *backward))
