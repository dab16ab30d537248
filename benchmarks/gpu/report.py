"""The results of a run: tables, faults and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import jax
from rich.markup import escape
from rich.table import Table

from benchmarks.gpu.contestant import OURS
from benchmarks.gpu.plan import TASKS, Check
from benchmarks.gpu.timing import Row


@dataclass
class Record:
    """The results of a run.

    Attributes:
      device: name of the device.
      rehearsed: whether the figures are meaningless.
      bandwidth: bytes per second of a copy, the best of all workers.
      sizes: sizes of the graphs, by name.
      rows: rows by graph, in order.
      date: when it started.
      jax: version of jax.
    """

    device: str
    rehearsed: bool
    bandwidth: float = 0.0
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())
    jax: str = jax.__version__

    def details(self, graph: str) -> Table:
        """Every row of a graph, and times that jaxgraph is faster."""
        size = self.sizes.get(graph, {})
        table = Table("task", "contestant", title=f"{graph} {size}", title_justify="left")
        for column in ("ms", "jaxgraph is faster", "MB", "error"):
            table.add_column(column, justify="right")
        table.add_column("note")
        rows = self.rows.get(graph, [])
        own = {row.task: row.median for row in rows if row.contestant == OURS}
        for row in rows:
            median, base = row.median, own.get(row.task)
            is_peer = row.contestant != OURS
            table.add_row(
                row.task,
                row.contestant,
                "" if median is None else f"{median * 1e3:.3f}",
                f"{median / base:.2f}" if median and base and is_peer else "",
                f"{row.memory / 1e6:,.0f}" if row.memory else "",
                "" if row.error is None else f"{row.error:.0e}",
                escape(row.failure),
            )
        return table

    def checks(self) -> list[Row]:
        """The rows of checks."""
        return [row for graph in self.rows for row in self.rows[graph] if _is_check(graph, row)]

    def faults(self) -> Iterator[str]:
        """Checks that failed, and tasks in which jaxgraph failed."""
        for graph, rows in self.rows.items():
            for row in rows:
                is_ours = _is_check(graph, row) or row.contestant in (OURS, "worker")
                if row.failure and is_ours:
                    yield f"{graph}: {row.task}: {row.contestant}: {row.failure}"

    def summary(self) -> str:
        """The facts that a reader of the figures needs."""
        about = "a rehearsal, whose figures mean nothing" if self.rehearsed else "float32"
        checks = self.checks()
        good = sum(not row.failure for row in checks)
        return (
            f"{self.date}, {self.device}, jax {self.jax}, {about}; a copy moves "
            f"{self.bandwidth / 1e9:,.0f} GB/s; {good} of {len(checks)} checks passed"
        )

    def write(self, path: Path | None) -> None:
        """Writes the results so far, where a path is given."""
        if path:
            path.write_text(json.dumps(asdict(self), indent=1))


def _is_check(graph: str, row: Row) -> bool:
    return any(task.label == row.task for task in TASKS[graph] if isinstance(task, Check))
