"""The command line as tests run it, in this process."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from jaxgraph.cli.main import app


def run(*arguments: str) -> str:
    """Returns the output of a command that succeeds."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def written(out: Path, *arguments: str) -> Any:
    """Returns the JSON that a command that succeeds writes to a path."""
    run(*arguments, "--json", str(out))
    return json.loads(out.read_text())


def refused(*arguments: str, **environment: str) -> str:
    """Returns the line of a command that refuses its arguments."""
    result = CliRunner().invoke(app, list(arguments), env=environment)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
    return result.stderr
