from typer.testing import CliRunner

from jaxgraph import datasets
from jaxgraph.cli.main import app


def test_every_name_is_listed_on_a_line_of_its_own():
    result = CliRunner().invoke(app, ["datasets"])
    assert result.exit_code == 0
    assert tuple(result.output.split()) == datasets.names()
