"""The simulator counts what it can execute and refuses what it cannot."""

import pytest

from jaxgraph.planner.memory.dataflow import Dataflow, Operation, Tensor
from jaxgraph.planner.memory.schedule import Action, Line, MemorySchedule, Step, simulate
from tests.planner.memory.dataflows import chain

SIZED = Dataflow(
    (Tensor("x", 2, on_host=True), Tensor("a", 3), Tensor("b", 5, is_result=True)),
    (
        Operation("f", ("x",), ("a",), seconds=7.0, sent_bytes=11),
        Operation("b", ("a",), ("b",), is_backward=True),
    ),
)


def schedule(flow: Dataflow, text: str) -> MemorySchedule:
    actions = [Action(*each.split()) for each in text.split(", ")]
    return MemorySchedule(flow, tuple(actions))


def test_bytes_time_and_traffic_are_counted():
    done = simulate(
        schedule(SIZED, "fetch x, run f, save a, drop a, run f, drop x, run b, save b, drop b"), 8
    )
    assert (done.fetched, done.saved, done.transferred, done.peak) == (2, 8, 10, 8)
    assert (done.repeated_seconds, done.repeated_sent_bytes) == (7.0, 11)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fetch x, run f, run b, save b", "when b runs, the device holds 10 bytes of 9"),
        ("run f", "f reads x, which is not on the device"),
        ("fetch x, run f, drop a, fetch a", "a is fetched, but the host has no copy; save it"),
        ("drop x", "drop x: it is not on the device"),
        ("save a", "save a: it is not on the device"),
        ("fetch x, run f", "does not run b"),
        ("fetch x, run f, drop x, run b", "does not save b, a result"),
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


def test_a_tensor_is_saved_when_it_is_dropped_and_read_again():
    first, second = SIZED.operations
    dropped = MemorySchedule.of_steps(
        SIZED, [Step(first, frozenset()), Step(second, frozenset("a"))]
    )
    expected = "fetch x, run f, drop x, save a, drop a, fetch a, run b, drop a, save b, drop b"
    assert dropped == schedule(SIZED, expected)
    assert list(dropped.lines()) == [
        Line("f", (), (), ("x",), ()),
        Line("b", ("a",), ("x", "a"), ("a",), ()),
    ]


def test_a_tensor_that_is_computed_again_is_not_saved():
    first, second = SIZED.operations
    repeated = MemorySchedule.of_steps(
        SIZED, [Step(each, frozenset()) for each in (first, first, second)]
    )
    assert repeated == schedule(
        SIZED, "fetch x, run f, drop a, run f, drop x, run b, drop a, save b, drop b"
    )
