from typer.testing import CliRunner

from jaxgraph.cli.main import app
from tests.interpreter import run_alone


def test_without_a_command_the_commands_are_shown():
    result = CliRunner().invoke(app, [])
    for name in ("train", "partition", "datasets", "info"):
        assert name in result.output


def test_the_program_does_not_wait_for_jax_to_say_what_is_wrong():
    program = (
        "import sys\n"
        "from jaxgraph.cli.main import app\n"
        "try:\n"
        "    app(['train', '--dataset', 'corra', '--parts', '4'])\n"
        "except SystemExit as stop:\n"
        "    assert stop.code == 2, stop.code\n"
        "assert 'jax' not in sys.modules\n"
    )
    result = run_alone(program)
    assert result.returncode == 0, result.stderr
    assert "did you mean 'cora'?" in result.stderr
