"""A pytest plugin: counts the cases of each law that ran, and fails a tier that misses some.

Tests say which law they are of, `@pytest.mark.law(number)`; cases of the matrix record themselves.
Only what has passed counts, so that no option, path or skip can leave a law out unnoticed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.law.table import CASES, FACTORS, Case

LAW, MATRIX = "law", "law matrix"

LAWS = {
    1: "every mode equals the float64 oracle",
    2: "adjoint identities and gradients of every op",
    3: "relabelled nodes permute the output",
    4: "every edge is owned once, tables of rows are inverse to each other",
    5: "the loss curve does not change with the number of devices",
    6: "memory and traffic are what the plan says",
    7: "killed and resumed, training ends with the same parameters",
}
LEAST = {1: 74, 2: 27, 3: 3, 4: 133, 5: 5, 6: 4, 7: 1}
"""Cases of each law that every tier above host runs, beside the matrix."""


def matrix_case(case: Case) -> tuple[str, tuple[Any, ...]]:
    """The property that a test of the matrix records after its last assertion."""
    return MATRIX, tuple(case)


class RanLaws:
    """What has passed, seen by the process that gathers all reports."""

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
        unmet = pairs(CASES) - pairs(self.cases)
        if unmet:
            some = "; ".join(" with ".join(map(str, each)) for each in sorted(unmet)[:5])
            found.append(f"matrix: {len(unmet)} pairs of values met in no case that ran, as {some}")
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


def pairs(cases: Any) -> set[tuple[Any, ...]]:
    """Every two values of different factors that meet in a case, with their factors' names."""
    names = [*FACTORS]
    return {
        (f"{names[i]} {case[i]}", f"{names[j]} {case[j]}")
        for case in cases
        for j in range(len(names))
        for i in range(j)
    }
