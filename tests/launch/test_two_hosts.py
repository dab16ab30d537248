"""Two hosts, made as network namespaces on this machine, train together over a bad link."""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.runs import LONG, MODEL, SECONDS, in_this_process, losses, partitioned
from tests.launch.two_hosts import ADDRESSES, TwoHosts, two_hosts, why_not
from tests.tolerance import assert_close

pytestmark = pytest.mark.slow
PORT, STEP_TIMEOUT, NODES = 12_345, 20, 120


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with two_hosts() as made:
        yield made


def started_on(hosts: TwoHosts, folder: Path, *options: str, epochs: str) -> list[subprocess.Popen]:
    """Starts the run on both hosts; errors go to `0.txt` and `1.txt`, logs to `logs`."""
    command = ["train", "--partition", str(folder / "sar-2"), *MODEL, "--epochs", epochs]
    command += ["--json", str(folder / "run.json"), "--process-log", str(folder / "logs")]
    command += ["--coordinator", f"{ADDRESSES[0]}:{PORT}", "--num-processes", "2"]
    launch = ["launch", "--step-timeout", str(STEP_TIMEOUT), *options, "--"]
    runs = []
    for host in (0, 1):
        with (folder / f"{host}.txt").open("w") as errors:
            words = [*launch, *command, "--process-id", str(host)]
            runs.append(hosts.start(host, words, errors))
    return runs


def wait_for(path: Path, text: str, times: int = 1) -> None:
    until = time.monotonic() + SECONDS
    while not path.exists() or path.read_text().count(text) < times:
        assert time.monotonic() < until, f"no {text!r} in {path}: {path.read_text()[-2000:]}"
        time.sleep(0.05)


def end(runs: list[subprocess.Popen]) -> None:
    for run in runs:
        run.kill()
        run.wait()


def test_two_hosts_with_a_slow_link_train_as_one_process(hosts: TwoHosts, tmp_path: Path):
    parts = partitioned(tmp_path, 2)
    assert hosts.slow_down()
    runs = started_on(hosts, tmp_path, epochs="12")
    try:
        assert [run.wait(SECONDS) for run in runs] == [0, 0], (tmp_path / "1.txt").read_text()
    finally:
        end(runs)
    alone = str(tmp_path / "alone.json")
    in_this_process("train", "--partition", parts, *MODEL, "--epochs", "12", "--json", alone)
    assert_close(losses(tmp_path / "run.json"), losses(Path(alone)), reduction_length=NODES)


def test_a_cut_link_ends_both_in_time_and_a_mended_one_lets_them_start_again(
    hosts: TwoHosts, tmp_path: Path
):
    partitioned(tmp_path, 2)
    runs = started_on(hosts, tmp_path, "--restarts", "2", epochs=LONG)
    errors = [tmp_path / f"{host}.txt" for host in (0, 1)]
    logs = [tmp_path / "logs" / f"process-{host}.log" for host in (0, 1)]
    try:
        for log in logs:
            wait_for(log, "epoch 3\n")
        hosts.cut()
        began = time.monotonic()
        for path in errors:
            wait_for(path, "All processes are ended.")
        assert time.monotonic() - began < STEP_TIMEOUT * 1.2
        assert "no progress in epoch" in errors[0].read_text() + errors[1].read_text()
        hosts.mend()
        for log in logs:
            wait_for(log, "epoch 3\n", times=2)
        runs[0].send_signal(signal.SIGTERM)
        assert [run.wait(SECONDS) for run in runs] == [143, 143]
    finally:
        end(runs)
    assert len(losses(tmp_path / "run.json")) >= 3
