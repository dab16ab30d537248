"""Ctrl-C and SIGTERM end a program with one line; those of a run are tested with `train`."""

import signal
import time
import tomllib

import pytest

from tests.conftest import ROOT
from tests.interpreter import run_alone

MAIN = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which a parent may ignore
from importlib.metadata import EntryPoint
main = EntryPoint('jaxgraph', ENTRY, 'console_scripts').load()
"""


def ended(program: str) -> tuple[int, str]:
    """Exit status and standard error of the program, after `MAIN`."""
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["jaxgraph"]
    result = run_alone(MAIN.replace("ENTRY", repr(entry)) + program)
    assert not result.stdout
    return result.returncode, result.stderr


@pytest.mark.parametrize("at", ["numpy", "typer", "jaxgraph.cli.train"])
def test_ctrl_c_while_the_program_starts_shows_no_traceback(at: str):
    found = ended(f"""
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {at!r}:
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()
sys.meta_path.insert(0, Interrupting())
main()
""")
    assert found == (130, "Interrupted by Ctrl-C.\n")


@pytest.mark.expensive
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_program_that_does_not_listen_is_ended(number: signal.Signals):
    """A compiler gives Python's own handlers no chance to run."""
    started = time.perf_counter()
    status, text = ended(f"""
import ctypes, threading
from jaxgraph.cli import main as module
def app():
    threading.Timer(0.1, os.kill, (os.getpid(), {int(number)})).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {{{int(number)}}})  # of the main thread
    ctypes.CDLL(None).sleep(20)
module.app = app
main()
""")
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    assert (status, text) == (128 + number, f"Interrupted by {name}.\n")
    assert time.perf_counter() - started < 10


def test_a_signal_that_is_to_be_ignored_stays_so_and_handlers_come_back():
    """As a shell script starts a program in the background."""
    status, text = ended("""
from jaxgraph.launch.signals import Signals
got = []
signal.signal(signal.SIGINT, signal.SIG_IGN)
before = signal.getsignal(signal.SIGTERM)
with Signals(got.append):
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
assert got == [signal.SIGTERM] and signal.getsignal(signal.SIGTERM) == before
""")
    assert (status, text) == (0, "")
