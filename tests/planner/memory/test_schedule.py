"""The simulator counts what it can execute and refuses what it cannot."""

import pytest

from jaxgraph.planner.memory.dataflow import Dataflow, Operation, Tensor
from jaxgraph.planner.memory.schedule import Action, MemorySchedule, Step, simulate
from tests.planner.memory.dataflows import chain

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


def test_steps_become_actions():
    flow = chain()
    steps = [Step(each, frozenset()) for each in flow.operations]
    text = "fetch x, run o0, drop x, run o1, drop t0, run o2, drop t1, drop t2"
    assert MemorySchedule.of_steps(flow, steps) == schedule(flow, text)
    first, second = SIZED.operations
    dropped = MemorySchedule.of_steps(
        SIZED, [Step(first, frozenset()), Step(second, frozenset("a"))]
    )
    expected = "fetch x, run f, drop x, save a, drop a, fetch a, run b, drop a, save b, drop b"
    assert dropped == schedule(SIZED, expected)
