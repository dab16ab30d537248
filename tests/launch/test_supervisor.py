"""The supervisor, with real processes that are really killed and stopped."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.launch.processes import ended_within, pid_in, supervised

WAIT = "\nheartbeat.enter('epoch', 3)\nnote('NAME')\ntime.sleep(100)\n"


def waiting(name: str, before: str = "") -> str:
    """A program that notes its number as NAME and waits in epoch 3."""
    return before + WAIT.replace("NAME", name)


def test_output_is_prefixed_and_all_that_is_written_is_shown(tmp_path: Path):
    loud = "print('x' * 100_000); print('a\\nb'); print('no end', end='')"
    bad = "sys.stdout.buffer.write(b'\\xff\\n'); print('lost?', file=sys.stderr)"
    with supervised(tmp_path, loud, bad) as run:
        out, error = run.communicate(timeout=60)
    assert run.returncode == 0 and error == "[1] lost?\n"
    of_first = [line[4:] for line in out.splitlines() if line.startswith("[0] ")]
    assert "".join(of_first) == "x" * 100_000 + "ab" + "no end"
    assert "[1] \\xff" in out.splitlines()


def test_lines_of_libraries_about_what_is_as_it_should_be_are_left_out(tmp_path: Path):
    gloo = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is"
    signal_line = "W1129 07:30:48.880992    2843 preemption_notifier.cc:90] SIGTERM caught at 2026"
    others = ["[Gloo] Rank 0 has lost its peer", "E1129 07:30:48.8 1 client.cc:9] preemption"]
    lines = [gloo, others[0], signal_line, others[1], f"epoch of {gloo}"]
    writing = "\n".join(f"print({line!r}); print({line!r}, file=sys.stderr)" for line in lines)
    with supervised(tmp_path, writing) as run:
        out, error = run.communicate(timeout=60)
    expected = [f"[0] {line}" for line in (*others, lines[-1])]
    assert out.splitlines() == expected and error.splitlines() == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status", "message"),
    [
        ("sys.exit(5)", 5, "process 1 ended with exit status 5 in epoch 7"),
        ("sys.exit(2)", 2, "process 1 ended with exit status 2"),
    ],
)
def test_one_end_is_the_end_of_all(end: str, status: int, message: str, tmp_path: Path):
    dying = (
        f"heartbeat.enter('epoch', 7)\nwhile not (folder / '0').exists(): time.sleep(.02)\n{end}"
    )
    with supervised(tmp_path, waiting("0"), dying) as run:
        _, error = run.communicate(timeout=60)
    assert run.returncode == status and message in error
    assert ended_within([pid_in(tmp_path / "0")], 0)


def test_a_grandchild_is_not_left(tmp_path: Path):
    spawn = (
        "import subprocess\nchild = subprocess.Popen(['sleep', '100'])\nnote('s', str(child.pid))\n"
    )
    with supervised(tmp_path, spawn + "sys.exit(3)") as run:
        assert run.wait(60) == 3
    assert ended_within([pid_in(tmp_path / "s")], 5)


@pytest.mark.slow
def test_a_process_that_stops_while_it_compiles_ends_all_in_time(tmp_path: Path):
    stopped = waiting("1").replace("'epoch', 3", "'compile'")
    with supervised(tmp_path, waiting("0"), stopped, step_timeout=4) as run:
        pids = [pid_in(tmp_path / name) for name in "01"]
        os.kill(pids[1], signal.SIGSTOP)
        began = time.monotonic()
        _, error = run.communicate(timeout=60)
        assert time.monotonic() - began < 4 * 1.2
    assert run.returncode == 124
    assert "process 1 is stuck in phase 'compile': it has given no sign of life for" in error
    assert "process 0 is" not in error and ended_within(pids, 0)


@pytest.mark.slow
def test_one_that_stands_is_named_and_others_that_wait_for_it_are_not(tmp_path: Path):
    ahead = waiting("0").replace("'epoch', 3", "'epoch', 4")
    with supervised(tmp_path, ahead, waiting("1"), step_timeout=1.5) as run:
        _, error = run.communicate(timeout=60)
    assert run.returncode == 124 and "process 1 is stuck in epoch 3, where it has been" in error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_all_which_may_save(number: int, tmp_path: Path):
    saving = (
        "def save(number, frame):\n"
        "    time.sleep(0.3)\n"
        "    note('saved NAME')\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n"
    )
    programs = [waiting(name, saving.replace("NAME", name)) for name in "01"]
    with supervised(tmp_path, *programs) as run:
        pids = [pid_in(tmp_path / name) for name in "01"]
        run.send_signal(number)
        assert run.wait(30) == 128 + number
    assert (tmp_path / "saved 0").exists() and (tmp_path / "saved 1").exists()
    assert ended_within(pids, 0)


@pytest.mark.slow
@pytest.mark.parametrize("signals", [1, 2])
def test_those_that_do_not_listen_are_killed(signals: int, tmp_path: Path):
    """After the second signal at once; where nothing is computed yet, soon after the first."""
    deaf = waiting("0", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n")
    if signals == 1:
        deaf = deaf.replace("'epoch', 3", "'compile'")
    with supervised(tmp_path, deaf) as run:
        pids = [pid_in(tmp_path / "0")]
        for _ in range(signals):
            run.send_signal(signal.SIGTERM)
            time.sleep(0.3)
        assert run.wait(10) == 143
    assert ended_within(pids, 0)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_killed_supervisor_leaves_no_process(stopped: bool, tmp_path: Path):
    with supervised(tmp_path, waiting("0"), waiting("1")) as run:
        pids = [pid_in(tmp_path / name) for name in "01"]
        if stopped:
            os.kill(pids[1], signal.SIGSTOP)
        run.kill()
        assert ended_within(pids, 10)


@pytest.mark.slow
def test_a_death_starts_all_again_and_a_mistake_does_not(tmp_path: Path):
    first = "start = int(sys.argv[2])\nnote(f'start {start}')\n"
    dying = first + "\nif start < 2: os.kill(os.getpid(), signal.SIGKILL)\nsys.exit(STATUS)"
    for status, left in ((0, 0), (2, 2)):
        folder = tmp_path / str(status)
        folder.mkdir()
        with supervised(folder, dying.replace("STATUS", str(status)), restarts=3) as run:
            _, error = run.communicate(timeout=60)
        assert run.returncode == left and error.count("starting all again") == 2
        assert sorted(each.name for each in folder.iterdir()) == ["start 0", "start 1", "start 2"]
