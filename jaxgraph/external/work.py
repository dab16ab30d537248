"""The folder of a run that may be interrupted: files that grow, and what each step has done."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph.written_file import write_atomically

__all__ = ["GrowingFiles", "Work"]


@dataclasses.dataclass(frozen=True)
class Work:
    """A folder of a run, with a record of each step.

    Attributes:
      folder: it exists.
      seconds: between two records of a step; a killed run repeats at most so much.
    """

    folder: Path
    seconds: float = 10.0

    def read(self, step: str) -> dict[str, Any]:
        """The last record of a step; nothing where it has not begun."""
        try:
            return json.loads((self.folder / f"{step}.json").read_bytes())
        except FileNotFoundError:
            return {}

    def record(self, step: str, facts: Mapping[str, Any]) -> None:
        """Records what a step has done; a reader sees the old record or the new one."""
        write_atomically(self.folder / f"{step}.json", json.dumps(facts))

    def is_done(self, step: str) -> bool:
        """True where a step has ended."""
        return self.read(step).get("done", False)

    def forget(self, step: str) -> None:
        """Deletes the record of a step and its files."""
        (self.folder / f"{step}.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder / step, ignore_errors=True)

    def files_of(self, step: str) -> Path:
        """The folder of the files of a step; it is made."""
        folder = self.folder / step
        folder.mkdir(exist_ok=True)
        return folder


class GrowingFiles:
    """Binary files of a step that grow together.

    A file is cut to its recorded size when the step continues: what was appended after the last
    record is appended again.

    Args:
      work: the folder of the run.
      step: the step.
    """

    def __init__(self, work: Work, step: str) -> None:
        self._work, self._step = work, step
        self.folder = work.files_of(step)
        self.facts = work.read(step)
        self._sizes: dict[str, int] = self.facts.pop("sizes", {})
        self._changed: set[Path] = set()
        self._recorded = time.monotonic()
        for path in self.folder.iterdir():
            size = self._sizes.get(path.name, 0)
            if size:
                os.truncate(path, size)
            else:
                path.unlink()

    def add(self, name: str, values: np.ndarray) -> None:
        """Appends the bytes of an array to a file."""
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        with (self.folder / name).open("ab", buffering=0) as file:
            while data:
                data = data[file.write(data) :]
        self._sizes[name] = self._sizes.get(name, 0) + values.nbytes
        self._changed.add(self.folder / name)

    def add_whole(self, path: Path) -> None:
        """Adds a file that was written elsewhere to what the next record waits for."""
        self._changed.add(path)

    def record(self, **facts: Any) -> None:
        """Records facts about all that was appended, once it is on the disk.

        A step that is not `done` is recorded from time to time only: disks take long to wait for.
        """
        self.facts |= facts
        is_due = time.monotonic() - self._recorded >= self._work.seconds
        if not (is_due or facts.get("done")):
            return
        for path in sorted(self._changed):
            with path.open("rb") as file:
                os.fsync(file.fileno())
        self._changed.clear()
        self._recorded = time.monotonic()
        self._work.record(self._step, self.facts | {"sizes": self._sizes})
