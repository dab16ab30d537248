from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.launch.heartbeat import PHASES, Sign, sign_of
from jaxgraph.launch.watchdog import Standing, stuck

TIMEOUT = 10.0


def test_nobody_is_late():
    standings = [
        Standing("0", "epoch", 3, 0.1, 9.9),
        Standing("1", "compile", 0, 9.9, 10_000),
        Standing("2", "start", 0, -100, 20),
    ]
    assert stuck(standings, TIMEOUT) is None


def test_where_all_stand_together_another_host_is_suspected():
    standings = [Standing("4", "epoch", 3, 0.1, 10.0), Standing("5", "epoch", 3, 0.1, 10.0)]
    message = stuck(standings, TIMEOUT) or ""
    assert message.startswith("process 4, 5: no progress in epoch 3 for 10 s")
    assert message.endswith("a process of another host")


@given(st.integers(0), st.sampled_from(PHASES), st.integers(0))
def test_a_sign_is_read_as_it_was_written(count: int, phase: str, epoch: int):
    assert sign_of(f"{count} {phase} {epoch}") == Sign(count, phase, epoch)


@given(st.text())
def test_what_is_no_sign_is_none(line: str):
    sign = sign_of(line)
    assert sign is None or f"{sign.phase}" in line
