"""Output of the command line: the progress bar, tables, and numbers formatted for people."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

__all__ = ["EpochBar", "EpochRecord", "StepBar", "byte_text", "second_text", "two_columns"]


_BAR_NEEDS = 70
"""Columns of a terminal below which numbers replace the bar and the times."""
_TICK = 1.0
"""Seconds between two looks at how much of an epoch is done."""


class EpochRecord(Protocol):
    """A report of training after an epoch."""

    @property
    def epoch(self) -> int: ...
    @property
    def loss(self) -> float: ...
    @property
    def val_accuracy(self) -> float: ...
    @property
    def seconds(self) -> float: ...


class _Bar:
    """A bar that is live on a terminal while the context is entered."""

    _console: Console
    _progress: Progress

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._progress.stop()


class EpochBar(_Bar):
    """A live bar of the epochs: loss, validation accuracy and time of the last one.

    In a file or a pipe it prints a line after every tenth of the epochs, and after an epoch that
    ends more than half a minute after the last line, or within one.

    Use as a context manager and pass `update` to the training loop.

    Args:
        epochs: All epochs of the run.
        console: Where it is shown.
        share: How much of the present epoch is done, from 0 to 1; None: not known.
    """

    def __init__(
        self, epochs: int, console: Console, share: Callable[[], float] | None = None
    ) -> None:
        self._console, self._epochs, self._last_line = console, epochs, time.monotonic()
        self._share, self._done, self._ended = share, 0, threading.Event()
        self._ticking = threading.Thread(target=self._tick_on, daemon=True)
        self._wide = console.width >= _BAR_NEEDS
        self._progress = Progress(
            TextColumn("epoch"),
            MofNCompleteColumn(),
            *([BarColumn()] if self._wide else []),
            TextColumn("{task.fields[state]}"),
            TextColumn("{task.fields[share]}"),
            *([TimeElapsedColumn()] if self._wide else []),
            console=console,
        )
        self._task = self._progress.add_task("", total=epochs, state="compiling", share="")

    def __enter__(self) -> Self:
        if self._share is not None:
            self._ticking.start()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._ended.set()
        if self._share is not None:
            self._ticking.join()
        super().__exit__(*error)

    def _tick_on(self) -> None:
        while not self._ended.wait(_TICK):
            self.tick()

    def tick(self) -> None:
        """Shows how much of the present epoch is done."""
        share = self._share() if self._share is not None else 0.0
        if not share:
            return
        if self._console.is_terminal:
            shown = f"{share:.0%} of the next"
            self._progress.update(self._task, completed=self._done + share, share=shown)
        elif self._seconds_since_line() > 30:
            self._console.print(f"epoch {self._done + 1}/{self._epochs}  {share:.0%}")
            self._last_line = time.monotonic()

    def update(self, record: EpochRecord) -> None:
        """Shows one epoch that has ended."""
        done = self._done = record.epoch
        state = f"loss {record.loss:.4f}  val {record.val_accuracy:.2%}"
        if self._wide:
            state += f"  {second_text(record.seconds)}"
        if self._console.is_terminal:
            self._progress.update(self._task, completed=done, state=state, share="")
        elif done % max(self._epochs // 10, 1) == 0 or self._seconds_since_line() > 30:
            self._console.print(f"epoch {done}/{self._epochs}  {state}", highlight=False)
            self._last_line = time.monotonic()

    def _seconds_since_line(self) -> float:
        return time.monotonic() - self._last_line


class StepBar(_Bar):
    """A live bar of the present step of a long work; in a file or a pipe, a line for each step.

    Use as a context manager and pass `update` to the work.
    """

    def __init__(self, console: Console) -> None:
        self._console, self._step, self._started = console, None, time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None)

    def update(self, step: str, done: int, total: int) -> None:
        """Shows how much of a step is done; a total of 0 is not known."""
        if step != self._step:
            self._end_step()
            self._step, self._started = step, time.monotonic()
        if self._console.is_terminal:
            self._progress.update(
                self._task, description=step, total=total or None, completed=done if total else 0
            )

    def _end_step(self) -> None:
        if self._step is not None:
            seconds = second_text(time.monotonic() - self._started)
            self._console.print(f"{self._step}: {seconds}", highlight=False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._end_step()
        super().__exit__(kind, error, traceback)


def two_columns(title: str, rows: dict[str, Any]) -> Table:
    """A table of names and values.

    Args:
        title: The title above it.
        rows: Values by name; integers get thousands separators, floats four significant digits.

    Returns:
        The table.
    """
    table = Table(title=title, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in rows.items():
        table.add_row(name, _text(value))
    return table


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def byte_text(count: int) -> str:
    """Bytes in the decimal unit that leaves one to three digits before the point.

    >>> byte_text(1_234_567)
    '1.2 MB'
    """
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def second_text(seconds: float) -> str:
    """Seconds, or milliseconds where it is less than one.

    >>> second_text(0.0125)
    '12.5 ms'
    """
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"
