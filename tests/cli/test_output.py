import io
import json
import sys
from pathlib import Path

import pytest

from jaxgraph.cli.display import Output, tolerate_other_encodings
from tests.interpreter import run_alone


def test_without_a_reader_output_is_dropped_and_files_are_written(tmp_path: Path):
    """`jaxgraph datasets | head -1`, and `jaxgraph partition --json FILE | tee log` without tee."""
    path = tmp_path / "report.json"
    arguments = ["partition", "--dataset", "karate", "--parts", "2", "--json", str(path)]
    program = (
        "import os\n"
        "from jaxgraph.cli.main import app\n"
        f"for arguments in (['datasets'], {arguments!r}):\n"
        "    reading, writing = os.pipe()\n"
        "    os.dup2(writing, 1), os.close(writing), os.close(reading)\n"
        "    try:\n"
        "        app(arguments)\n"
        "    except SystemExit as stop:\n"
        "        assert stop.code == 0, (arguments, stop.code)\n"
    )
    result = run_alone(program)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(path.read_text())["graph"]["nodes"] == 34


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_an_encoding_lacks_are_escaped(
    monkeypatch: pytest.MonkeyPatch, encoding: str
):
    bytes_out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(bytes_out, encoding=encoding))
    tolerate_other_encodings()
    Output().print("graph \u2192 x")
    sys.stdout.flush()
    assert bytes_out.getvalue().decode(encoding).strip() == "graph \\u2192 x"
