import platform
from typing import Any

import jax
import pytest
from typer.testing import CliRunner

from jaxgraph import datasets, ops
from jaxgraph.cli.info import versions
from jaxgraph.cli.main import app
from jaxgraph.ops import registry


def test_versions_name_what_a_report_needs():
    found = versions()
    assert found["python"] == platform.python_version() and found["jax"] == jax.__version__
    assert all(found.values())


@pytest.fixture(scope="module")
def output() -> str:
    result = CliRunner().invoke(app, ["info", "--check"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_devices_are_listed(output: str):
    assert output.count(" cpu ") >= jax.device_count()


@pytest.mark.slow
def test_every_implementation_is_listed_with_its_self_check(output: str):
    assert output.count("ok") >= sum(each.available for each in ops.implementations()) > 0
    for each in ops.implementations():
        assert each.op in output and each.name in output


def test_a_failed_self_check_is_an_exit_code(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry, "check", lambda *_: "failed: 2 instead of 1")
    result = CliRunner().invoke(app, ["info", "--check"], env={"COLUMNS": "160"})
    assert result.exit_code == 1 and "failed: 2 instead of 1" in result.output


def test_self_checks_run_only_where_asked_for(monkeypatch: pytest.MonkeyPatch):
    def checked(*_: Any) -> str:
        raise AssertionError("a self-check ran")

    monkeypatch.setattr(registry, "check", checked)
    result = CliRunner().invoke(app, ["info"], env={"COLUMNS": "160"})
    assert result.exit_code == 0 and "see --check" in result.output


def test_every_dataset_is_listed_on_a_line_of_its_own():
    result = CliRunner().invoke(app, ["datasets"])
    assert result.exit_code == 0
    assert tuple(result.output.split()) == datasets.names()
