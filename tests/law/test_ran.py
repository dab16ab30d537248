"""A tier whose laws did not all run fails, and says which."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests import tiers
from tests.conftest import ROOT
from tests.law.ran import LAW, LAWS, LEAST, RanLaws, matrix_case
from tests.law.table import PAIRS


def report(*properties: tuple[str, Any], outcome: str = "passed") -> Any:
    return SimpleNamespace(when="call", passed=outcome == "passed", user_properties=properties)


def ran(cases: Any, least: int | None = None) -> RanLaws:
    """The count after these cases of the matrix, and after enough cases of each law."""
    seen = RanLaws(required=True)
    for case in cases:
        seen.pytest_runtest_logreport(report(matrix_case(case)))
    for law, count in LEAST.items():
        for _ in range(count if least is None else least):
            seen.pytest_runtest_logreport(report((LAW, law)))
    return seen


def exit_status(seen: RanLaws) -> int:
    session: Any = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    seen.pytest_sessionfinish(session)
    return session.exitstatus


def test_a_tier_passes_where_all_laws_ran() -> None:
    seen = ran(PAIRS)
    assert seen.missing() == [] and exit_status(seen) == pytest.ExitCode.OK
    assert LEAST.keys() == LAWS.keys() and len(PAIRS) <= 56


@pytest.mark.parametrize("left_out", [PAIRS[0], PAIRS[len(PAIRS) // 2]])
def test_a_case_that_did_not_run_or_failed_fails_the_tier(left_out: Any) -> None:
    seen = ran(case for case in PAIRS if case != left_out)
    failed = report(matrix_case(left_out), outcome="failed")
    seen.pytest_runtest_logreport(failed)
    (text,) = seen.missing()
    assert "pairs of values met in no case that ran" in text
    assert exit_status(seen) == pytest.ExitCode.TESTS_FAILED


def test_a_law_of_which_too_few_cases_ran_fails_the_tier() -> None:
    seen = ran(PAIRS, least=0)
    assert len(seen.missing()) == len(LEAST)
    assert exit_status(seen) == pytest.ExitCode.TESTS_FAILED


def test_a_run_of_a_few_files_requires_no_law() -> None:
    assert exit_status(RanLaws(required=False)) == pytest.ExitCode.OK


def test_the_tables_of_tiers_name_files_and_folders_that_are_there() -> None:
    named = (*tiers.HOST, *tiers.SLOW, *tiers.INTERFACES)
    files = {name.partition("::")[0] for name in named}
    assert [name for name in files if not (ROOT / "tests" / name).exists()] == []
