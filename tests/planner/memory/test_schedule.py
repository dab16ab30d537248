"""The simulator counts what it can execute and refuses what it cannot."""

import pytest

from jaxgraph.planner.memory.dataflow import Dataflow, Operation, Tensor
from jaxgraph.planner.memory.schedule import Action, MemorySchedule, simulate

SIZED = Dataflow(
    (Tensor("x", 2, on_host=True), Tensor("a", 3), Tensor("b", 5, is_result=True)),
    (Operation("f", ("x",), ("a",)), Operation("b", ("a",), ("b",))),
)


def schedule(flow: Dataflow, text: str) -> MemorySchedule:
    actions = [Action(*each.split()) for each in text.split(", ")]
    return MemorySchedule(flow, tuple(actions))


def test_bytes_are_counted():
    done = simulate(schedule(SIZED, "fetch x, run f, save a, drop x, run b, save b, drop b"), 8)
    assert (done.fetched, done.saved, done.transferred, done.peak) == (2, 8, 10, 8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fetch x, run f, run b, save b", "run b: the device holds 10 bytes of 9"),
        ("run f", "run f: x is not there"),
        ("fetch x, run f, drop a, fetch a", "fetch a: a is not there"),
        ("drop x", "drop x: x is not there"),
        ("fetch x, run f", "does not bring b about"),
        ("fetch x, run f, drop x, run b", "does not bring b about"),
    ],
)
def test_what_cannot_be_done_is_refused(text: str, expected: str):
    with pytest.raises(ValueError, match=expected):
        simulate(schedule(SIZED, text), 9)
