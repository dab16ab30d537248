import re
from dataclasses import fields

import pytest
from typer.testing import CliRunner

import jaxgraph
from jaxgraph.cli.command import option_name
from jaxgraph.cli.main import app
from jaxgraph.cli.options import TrainOptions
from jaxgraph.cli.partition import PartitionOptions
from jaxgraph.cli.plan import PlanOptions
from tests.interpreter import run_alone


def test_without_a_command_the_commands_are_shown():
    result = CliRunner().invoke(app, [])
    for name in ("train", "partition", "datasets", "info"):
        assert name in result.output


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"jaxgraph {jaxgraph.__version__}\n")


WRONG = (
    "--dataset corra",
    "--mode bad",
    "--devices 2",
    "--dtype int8",
    "--model gcm",
    "--lr nan",
    "--epochs 0",
    "--parts 100",
    "--labels-per-class 40",
    "--json /proc/run.json",
)


def test_the_program_does_not_wait_for_jax_to_say_what_is_wrong():
    program = (
        "import sys\n"
        "from jaxgraph.cli.main import app\n"
        f"for wrong in {WRONG!r}:\n"
        "    try:\n"
        "        app(['train', '--dataset', 'karate', *wrong.split()])\n"
        "    except SystemExit as stop:\n"
        "        assert stop.code == 2, (wrong, stop.code)\n"
        "    assert 'jax' not in sys.modules, wrong\n"
    )
    result = run_alone(program)
    assert result.returncode == 0, result.stderr
    assert "did you mean 'cora'?" in result.stderr and "Did you mean 'gcn'?" in result.stderr
    assert result.stderr.count("Error: ") == result.stderr.count("\n") == len(WRONG)


@pytest.mark.parametrize("command", ["train", "partition", "plan"])
def test_the_help_names_every_option(command: str):
    result = CliRunner().invoke(app, [command, "-h"], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    options = {"train": TrainOptions, "partition": PartitionOptions, "plan": PlanOptions}[command]
    shown = set(re.findall(r"--[\w-]+", result.output))
    # `jaxgraph launch` alone gives that option.
    names = {option_name(field.name) for field in fields(options)} - {"--heartbeat-fd"}
    assert names <= shown
