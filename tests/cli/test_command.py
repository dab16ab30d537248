import math
from dataclasses import dataclass, fields
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from jaxgraph.cli import options
from jaxgraph.cli.command import REQUIRED, Options, command_of, option
from jaxgraph.cli.options import TrainOptions
from jaxgraph.cli.partition import PartitionOptions
from jaxgraph.nn.layer import NORMS

UNLIMITED = (
    "coordinator",
    "dataset",
    "memory_limit",
    "process_memory",
    "option",
    "weight_column",
    "sample",
    "sample_cache",
)
"""Options checked by the registry of data sets, or by a reader of files, bytes or addresses."""


@dataclass(frozen=True, kw_only=True)
class Some(Options):
    count: int = option("How many.", REQUIRED, most=1000)
    mean_degree: float | None = option("Mean.", least=0)
    mode: str = option("Mode", "sar", choices=("sar", "domain"))
    quick: bool = option("Fast.", False)


def run(options: Some) -> None:
    """Counts to a number."""
    if options.count < 0:
        raise ValueError("mean_degree: got a number\nbelow zero")
    if options.count == 130:
        raise KeyboardInterrupt
    if options.count == 0:
        raise RuntimeError("a bug")
    typer.echo(repr(options))


app = typer.Typer()
app.command()(command_of(Some, run))


def test_fields_become_options():
    result = CliRunner().invoke(app, ["--count", "3", "--mean-degree", "0.5", "--quick"])
    assert result.exit_code == 0
    assert (
        result.output.strip()
        == "Some(traceback=False, count=3, mean_degree=0.5, mode='sar', quick=True)"
    )
    shown = CliRunner().invoke(app, ["--help"]).output
    assert "Counts to a number." in shown and "Mode: sar, domain." in shown
    assert "--quick" in shown and "--no-quick" not in shown
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 2 and "--count" in result.output


def test_a_mistake_of_the_caller_is_one_line_and_exit_code_two():
    result = CliRunner().invoke(app, ["--count", "-1"])
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr == "Error: --mean-degree: got a number below zero\n"
    result = CliRunner().invoke(app, ["--count", "-1", "--traceback"])
    assert isinstance(result.exception, ValueError)


def test_a_bug_is_not_dressed_up_as_a_mistake():
    result = CliRunner().invoke(app, ["--count", "0"])
    with pytest.raises(RuntimeError, match="a bug"):
        raise result.exception or AssertionError("no exception")


def test_ctrl_c_is_one_line_and_exit_code_130():
    result = CliRunner().invoke(app, ["--count", "130"])
    assert (result.exit_code, result.stderr) == (130, "Interrupted.\n")


@pytest.mark.parametrize("options", [TrainOptions, PartitionOptions])
def test_every_option_that_is_a_number_or_a_name_has_limits(options: Any):
    for field in fields(options):
        kinds = {field.type, *getattr(field.type, "__args__", ())}
        is_limited = field.metadata["limits"][0] > -math.inf or field.metadata["choices"]
        assert is_limited or not kinds & {int, float, str} or field.name in UNLIMITED, field.name


def test_names_are_those_of_the_library():
    assert set(options._NORMS) == {"none", *NORMS}
