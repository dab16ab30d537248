"""Output of the command line: progress bars, tables, and numbers formatted for people."""

import io
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

_SECONDS_BETWEEN_LINES = 30


class _Bar:
    """A bar that is live on a terminal while the context is entered."""

    def __init__(self, console: Console, *columns: str | ProgressColumn, **options: Any) -> None:
        self._console, self._since = console, time.monotonic()
        options |= {"console": console, "disable": not console.is_terminal}
        self._progress = Progress(*columns, TimeElapsedColumn(), **options)
        self._task = self._progress.add_task("", total=None, state="compiling")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.stop()

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False)
        self._since = time.monotonic()


class _Share(ProgressColumn):
    """The share of the present epoch that is done, where it is known."""

    def __init__(self, share: Callable[[], float] | None) -> None:
        super().__init__()
        self._share = share

    def render(self, task: Task) -> Text:
        share = self._share() if self._share is not None else 0.0
        return Text(f"{share:.0%} of the next" if share else "")


class EpochBar(_Bar):
    """A live bar of the epochs: loss, validation accuracy and time of the last one.

    Of mini-batches it shows the share of time that devices waited for them.

    In a file or a pipe it prints a line after every tenth of the epochs, and after an epoch that
    ends more than half a minute after the last line.

    Use as a context manager and pass `update` to the training loop.

    Args:
        epochs: All epochs of the run.
        console: Where it is shown.
        share: How much of the present epoch is done, from 0 to 1; None: not known.
    """

    def __init__(
        self, epochs: int, console: Console, share: Callable[[], float] | None = None
    ) -> None:
        self._epochs = epochs
        columns = ("epoch", MofNCompleteColumn(), BarColumn(20), "{task.fields[state]}")
        super().__init__(console, *columns, _Share(share))
        self._progress.update(self._task, total=epochs)

    def update(self, record: Any) -> None:
        """Shows one epoch that has ended."""
        done, seconds = record.epoch, second_text(record.seconds)
        accuracy = record.val_accuracy
        of_val = "" if math.isnan(accuracy) else f"val {accuracy:.2%}  "
        of_wait = "" if record.waited is None else f"  waited {record.waited:.0%}"
        state = f"loss {record.loss:.4f}  {of_val}{seconds}{of_wait}"
        self._progress.update(self._task, completed=done, state=state)
        is_late = time.monotonic() - self._since > _SECONDS_BETWEEN_LINES
        is_due = done % max(self._epochs // 10, 1) == 0 or is_late
        if is_due and not self._console.is_terminal:
            self._print(f"epoch {done}/{self._epochs}  {state}")


class StepBar(_Bar):
    """A live bar of the present step of a long work, and a line for each step that has ended.

    Use as a context manager and pass `update` to the work.
    """

    def __init__(self, console: Console) -> None:
        self._step: str | None = None
        columns = ("{task.description}", BarColumn(), "{task.percentage:>3.0f}%")
        super().__init__(console, *columns, transient=True)

    def update(self, step: str | None, done: int, total: int) -> None:
        """Shows how much of a step is done; a total of 0 is not known."""
        if step != self._step:
            if self._step is not None:
                self._print(f"{self._step}: {second_text(time.monotonic() - self._since)}")
            self._step, self._since = step, time.monotonic()
        shown = {"total": total or None, "completed": done if total else 0}
        self._progress.update(self._task, description=step, **shown)

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self.update(None, 0, 0)
        super().__exit__(*error)


def two_columns(title: str, rows: dict[str, Any]) -> Table:
    """A table of names and values."""
    table = Table(title=title, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in rows.items():
        kinds = {float: ",.4g", int: ","}
        table.add_row(name, format(value, kinds.get(type(value), "")))
    return table


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


class Output(Console):
    """A console of the standard output that continues without a reader (`jaxgraph ... | head`)."""

    def on_broken_pipe(self) -> None:
        """Drops all further output; rich would end the program."""
        self.quiet = True
        drop_output()


def drop_output() -> None:
    """Discards the standard output, so that the rest of its buffer raises no error."""
    with suppress(OSError, ValueError):
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, sys.stdout.fileno())
        os.close(descriptor)


def tolerate_other_encodings() -> None:
    """Escapes characters that the standard output's encoding lacks, instead of raising."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
