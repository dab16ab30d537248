"""The arrays of a folder of the Open Graph Benchmark as files."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph.datasets.edge_keys import Rows
from jaxgraph.datasets.file_rows import FileRows, npy_rows
from jaxgraph.datasets.files import BrokenFileError, reading
from jaxgraph.datasets.number_tables import parse_table
from jaxgraph.datasets.ogb import MEMBERS
from jaxgraph.external.work import StepFiles, Work

_COPIED = 1 << 24


def table_rows(
    work: Work, path: Path, dtype: Any, block: int, on_progress: Callable[[int, int], object]
) -> Rows:
    """Parses a text of numbers, block by block, into a file."""

    def make(files: StepFiles) -> dict[str, Any]:
        rows, columns = 0, 0
        for values in parse_table(path, dtype, block):
            files.add("values", values)
            rows, columns = rows + len(values), values.shape[1]
            on_progress(rows, 0)
        return {"shape": (rows, columns)}

    folder, facts = work.step(path.name.partition(".")[0], make)
    return FileRows(folder / "values", np.dtype(dtype), tuple(facts["shape"]))


def archive_rows(
    work: Work, archive: Path, on_progress: Callable[[int, int], object]
) -> Mapping[str, Rows]:
    """Copies the arrays of numbers of an archive into files; edges alone may be by column."""

    def make(files: StepFiles) -> dict[str, Any]:
        with reading(archive, "an archive"), zipfile.ZipFile(archive) as opened:
            for member in opened.infolist():
                if member.filename.removesuffix(".npy") not in MEMBERS:
                    continue
                target = files.folder / member.filename
                with opened.open(member) as stream, target.open("wb") as file:
                    while some := stream.read(_COPIED):
                        file.write(some)
                        on_progress(file.tell(), member.file_size)
        return {}

    folder, _ = work.step("archive", make)
    found: dict[str, FileRows] = {path.stem: npy_rows(path) for path in folder.glob("*.npy")}
    for name, rows in found.items():
        if rows.by_column and name != "edge_index":
            raise BrokenFileError(f"{archive}: {name} is stored by column; expected by row.")
    return found
