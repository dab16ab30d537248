import os

from benchmarks.cpu.disturbance import (
    Reading,
    is_disturbed,
    machine_ticks,
    others_seconds,
    process_ticks,
    read,
)


def test_ticks_of_the_machine_are_those_not_idle():
    assert machine_ticks("cpu  100 5 50 1000 20 3 4 2 7 0\ncpu0 1 2 3\n") == 164


def test_ticks_of_a_process_with_blanks_in_its_name():
    fields = " ".join(str(number) for number in range(100, 150))
    assert process_ticks(f"12 (a (b) c) S {fields}") == 110 + 111


def test_others_have_what_is_left():
    before, after = Reading(0.0, 100.0, 10.0), Reading(1.0, 102.0, 11.5)
    assert others_seconds(before, after) == 0.5


def test_a_worker_alone_is_not_disturbed():
    before = Reading(0.0, 100.0, 10.0)
    assert not is_disturbed(before, Reading(1.0, 102.1, 12.0))
    assert is_disturbed(before, Reading(1.0, 102.0, 11.0))
    # Ticks are too coarse for a short time.
    assert not is_disturbed(before, Reading(0.01, 100.02, 10.0))
    assert not is_disturbed(None, before)


def test_reading_this_process():
    found = read(os.getpid())
    assert found is None or 0 < found.process <= found.machine
    assert read(2**30) is None
