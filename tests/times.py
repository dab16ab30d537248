"""Where the time of tests goes: compiling, tracing and lowering, and the rest."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import jax
import pytest

COMPILED = "/jax/core/compile/backend_compile_duration"
TRACED = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
)
MOST = 20


class RecordTimes:
    """A pytest plugin: the seconds of each test, of which so many compile and trace."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self.rows: list[tuple[tuple[float, float, float], str]] = []
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        self.spent[event] += duration_secs

    def _now(self) -> tuple[float, float, float]:
        traced = sum(self.spent[event] for event in TRACED)
        return time.perf_counter(), self.spent[COMPILED], traced

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        before = self._now()
        try:
            return (yield)
        finally:
            spent = tuple(b - a for a, b in zip(before, self._now(), strict=True))
            item.user_properties.append(("times", spent))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: list[tuple[str, Any]] = list(report.user_properties)
        for name, value in properties if report.when == "call" else ():
            if name == "times":
                self.rows.append((value, report.nodeid))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The whole, and the slowest tests; a trace inside a trace counts twice."""
        if not self.rows:
            return
        terminalreporter.section("seconds: whole, compiled, traced and lowered")
        whole = tuple(map(sum, zip(*(spent for spent, _ in self.rows), strict=True)))
        rows = sorted(self.rows, reverse=True)[:MOST]
        for spent, name in [(whole, f"all {len(self.rows)} tests"), *rows]:
            line = "".join(f"{seconds:8.1f}" for seconds in spent)
            terminalreporter.write_line(f"{line}  {name}")
