"""The results of a run: tables, the goals, JSON and Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

from benchmarks.cpu.report import pipes
from benchmarks.cpu.sheets import Sheet
from benchmarks.cpu.summary import ratios, spread
from benchmarks.cpu.work import Size
from benchmarks.gpu.contestant import OURS
from benchmarks.gpu.plan import TASKS, Check, Task
from benchmarks.gpu.roofline import expectation, task_work
from benchmarks.gpu.timing import Row

__all__ = ["Record", "details", "faults", "goals", "markdown", "write"]

NOTHING = "-"


@dataclass
class Record:
    """The results of a run.

    Attributes:
      device: name of the device.
      rehearsed: whether the figures are meaningless.
      bandwidth: bytes per second of a copy, the best of all workers.
      sizes: sizes of the graphs, by name.
      graph_seconds: seconds of making and placing them.
      rows: rows by graph, in order.
      seconds: seconds of the run so far.
      date: when it started.
    """

    device: str
    rehearsed: bool
    bandwidth: float = 0.0
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    graph_seconds: dict[str, float] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    seconds: float = 0.0
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())

    def add(self, row: Row) -> None:
        """Notes a row."""
        self.rows.setdefault(row.graph, []).append(row)

    def of_task(self, graph: str, task: Task) -> list[Row]:
        """The rows of a task."""
        return [row for row in self.rows.get(graph, []) if row.task == task.label]

    def shares(self, graph: str, task: Task, row: Row) -> tuple[float, float] | None:
        """Shares of the copy's bandwidth: if every byte moved once, and without any cache."""
        size = self.sizes.get(graph)
        work = task_work(task, Size(**size)) if size else None
        if work is None or not row.seconds or not self.bandwidth:
            return None
        bytes_possible = self.bandwidth * spread(row.seconds).median
        return work.single_bytes / bytes_possible, work.gathered_bytes / bytes_possible


def details(record: Record, graph: str) -> Sheet:
    """Every row of a graph, with the expectation for the kernel."""
    columns = (
        "task",
        "contestant",
        "median ms",
        "jaxgraph is faster",
        "% of bound, once",
        "% gathered",
        "MB",
        "error",
        "bytes ahead",
        "expected %",
        "note",
    )
    rows = [
        _detail(record, graph, task, row)
        for task in TASKS[graph]
        for row in record.of_task(graph, task)
    ]
    return Sheet(graph, columns, tuple(rows), 2)


def _detail(record: Record, graph: str, task: Task, row: Row) -> tuple[str, ...]:
    note = row.failure or ("" if row.prepare_seconds is None else f"{row.prepare_seconds:.1f} s")
    shares = record.shares(graph, task, row)
    own = next((r for r in record.of_task(graph, task) if r.contestant == OURS), None)
    expected = expectation(task) if row is own else None
    return (
        row.task,
        row.contestant,
        _text(spread(row.seconds).median * 1e3 if row.seconds else None, ".3f"),
        _text(_ratio(own, row), ".2f"),
        *(
            _text(share * 100 if share is not None else None, ".0f")
            for share in shares or (None,) * 2
        ),
        _text(row.memory / 1e6 if row.memory else None, ",.0f"),
        _text(row.error, ".0e"),
        f"{expected.reads} x {expected.read_bytes}" if expected else NOTHING,
        _text(expected.share(record.bandwidth or 1.0) * 100 if expected else None, ".0f"),
        note,
    )


def _text(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def _ratio(own: Row | None, other: Row) -> float | None:
    if own is None or own is other or not own.seconds or not other.seconds:
        return None
    return spread(other.seconds).median / spread(own.seconds).median


def goals(record: Record) -> list[Sheet]:
    """Ratios to the best peer of every group of tasks, speed and memory, on every graph."""
    columns = ("graph", "tasks", "against the best of", "mean", "worst", "count", "memory, worst")
    rows = []
    for graph, peers in ((graph, peer) for graph in record.rows for peer in ("cuSPARSE", "PyG")):
        groups: dict[str, list[Task]] = {}
        for task in TASKS[graph]:
            groups.setdefault(_group(task), []).append(task)
        for group, tasks in groups.items():
            found = _against(record, graph, tasks, peers)
            speed = ratios([ratio for ratio, _ in found])
            if speed:
                memory = min((each for _, each in found if each), default=None)
                cells = (f"{speed.mean:.2f}", f"{speed.lowest:.2f}", str(speed.count))
                rows.append((graph, group, peers, *cells, _text(memory, ".2f")))
    title = "Times faster, and times less memory, than the best peer"
    return [Sheet(title, columns, tuple(rows), 3)] if rows else []


def _group(task: Task) -> str:
    return task.label.rstrip("0123456789 xto").strip()


def _against(
    record: Record, graph: str, tasks: Sequence[Task], peers: str
) -> list[tuple[float, float | None]]:
    """For each task, the speed ratio to the fastest peer, and that peer's memory."""
    found = []
    for task in tasks:
        rows = record.of_task(graph, task)
        own = next((row for row in rows if row.contestant == OURS and row.seconds), None)
        others = [row for row in rows if row.contestant.startswith(peers) and row.seconds]
        if own is None or not others:
            continue
        best = min(others, key=lambda row: spread(row.seconds).median)
        speed = spread(best.seconds).median / spread(own.seconds).median
        found.append((speed, best.memory / own.memory if best.memory and own.memory else None))
    return found


def faults(record: Record) -> Iterator[str]:
    """Checks that failed, and tasks in which jaxgraph failed."""
    for graph, rows in record.rows.items():
        checks = {task.label for task in TASKS[graph] if isinstance(task, Check)}
        for row in rows:
            if row.failure and (row.task in checks or row.contestant in (OURS, "worker")):
                yield f"{graph}: {row.task}: {row.contestant}: {row.failure}"


def markdown(record: Record) -> str:
    """The facts that a reader of the figures needs, and the tables, as Markdown."""
    about = "a rehearsal, whose figures mean nothing" if record.rehearsed else "float32"
    checks = [
        row
        for graph, rows in record.rows.items()
        for row in rows
        if row.task in {task.label for task in TASKS[graph] if isinstance(task, Check)}
    ]
    good = sum(not row.failure for row in checks)
    lines = [
        f"- {record.date}, {record.device}, jax {jax.__version__}, {about}; a copy moves "
        f"{record.bandwidth / 1e9:,.0f} GB/s; {good} of {len(checks)} checks passed; "
        f"{record.seconds:.0f} s."
    ]
    lines += [
        f"- {name}: {size['num_nodes']:,} nodes, {size['num_edges']:,} edges."
        for name, size in record.sizes.items()
    ]
    sheets = [*goals(record), *(details(record, graph) for graph in record.rows)]
    blocks = ["\n".join(lines), *(f"**{sheet.title}**\n\n{pipes(sheet)}" for sheet in sheets)]
    return "\n\n".join(blocks) + "\n"


def write(record: Record, json_path: Path | None, markdown_path: Path | None) -> None:
    """Writes the requested files, with the results so far."""
    if json_path:
        text = json.dumps(_finite(asdict(record) | {"jax": jax.__version__}), indent=1)
        json_path.write_text(text)
    if markdown_path:
        markdown_path.write_text(markdown(record))


def _finite(value: Any) -> Any:
    """The same with text instead of numbers that JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
