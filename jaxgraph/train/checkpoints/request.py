"""The request of a caller of `fit` to save the run, and to resume it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from jaxgraph.kinds import kind_of
from jaxgraph.train.arguments import checked_count

__all__ = ["Checkpoints"]


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """A folder in which `fit` saves the run, and from which it continues.

    A checkpoint holds the state of the run and the records of its epochs. It is written while
    training goes on, into a folder of its own that gets its name once all data is on the disk, so
    that a killed process leaves whole checkpoints alone. Checksums are compared before one is read.

    Attributes:
      folder: a new folder, or one without checkpoints, or one of a run to resume. Where there are
        several processes, only the first reads and writes it.
      every: save after every so many epochs, and after the last one.
      keep: how many of the newest checkpoints to keep. The one of the lowest validation loss is
        kept beside them.
      resume: whether to continue after the newest checkpoint that is undamaged; without any
        checkpoint the run starts from its beginning. Graph, model, task and kind of optimizer must
        be those of the run, by digests in the checkpoint. Numbers of the optimizer, epochs,
        patience, policies, partition, mode and devices may change.

    Raises:
      ValueError: an attribute is of the wrong kind.
    """

    folder: str | os.PathLike[str]
    every: int = 5
    keep: int = 3
    resume: bool = False

    def __post_init__(self) -> None:
        """Checks the kinds."""
        if not isinstance(self.folder, str | os.PathLike) or not os.fspath(self.folder):
            raise ValueError(f"folder is {kind_of(self.folder)}; expected the path of a folder")
        checked_count("every", self.every)
        checked_count("keep", self.keep)
        if not isinstance(self.resume, bool):
            raise ValueError(f"resume is {self.resume!r}; expected True or False")

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.folder)
