"""A pytest plugin: counts the cases of each law that ran, and fails a tier that misses some.

Tests say which law they are of, `@pytest.mark.law(number)`; cases of the matrix record themselves.
Only what has passed counts, so that no option, path or skip can leave a law out unnoticed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from jaxgraph.ops.cpu.library import missing
from tests.covering import meetings
from tests.law.table import CASES, FACTORS, Case

LAW, MATRIX = "law", "law matrix"

LAWS = {
    1: "models in every mode equal the float64 oracle",
    2: "values and gradients of every op are the float64 oracle's",
    3: "relabelled nodes permute the output",
    4: "every edge is owned once, tables of rows are inverse to each other",
    5: "the loss curve does not change with the number of devices",
    6: "memory and traffic are what the plan says",
    7: "killed and resumed, training ends with the same parameters",
}
LEAST = {1: 89, 2: 18 if missing() else 33, 3: 1, 4: 133, 5: 9, 6: 1, 7: 2}
"""The cases of each law that `make test` has."""
PAIRS_OF_VALUES = frozenset[Any]().union(*(meetings(case, 2) for case in CASES))


def matrix_case(case: Case) -> tuple[str, tuple[Any, ...]]:
    """The property that a test of the matrix records after its last assertion."""
    return MATRIX, tuple(case)


class RanLaws:
    """The cases that have passed, counted in the process that gathers all reports."""

    def __init__(self, required: bool) -> None:
        self.required = required
        self.laws: Counter[int] = Counter()
        self.cases: set[Case] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" or not report.passed:
            return
        properties: list[tuple[str, Any]] = list(report.user_properties)
        for name, value in properties:
            if name == LAW:
                self.laws[value] += 1
            elif name == MATRIX:
                self.cases.add(Case(*value))

    def missing(self) -> list[str]:
        """One sentence for each law that was not kept."""
        found = [
            f"law {law}: {self.laws[law]} cases ran, of at least {least}"
            for law, least in LEAST.items()
            if self.laws[law] < least
        ]
        unmet = PAIRS_OF_VALUES.difference(*(meetings(case, 2) for case in self.cases))
        if unmet:
            (_, one), (_, other) = min(unmet, key=str)
            example = f"such as {one} with {other}"
            found.append(f"matrix: {len(unmet)} pairs of values met in no case that ran, {example}")
        return found

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not (self.required or self.laws):
            return
        terminalreporter.section("laws: cases that ran")
        for law, text in LAWS.items():
            terminalreporter.write_line(f"{law}  {self.laws[law]:4d}  {text}")
        if self.cases or self.required:
            self._write_matrix(terminalreporter)
        for each in self.missing() if self.required else ():
            terminalreporter.write_line(f"MISSING {each}", red=True)

    def _write_matrix(self, terminalreporter: Any) -> None:
        terminalreporter.write_line(f"matrix of law 1: {len(self.cases)} cases")
        for at, (factor, values) in enumerate(FACTORS.items()):
            counts = Counter(case[at] for case in self.cases)
            line = ", ".join(f"{value} {counts[value]}" for value in values)
            terminalreporter.write_line(f"  {factor}: {line}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.required and self.missing() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
