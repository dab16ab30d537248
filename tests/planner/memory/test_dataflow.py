"""What a dataflow refuses, and its sizes."""

import pytest

from jaxgraph.planner.memory.dataflow import Dataflow, Operation, Rates, Tensor
from tests.planner.memory.dataflows import figure_3

X, Y = Tensor("x", 3, on_host=True), Tensor("y", 4)


@pytest.mark.parametrize(
    ("tensors", "operations", "expected"),
    [
        ((X, X), (), "tensor 'x' occurs twice"),
        ((X, Y), (Operation("o", ("x",), ("y",)),) * 2, "operation 'o' occurs twice"),
        ((X,), (Operation("o", ("x",), ("y",)),), "names the tensor 'y'; add it"),
        ((X, Y), (Operation("o", ("y",), ()),), "reads 'y', which no operation before it writes"),
        (
            (X, Y),
            (Operation("o", ("x",), ("y",)), Operation("p", (), ("y",))),
            "p writes 'y', which is there already",
        ),
        ((X, Y), (Operation("o", (), ("x",)),), "o writes 'x', which is there already"),
    ],
)
def test_a_dataflow_is_checked(tensors, operations, expected: str):
    with pytest.raises(ValueError, match=expected):
        Dataflow(tensors, operations)


def test_sizes_and_times_and_rates_are_checked():
    with pytest.raises(ValueError, match=r"mapped\[2\] has -1 bytes; expected a whole number"):
        Tensor("mapped", -1, 2)
    with pytest.raises(ValueError, match="seconds of o is nan; expected >= 0"):
        Operation("o", (), (), seconds=float("nan"))
    with pytest.raises(ValueError, match="the rate host is 0; expected a positive number"):
        Rates(1, 1, 0, 1)


def test_the_largest_operation_is_the_least_capacity():
    least, operation = figure_3().least_capacity()
    assert (least, operation.name) == (5, "6")
