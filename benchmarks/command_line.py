"""The shared code of the programs: command line, figures in a file, memory that stays."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

__all__ = ["KEPT_MEMORY", "keep_freed_memory", "make_parser", "write_figures"]

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


def write_figures(path: Path | None, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes rows of figures, with the version of jax; nothing for None."""
    if path is not None:
        path.write_text(json.dumps({"jax": jax.__version__, "rows": list(rows)}, indent=2))


def keep_freed_memory(module: str) -> None:
    """Starts the program `python -m module` anew under `KEPT_MEMORY`, unless it runs so already."""
    wanted = os.environ | KEPT_MEMORY
    if wanted != os.environ:
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], wanted)
