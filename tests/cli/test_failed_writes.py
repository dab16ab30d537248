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
    folder = tmp_path / "run"
    options = ["--hidden", "1000", "--epochs", "4", "--checkpoint", str(folder)]
    status, text = run_on_full_disk(200_000, *options)
    assert (status, text.count("\n")) == (2, 1), text
    assert text.startswith(f"Error: {folder / 'epoch-00000004'} could not be written (file too l")


@pytest.mark.slow
def test_a_log_that_cannot_be_written_is_one_line(tmp_path: Path):
    status, text = run_on_full_disk(100, "--epochs", "9", "--process-log", str(tmp_path))
    assert (status, text.count("\n")) == (0, 1), text
    path = tmp_path / "process-0.log"
    assert text == f"Warning: --process-log: {path} ends here (file too large); the run goes on.\n"
