"""A full disk ends a command, or its log, with one line."""

from pathlib import Path

import pytest

from tests.interpreter import run_alone

PROGRAM = """
import resource, signal, sys
from jaxgraph.cli.entry import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES, BYTES))
sys.argv[1:] = ARGS
main()
"""
TRAIN = ["train", "--dataset", "karate", "--layers", "2"]


def run_on_full_disk(size: int, *arguments: str) -> tuple[int, str]:
    """Exit status and standard error where no file may have more bytes."""
    program = PROGRAM.replace("BYTES", str(size)).replace("ARGS", repr([*TRAIN, *arguments]))
    result = run_alone(program)
    return result.returncode, result.stderr


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_written_is_one_line(tmp_path: Path):
    folder, log = tmp_path / "run", tmp_path / "log"
    options = ["--hidden", "1000", "--epochs", "4", "--checkpoint", str(folder)]
    status, text = run_on_full_disk(200_000, *options, "--process-log", str(log))
    assert (status, text.count("\n")) == (2, 1), text
    assert text.startswith(f"Error: {folder / 'epoch-00000004'} could not be written (file too l")
    assert "Traceback" in (log / "process-0.log").read_text()


@pytest.mark.slow
def test_a_log_that_cannot_be_written_is_one_line(tmp_path: Path):
    status, text = run_on_full_disk(100, "--epochs", "9", "--process-log", str(tmp_path))
    assert (status, text.count("\n")) == (0, 1), text
    path = tmp_path / "process-0.log"
    assert text == f"Warning: --process-log: {path} ends here (file too large); the run goes on.\n"


def test_other_warnings_and_errors_of_threads_are_shown():
    program = """
import logging
from jaxgraph.cli.process_group import keep_failed_writes_off_terminal
keep_failed_writes_off_terminal()
logging.getLogger("other").warning("a warning")
class Left:
    def __init__(self, text):
        self.text = text
    def __del__(self):
        raise RuntimeError(self.text)
for text in ("Event loop is closed", "another error"):
    Left(text)
"""
    text = run_alone(program).stderr
    assert "a warning\n" in text and "another error" in text and "Event loop" not in text
