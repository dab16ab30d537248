import os
import signal
import time
import tomllib

import pytest

from jaxgraph.cli import interruption
from jaxgraph.cli.interruption import Interrupted, Signals
from tests.conftest import ROOT
from tests.interpreter import run_alone


def send(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0.1)  # the thread that reads signals is another


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_before_the_first_epoch_a_signal_raises(number: int, status: int):
    with pytest.raises(Interrupted) as caught, Signals():
        send(number)
    assert caught.value.status == status


def test_after_it_the_first_signal_waits_for_the_epoch_and_the_second_does_not(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    ended: list[int] = []
    monkeypatch.setattr(interruption, "_end", lambda number, line: ended.append(number))
    before = signal.getsignal(signal.SIGINT)
    with Signals() as signals:
        signals.epochs_begin()
        signals.epoch_ended()
        send(signal.SIGINT)
        assert not ended and capfd.readouterr().err.startswith("Ending after this epoch")
        with pytest.raises(Interrupted):
            signals.epoch_ended()
        send(signal.SIGTERM)
    assert ended == [signal.SIGTERM] and signal.getsignal(signal.SIGINT) == before


def test_a_signal_that_is_to_be_ignored_stays_so():
    """As a shell script starts a program in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Signals() as signals:
            send(signal.SIGINT)
            assert signals.received is None
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("begun", "message"),
    [
        ("", "Interrupted by Ctrl-C.\n"),
        ("signals.compilation_begins()", "Interrupted by Ctrl-C.\n"),
        (
            "signals.epochs_begin(); again()",
            "Ending after this epoch; Ctrl-C again ends at once, and saves nothing.\n"
            "Ended at once.\n",
        ),
    ],
)
def test_a_program_that_does_not_listen_is_ended(begun: str, message: str):
    """A compiler, or a long epoch, gives Python's own handlers no chance to run."""
    program = (
        "import ctypes, os, signal, threading\n"
        "from jaxgraph.cli import interruption\n"
        "interruption._GRACE_SECONDS = 0.1\n"
        "def again(after=0.3):\n"
        "    threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "with interruption.Signals() as signals:\n"
        "    again(0.1)\n"
        f"    {begun}\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"  # of the main thread
        "    ctypes.CDLL(None).sleep(20)\n"
    )
    started = time.perf_counter()
    result = run_alone(program)
    assert (result.returncode, result.stderr) == (130, message)
    assert time.perf_counter() - started < 10


@pytest.mark.parametrize("at", ["numpy", "typer", "jaxgraph.cli.train"])
def test_ctrl_c_while_the_program_starts_shows_no_traceback(at: str):
    program = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {at!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from importlib.metadata import EntryPoint\n"
        "EntryPoint('jaxgraph', ENTRY, 'console_scripts').load()()\n"
    )
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["jaxgraph"]
    result = run_alone(program.replace("ENTRY", repr(entry)))
    assert (result.returncode, result.stderr) == (130, "Interrupted by Ctrl-C.\n")
    assert not result.stdout


@pytest.mark.parametrize("ignored", [True, False])
def test_a_command_hears_ctrl_c_as_an_exception_and_afterwards_it_ends_quietly(ignored: bool):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    outside = signal.SIG_IGN if ignored else interruption._end_at_once
    inside = signal.SIG_IGN if ignored else signal.default_int_handler
    try:
        interruption.end_quietly()
        assert signal.getsignal(signal.SIGINT) == outside
        with interruption.raised():
            assert signal.getsignal(signal.SIGINT) == inside
        assert signal.getsignal(signal.SIGINT) == outside
    finally:
        signal.signal(signal.SIGINT, before)
