"""The shared code of the programs: command line, tables, figures in a file, memory."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console
from rich.markup import escape
from rich.table import Table

KEPT_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "268435456",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Settings under which glibc keeps all freed memory and asks for large pages, so that caches do not
depend on where small pages happen to lie; it reads them when a process starts."""


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the option --json; the first line of `doc` describes the program."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    return parser


def report(title: str, rows: Iterable[Mapping[str, Any]], path: Path | None) -> None:
    """Prints rows of figures, a column for each key, and writes them."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(*(name.replace("_", " ") for name in names), title=escape(title))
    for row in rows:
        table.add_row(*(escape(_text(row.get(name))) for name in names))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    write_figures(path, rows)


def _text(value: Any) -> str:
    """A cell: four digits of a fraction, all of a whole number."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(_text, value))
    return str(value)


def in_own_process(
    function: Callable[..., Any], *arguments: Any, variables: Mapping[str, str] | None = None
) -> Any:
    """The result of a function that a new process calls, with more variables in its environment."""
    context = multiprocessing.get_context("spawn")
    with mock.patch.dict(os.environ, variables or {}), ProcessPoolExecutor(1, context) as process:
        return process.submit(function, *arguments).result()


def write_plot(figure: Any, path: Path) -> None:
    """Saves a figure of matplotlib, with its text as text."""
    from matplotlib import rc_context  # pyright: ignore[reportMissingImports]

    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(path)


def write_figures(path: Path | None, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes rows of figures, with the version of jax; nothing for None."""
    if path is not None:
        path.write_text(json.dumps({"jax": version("jax"), "rows": list(rows)}, indent=2))


def keep_freed_memory(module: str) -> None:
    """Starts the program `python -m module` anew under `KEPT_MEMORY`, unless it runs so already."""
    wanted = os.environ | KEPT_MEMORY
    if wanted != os.environ:
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], wanted)
