"""The tables of a run, as text in cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.cpu.measure import Measurement
from benchmarks.cpu.plan import OURS, OWN
from benchmarks.cpu.record import Record
from benchmarks.cpu.summary import Spread, ratios, spread
from benchmarks.cpu.tasks import SpMM, Task
from benchmarks.cpu.work import arrays

__all__ = ["Sheet", "details", "summaries"]

NOTHING = "-"


@dataclass(frozen=True)
class Sheet:
    """A table.

    Attributes:
      title: the title above it.
      columns: headings; the first `num_names` are for names, the others for numbers.
      rows: cells.
      num_names: number of columns that name the subject of a row.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_names: int


def details(measurements: Sequence[Measurement], title: str) -> Sheet:
    """Every measurement with its quartiles, error and memory, one per row."""
    columns = (
        "task",
        "library",
        "median ms",
        "quartiles ms",
        "rounds",
        "error",
        "MB above loaded",
        "MB of one run",
        "way",
    )
    return Sheet(title, columns, tuple(_detail(each) for each in measurements), 2)


def _detail(each: Measurement) -> tuple[str, ...]:
    names = each.task.label, each.contestant
    error = "compared" if each.error is None else f"{each.error:.0e}"
    if each.failure:
        return *names, "failed", *[NOTHING] * 5, each.failure
    found = spread(each.seconds)
    memory = each.memory
    way = each.path
    if each.compile_seconds is not None:
        way = f"{way}, compiled in {each.compile_seconds:.1f} s"
    return (
        *names,
        _milliseconds(found.median),
        f"{_milliseconds(found.lower)} - {_milliseconds(found.upper)}",
        f"{found.count}{_mark(each)}",
        error,
        _megabytes(memory.above_loaded if memory else None),
        _megabytes(memory.of_run if memory else None),
        way,
    )


def _mark(each: Measurement) -> str:
    return "*" if each.disturbed else ""


def _milliseconds(seconds: float) -> str:
    """Milliseconds with three significant digits."""
    value = 1000 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _megabytes(count: int | None) -> str:
    return NOTHING if count is None else f"{count / 1e6:,.0f}"


def summaries(record: Record) -> Iterator[Sheet]:
    """The comparing tables: times by group of tasks, means, memory, compilation, SAR."""
    for group in _groups(record.peers):
        yield _times(record, group)
    own = {each.name for each in OWN}
    if any(each.contestant not in own for each in record.peers):
        yield _means(record.peers)
    if record.peers:
        yield _memory(record.peers)
    ops = [each for each in record.peers if arrays(each.task, record.sizes[each.graph])]
    if ops:
        yield _memory_of_ops(record, ops)
    compiled = [each for each in (*record.peers, *record.sar) if each.compile_seconds is not None]
    epochs = [each for each in compiled if each.task.group.startswith("epoch")]
    if epochs:
        yield _compilation(epochs)
    if record.sar:
        yield _sar(record.sar)


def _groups(measurements: Sequence[Measurement]) -> list[str]:
    return list(dict.fromkeys(_family(each.task) for each in measurements))


def _family(task: Task) -> str:
    """The table of a task: that of its group, or that of all epochs."""
    return task.group.split()[0]


def _names(measurements: Sequence[Measurement]) -> list[str]:
    """All contestants, those that come first anywhere first."""
    return list(dict.fromkeys(each.contestant for each in measurements))


_Row = dict[str, Measurement]


def _by_task(measurements: Sequence[Measurement]) -> dict[tuple[str, Task], _Row]:
    rows: dict[tuple[str, Task], _Row] = {}
    for each in measurements:
        rows.setdefault((each.graph, each.task), {})[each.contestant] = each
    return rows


def _median(row: _Row, name: str) -> float | None:
    each = row.get(name)
    return None if each is None or each.failure or not each.seconds else spread(each.seconds).median


def _cell(row: _Row, name: str, base: str) -> str:
    """A median, and its ratio to that of `base`."""
    each, median, ours = row.get(name), _median(row, name), _median(row, base)
    if median is None:
        return NOTHING if each is None else "failed"
    assert each is not None
    text = f"{_milliseconds(median)}{_mark(each)}"
    return text if name == base or ours is None else f"{text} ({_ratio(row, name, base):.2f})"


def _quartiles(row: _Row, name: str) -> str:
    if _median(row, name) is None:
        return NOTHING
    found: Spread = spread(row[name].seconds)
    return f"{_milliseconds(found.lower)} - {_milliseconds(found.upper)}"


