"""Tests of the benchmark programs belong to the matrix; `make test` keeps the rehearsal."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.path.name != "test_rehearsal.py":
            item.add_marker(pytest.mark.full)
