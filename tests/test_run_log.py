"""The file of a log: read while it grows, after its writer is killed, and where it is no log."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxgraph.run_log import append_line, check_log, read_log
from tests.conftest import ROOT

WRITER = """
import sys
import time
from pathlib import Path
from jaxgraph.run_log import append_line
path, epoch = Path(sys.argv[1]), 0
while True:
    epoch += 1
    append_line(path, f'{{"epoch": {epoch}, "loss": {1 / epoch}, "text": "{"x" * 5000}"}}')
    print(epoch, flush=True)
    time.sleep(0.005)
"""


def log_of(path: Path, *epochs: int, loss: float = 1.0) -> Path:
    for epoch in epochs:
        append_line(path, json.dumps({"epoch": epoch, "loss": loss}))
    return path


def epochs(path: Path) -> list[int]:
    return [line["epoch"] for line in read_log(path)]


def test_a_killed_writer_leaves_every_epoch_that_it_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    last = 0
    for rounds in range(3):
        command = [sys.executable, "-c", WRITER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
            assert process.stdout is not None
            while last < 20 * (rounds + 1):
                last = int(process.stdout.readline())
                # Readable while it is written: the line of every epoch that ended is there.
                assert epochs(path)[:last] == list(range(1, last + 1))
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        found = epochs(path)
        assert found == list(range(1, len(found) + 1)) and len(found) >= last
        last = 0


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_an_unfinished_line_is_not_read_and_not_kept(tmp_path: Path, cut: int) -> None:
    path = log_of(tmp_path / "run.jsonl", 1, 2, 3)
    path.write_bytes(path.read_bytes()[:-cut])
    check_log("path", path)
    assert epochs(path) == [1, 2]
    assert epochs(log_of(path, 3, 4)) == [1, 2, 3, 4]


def test_a_file_of_one_unfinished_line_is_a_log(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"epo')
    check_log("path", path)
    assert epochs(log_of(path, 1)) == [1]


def test_repeated_epochs_replace_those_before_and_all_after(tmp_path: Path) -> None:
    path = log_of(tmp_path / "run.jsonl", 1, 2, 3, 4, 5)
    log_of(path, 3, 4, loss=2.0)
    assert [(x["epoch"], x["loss"]) for x in read_log(path)] == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert epochs(log_of(path, 1)) == [1]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("# Notes\n", "'# Notes'"),
        ('{"loss": 1}\n', "is not the line of an epoch"),
        ('{"epoch": "one"}\n', "is not the line of an epoch"),
        ("[1]\n", "line 1"),
        ("\xff\n", "line 1"),
        ("[" * 100_000 + "\n", "line 1"),
    ],
)
def test_what_is_no_log_is_refused_and_stays(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "notes"
    path.write_text(text, "latin-1")
    with pytest.raises(ValueError, match=r"--log: .* exists and is no log of training"):
        check_log("--log", path)
    with pytest.raises(ValueError, match=fault):
        read_log(path)
    assert path.read_text("latin-1") == text


def test_places_without_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--log: .* is a folder"):
        check_log("--log", tmp_path)
    with pytest.raises(ValueError, match=r"there is no folder .*missing; make it first"):
        check_log("--log", tmp_path / "missing" / "run.jsonl")
    check_log("--log", tmp_path / "new.jsonl")
    assert not any(tmp_path.iterdir())