def _times(record: Record, family: str) -> Sheet:
    measurements = [each for each in record.peers if _family(each.task) == family]
    others = [name for name in _names(measurements) if name != OURS.name]
    with_reuse = family == _family(SpMM(1))
    shares = ("of limit", "of limit with reuse") if with_reuse else ("of limit",)
    rows = []
    for (graph, task), row in _by_task(measurements).items():
        rows.append(
            (
                graph,
                task.label,
                _cell(row, OURS.name, OURS.name),
                _quartiles(row, OURS.name),
                *_shares(record, row, with_reuse),
                *(_cell(row, name, OURS.name) for name in others),
            )
        )
    columns = ("graph", "task", OURS.name, "quartiles", *shares, *others)
    title = f"{family}: median ms, in brackets times {OURS.name}'s"
    return Sheet(title, columns, tuple(rows), 2)


def _shares(record: Record, row: _Row, with_reuse: bool) -> tuple[str, ...]:
    """The machine's limit over our time, without and with reuse of gathered rows."""
    median = _median(row, OURS.name)
    work = record.work(next(iter(row.values())))
    if median is None or work is None or record.limits is None:
        return (NOTHING,) * (2 if with_reuse else 1)
    least = [record.limits.seconds(work)]
    if with_reuse:
        least.append(record.limits.seconds_with_reuse(work))
    return tuple(f"{seconds / median:.0%}" for seconds in least)


def _means(measurements: Sequence[Measurement]) -> Sheet:
    own = [each.name for each in OWN if each.name in _names(measurements)]
    peers = [name for name in _names(measurements) if name not in own]
    rows = []
    for group in dict.fromkeys(each.task.group for each in measurements):
        tasks = _by_task([each for each in measurements if each.task.group == group])
        rows += [
            (group, base, *(_mean_cell(list(tasks.values()), base, peer) for peer in peers))
            for base in own
            if any(base in row for row in tasks.values())
        ]
    title = "Times faster than a peer: geometric mean (least) over graphs and sizes"
    return Sheet(title, ("tasks", "of", *peers), tuple(rows), 2)


def _mean_cell(rows: Sequence[_Row], base: str, peer: str) -> str:
    """Mean and least ratio of the undisturbed rows, or, marked, of all."""
    both = [row for row in rows if _median(row, base) and _median(row, peer)]
    calm = [row for row in both if not (row[base].disturbed or row[peer].disturbed)]
    found = ratios([_ratio(row, peer, base) for row in calm or both])
    if found is None:
        return NOTHING
    return f"{found.mean:.2f} ({found.lowest:.2f}){'' if calm else '*'}"


def _ratio(row: _Row, name: str, base: str) -> float:
    return spread(row[name].seconds).median / spread(row[base].seconds).median


def _memory(measurements: Sequence[Measurement]) -> Sheet:
    names = _names(measurements)
    rows = []
    for (graph, task), row in _by_task(measurements).items():
        memories = [row[name].memory if name in row else None for name in names]
        rows.append(
            (graph, task.label, *(_megabytes(each and each.above_loaded) for each in memories))
        )
    title = "Memory: peak resident MB above the loaded graph"
    return Sheet(title, ("graph", "task", *names), tuple(rows), 2)


def _memory_of_ops(record: Record, measurements: Sequence[Measurement]) -> Sheet:
    names = _names(measurements)
    rows = [
        (graph, task.label, *(_temporary_cell(record, row.get(name)) for name in names))
        for (graph, task), row in _by_task(measurements).items()
    ]
    title = "Temporary memory of one run, in times its inputs and outputs"
    return Sheet(title, ("graph", "task", *names), tuple(rows), 2)


def _temporary_cell(record: Record, each: Measurement | None) -> str:
    taken = each and each.memory and each.memory.of_run
    own = each and arrays(each.task, record.sizes[each.graph])
    if taken is None or own is None:
        return NOTHING
    return f"{max(taken - own.outputs, 0) / (own.inputs + own.outputs):.2f}"


def _compilation(measurements: Sequence[Measurement]) -> Sheet:
    names = _names(measurements)
    rows = []
    for (graph, task), row in _by_task(measurements).items():
        cells = (row[name].compile_seconds if name in row else None for name in names)
        rows.append(
            (graph, task.label, *(NOTHING if cell is None else f"{cell:.1f}" for cell in cells))
        )
    return Sheet("Compilation of a training step, s", ("graph", "task", *names), tuple(rows), 2)


def _sar(measurements: Sequence[Measurement]) -> Sheet:
    names = _names(measurements)
    base = names[0]
    rows = [
        (graph, task.label, *(_cell(row, name, base) for name in names))
        for (graph, task), row in _by_task(measurements).items()
    ]
    title = f"SAR on emulated devices, METIS: median ms of an epoch, in brackets times {base}'s"
    return Sheet(title, ("graph", "task", *names), tuple(rows), 2)
