"""The folder of a run that may be interrupted: the files of each step, which are there or not."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph.datasets.edge_keys import Memory
from jaxgraph.written_file import sync_folder

_FACTS = "facts.json"


class StepFiles(Memory):
    """Binary files of a step that grow together.

    Args:
      folder: of the files; it is made anew.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__()

    def add(self, name: str, values: np.ndarray) -> None:
        """Appends the bytes of an array to a file."""
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        with (self.folder / name).open("ab", buffering=0) as file:
            while data:
                data = data[file.write(data) :]

    def add_names(self, frame: Any) -> None:
        """Writes names of nodes to a file of their own."""
        path = self.folder / f"{self._frames:08d}.parquet"
        frame.write_parquet(path, row_group_size=1 << 16, statistics=True)
        self._frames += 1

    def clear(self) -> None:
        """Deletes all files."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self._frames = 0


@dataclasses.dataclass(frozen=True)
class Work:
    """A folder of a run.

    Attributes:
      folder: it exists.
    """

    folder: Path

    def step(
        self, name: str, make: Callable[[StepFiles], Mapping[str, Any]]
    ) -> tuple[Path, dict[str, Any]]:
        """Makes the files of a step, unless an earlier run has made them."""
        folder = self.folder / name
        if not folder.exists():
            files = StepFiles(self.folder / f"{name}.partial")
            facts = make(files)
            (files.folder / _FACTS).write_text(json.dumps(facts))
            for path in sorted(files.folder.iterdir()):
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            files.folder.rename(folder)
            sync_folder(self.folder)
        return folder, json.loads((folder / _FACTS).read_bytes())
