"""The command line shared by the programs: the description, and figures in a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

__all__ = ["make_parser", "write_figures"]


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the option --json; the first line of `doc` describes the program."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    return parser


def write_figures(path: Path | None, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes rows of figures, with the version of jax; nothing for None."""
    if path is not None:
        path.write_text(json.dumps({"jax": jax.__version__, "rows": list(rows)}, indent=2))
