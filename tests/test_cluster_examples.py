"""The files of `examples/cluster/`, as far as a machine without a cluster can check them."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from jaxgraph.cli.main import app
from jaxgraph.cli.options import check_address
from tests.conftest import ROOT

FOLDER = ROOT / "examples" / "cluster"
VARIABLES = {
    "PARTS": "/data/parts",
    "JAX_COORDINATOR_ADDRESS": "jaxgraph-node-0-0.jaxgraph:29500",
    "JAX_NUM_PROCESSES": "2",
    "JAX_PROCESS_ID": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "1",
}


def kubernetes() -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "kubernetes.yaml").read_text())


def skypilot() -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "skypilot.yaml").read_text())


def script(name: str) -> str:
    """The shell commands of a file."""
    if name == "kubernetes":
        shell, option, text = kubernetes()["spec"]["trainer"]["command"]
        assert [shell, option] == ["bash", "-c"]
        return text
    return skypilot()["run"] if name == "skypilot" else (FOLDER / "slurm.sh").read_text()


def words_of_jaxgraph(text: str) -> list[str]:
    """The words that bash would give to `jaxgraph`, which here is a program that prints them."""
    stub = 'srun() { shift; "$@"; }; jaxgraph() { printf "%s\\0" "$@"; }\n'
    text = text.replace("exec jaxgraph", "jaxgraph")
    done = subprocess.run(
        ["bash", "-c", stub + text],
        env=VARIABLES | {"PATH": "/usr/bin:/bin", "HOME": "/root"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize("name", ["slurm", "kubernetes", "skypilot"])
def test_the_command_of_a_file_is_one_of_the_command_line(name: str):
    command: Any = typer.main.get_command(app)
    words = words_of_jaxgraph(script(name))
    assert words[0] == "launch"
    options = command.commands["launch"].make_context("launch", words[1:]).params
    assert options["command"][0] == "train" and options["num_processes"] == 1
    given = command.commands["train"].make_context("train", options["command"][1:]).params
    assert str(given["partition"]) == "/data/parts" and given["epochs"] == 200
    if name == "slurm":
        assert given["coordinator"] is None
    else:
        check_address(given["coordinator"])
        assert (given["num_processes"], given["process_id"]) == (2, 1)


def test_scripts_are_accepted_by_bash(tmp_path: Path):
    for name in ("slurm", "kubernetes", "skypilot"):
        path = tmp_path / f"{name}.sh"
        path.write_text(script(name))
        subprocess.run(["bash", "-n", str(path)], check=True)


def test_files_ask_for_as_many_machines_as_processes():
    lines = re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", script("slurm"), re.MULTILINE)
    asked = dict(lines)
    assert asked["ntasks-per-node"] == asked["gpus-per-node"]
    assert "--parts 8" in script("slurm") and int(asked["nodes"]) * int(asked["gpus-per-node"]) == 8
    job = kubernetes()
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert job["spec"]["runtimeRef"]["name"] == "jax-distributed"
    assert job["spec"]["trainer"]["numNodes"] == 2 and skypilot()["num_nodes"] == 2
    assert set(skypilot()) <= {
        "name",
        "num_nodes",
        "resources",
        "workdir",
        "file_mounts",
        "setup",
        "run",
    }


def test_the_readme_names_every_file():
    text = (FOLDER / "README.md").read_text()
    files = [path.name for path in FOLDER.iterdir() if path.name != "README.md"]
    assert len(files) == 3 and all(f"`{name}`" in text for name in files)
    assert "was not tried" in text
