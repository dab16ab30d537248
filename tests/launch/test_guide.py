"""The commands of the sections "Many hosts" run, with local processes in place of hosts."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.launch.processes import started
from tests.launch.runs import ENVIRONMENT, PROGRAM, in_this_process, losses, succeeded
from tests.ports import free_port
from tests.tolerance import assert_close

TASKS = 2


def commands(document: str = "docs/guide.md") -> list[list[str]]:
    """The indented lines of the section, as lists of words."""
    text = (ROOT / document).read_text()
    section = re.search(r"^## Many hosts\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    return [shlex.split(line) for line in re.findall(r"^    (.*)$", section[1], re.MULTILINE)]


def local(words: list[str], folder: Path, port: int) -> list[str]:
    """A command of `jaxgraph` with the files and the address of a test."""
    names = {"PARTS": "parts", "RUN": "run", "run.json": "run.json"}
    places = {word: str(folder / name) for word, name in names.items()}
    address = {"HOST:12345": f"127.0.0.1:{port}"}
    assert words[0] == "jaxgraph"
    return [(places | address).get(word, word) for word in words[1:]]


def start(arguments: list[str], **environment: str) -> subprocess.Popen[str]:
    return started([*PROGRAM, *arguments], ENVIRONMENT | environment)


def slurm(task: int, port: int) -> dict[str, str]:
    """The environment that srun gives to a task."""
    return {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_NTASKS": str(TASKS),
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": str(task),
        "JAX_COORDINATOR_PORT": str(port),
    }


@pytest.mark.slow
def test_every_command_of_the_guide_runs(tmp_path: Path):
    partition, launch, *by_hand, srun = commands()
    assert [len(by_hand), srun[0]] == [2, "srun"]
    in_this_process(*local(partition, tmp_path, 0))
    succeeded(start(local(launch, tmp_path, 0)))
    of_one = tmp_path / "one.json"
    parts = str(tmp_path / "parts")
    in_this_process("train", "--partition", parts, "--epochs", "20", "--json", str(of_one))
    assert_close(losses(tmp_path / "run.json"), losses(of_one), reduction_length=2_000)

    port, further = free_port(), ["--epochs", "20", "--json", str(tmp_path / "hosts.json")]
    hosts = [start([*local(words, tmp_path, port), *further]) for words in by_hand]
    shown = [succeeded(host)[0] for host in hosts]
    assert "[0] " in shown[0] and not shown[1]
    assert_close(losses(tmp_path / "hosts.json"), losses(of_one), reduction_length=2_000)

    port, further[-1] = free_port(), str(tmp_path / "tasks.json")
    words = [*local(srun[srun.index("jaxgraph") :], tmp_path, 0), *further]
    tasks = [start(words, **slurm(task, port)) for task in range(TASKS)]
    shown = [succeeded(task)[0] for task in tasks]
    assert "[0] " in shown[0] and not shown[1]
    assert_close(losses(tmp_path / "tasks.json"), losses(of_one), reduction_length=2_000)


@pytest.mark.slow
def test_the_commands_of_the_readme_run(tmp_path: Path):
    partition, launch = commands("README.md")
    in_this_process(*local(partition, tmp_path, 0))
    succeeded(start(local(launch, tmp_path, 0)))
    assert (tmp_path / "run" / "epoch-00000020").is_file()
