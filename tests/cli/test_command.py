from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from jaxgraph.cli.command import command_of, in_option_terms


@dataclass(frozen=True, kw_only=True)
class Options:
    count: Annotated[int, typer.Option(help="How many.")]
    scale: float | None = None


def fail_below_zero(options: Options) -> None:
    """Counts to a number."""
    if options.count < 0:
        raise ValueError("count: got a number\nbelow zero")
    if options.count == 130:
        raise KeyboardInterrupt
    if options.count == 0:
        raise RuntimeError("a bug")
    typer.echo(repr(options))


app = typer.Typer()
app.command()(command_of(Options, fail_below_zero))


def test_fields_become_options():
    result = CliRunner().invoke(app, ["--count", "3", "--scale", "0.5"])
    assert result.exit_code == 0
    assert result.output.strip() == "Options(count=3, scale=0.5)"


def test_the_docstring_is_the_help():
    result = CliRunner().invoke(app, ["--help"])
    assert "Counts to a number." in result.output and "How many." in result.output


def test_a_field_without_default_is_required():
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 2 and "--count" in result.output


def test_a_mistake_of_the_caller_is_one_line_and_exit_code_two():
    result = CliRunner().invoke(app, ["--count", "-1"])
    assert result.exit_code == 2
    assert result.stderr == "Error: --count: got a number below zero\n"
    assert result.stdout == ""


def test_traceback_lets_the_exception_through():
    result = CliRunner().invoke(app, ["--count", "-1", "--traceback"])
    assert isinstance(result.exception, ValueError)


def test_a_bug_is_not_dressed_up_as_a_mistake():
    result = CliRunner().invoke(app, ["--count", "0"])
    with pytest.raises(RuntimeError, match="a bug"):
        raise result.exception or AssertionError("no exception")


def test_ctrl_c_is_one_line_and_exit_code_130():
    result = CliRunner().invoke(app, ["--count", "130"])
    assert (result.exit_code, result.stderr) == (130, "Interrupted by Ctrl-C.\n")


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("num_parts: got 9. Use num_parts=4.", "--parts: got 9. Use --parts 4."),
        ("order is 'x'; order=None keeps it", "--order is 'x'; leaving out --order keeps it"),
        ("the order of nodes, in order", "the order of nodes, in order"),
        ("no file /num_parts/num_parts.txt", "no file /num_parts/num_parts.txt"),
        (
            "expected bool [num_parts]: zeros(num_parts)",
            "expected bool [num_parts]: zeros(num_parts)",
        ),
        ("num_parts + val = 3, by method='metis'", "--parts + val = 3, by --method metis"),
    ],
)
def test_errors_of_the_library_name_options(message: str, shown: str):
    names = {"num_parts": "--parts", "order": "--order", "method": "--method"}
    assert in_option_terms(message, names) == shown
