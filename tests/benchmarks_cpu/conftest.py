"""Tests of the benchmark programs belong to the matrix; `make test` keeps one rehearsal of all."""

from pathlib import Path

import pytest

IN_SHORT = ("test_main.py", "test_plan.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.path.name not in IN_SHORT:
            item.add_marker(pytest.mark.full)
