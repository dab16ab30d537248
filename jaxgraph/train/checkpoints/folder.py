"""A folder of checkpoints: what it holds, how one is written and read, which are kept."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import jax

from jaxgraph.train.checkpoints import manifest
from jaxgraph.train.checkpoints.manifest import MANIFEST, Contents, DamagedError
from jaxgraph.written_file import UNFINISHED, alone_in, sync_folder, write_atomically

__all__ = ["alone_with", "load_state", "newest", "path_of", "prune", "save"]

_NAME = re.compile(r"epoch-([0-9]{8,})")
_STATE = "state"
_SYSTEM_ERROR = re.compile(r"\[os_error_code='([0-9]+)'")
"""As TensorStore ends its messages, with the full path several times before."""
Found = TypeVar("Found")


def path_of(folder: Path, epoch: int) -> Path:
    """The checkpoint after an epoch."""
    return folder / f"epoch-{epoch:08d}"


@contextmanager
def alone_with(folder: Path, *, resume: bool) -> Iterator[None]:
    """Makes the folder of a run, and keeps it from other runs while the context lasts.

    Args:
      folder: a new one, or one that holds checkpoints or not.
      resume: whether checkpoints that it holds are those of this run.

    Raises:
      ValueError: it cannot be made or written to, holds checkpoints that are not to be resumed, or
        another run writes to it.
    """
    try:
        if os.path.lexists(folder) and not folder.is_dir():
            raise ValueError(f"{folder} is no folder; expected one for checkpoints")
        if not folder.is_dir() and not folder.parent.is_dir():
            raise ValueError(f"{folder}: there is no folder {folder.parent}; make it first")
        held = _checkpoints(folder) if folder.is_dir() else []
        if held and not resume:
            raise ValueError(
                f"{folder} holds checkpoints of a run, the last after epoch {held[0][0]}; resume "
                "that run (resume, or --resume on the command line), or take another folder"
            )
        folder.mkdir(exist_ok=True)
        _beside(folder).rmdir()  # Permissions alone do not reveal a read-only file system.
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ValueError(
            f"{folder} cannot be written to ({reason}); expected a folder for checkpoints that you "
            "may write to"
        ) from error
    with alone_in(folder):
        for left in folder.iterdir():  # of a killed run
            if UNFINISHED.fullmatch(left.name) and not left.is_symlink():
                _delete(left)
        yield


def newest(folder: Path, read: Callable[[Path], Found]) -> Found | None:
    """Reads the newest checkpoint that is undamaged, with a warning of those that are not.

    Args:
      folder: the folder.
      read: reads a checkpoint; it raises `DamagedError` for one that is damaged.

    Returns:
      The result; None if there is no checkpoint.

    Raises:
      ValueError: all are damaged, or `read` raises it.
    """
    damaged: list[str] = []
    for epoch, path in _checkpoints(folder):
        try:
            found = read(path)
        except DamagedError as error:
            damaged.append(f"{path} is damaged: {error}")
            continue
        if damaged:
            warnings.warn(
                f"{'; '.join(damaged)}. The run continues from {path}, after epoch {epoch}",
                stacklevel=2,
            )
        return found
    if damaged:
        raise ValueError(
            f"no checkpoint can be read: {'; '.join(damaged)}. Move them away to start from the "
            "beginning"
        )
    return None


def save(folder: Path, state: Any, contents: Contents) -> Path:
    """Writes a checkpoint; a reader finds it whole or not at all.

    Args:
      folder: the folder.
      state: a `FitState` on the host.
      contents: of its manifest, without `files`.

    Returns:
      Its path; an earlier one of this epoch, which is damaged, is replaced.

    Raises:
      OSError: it could not be written.
    """
    path = path_of(folder, contents.epoch)
    made: Path | None = None
    try:
        made = _beside(folder)
        _write_state(made / _STATE, state)
        whole = dataclasses.replace(contents, files=manifest.checksums(made))
        write_atomically(made / MANIFEST, manifest.text_of(whole))
        _sync(made)
        if os.path.lexists(path):
            _delete(path)
        made.rename(path)
        sync_folder(folder)
    except Exception as error:
        # Orbax raises errors of many kinds.
        raise OSError(
            f"{path} could not be written ({_reason(error)}); earlier checkpoints are unchanged"
        ) from error
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
    return path


def load_state(checkpoint: Path, target: Any) -> Any:
    """Reads the state of a checkpoint whose files have been checked.

    Args:
      checkpoint: the checkpoint.
      target: NumPy arrays of the shapes and types that it holds.

    Raises:
      ValueError: Orbax cannot read it into the target.
    """
    from orbax import checkpoint as ocp

    try:
        with _checkpointer() as checkpointer:
            return checkpointer.restore(
                (checkpoint / _STATE).absolute(), args=ocp.args.StandardRestore(target)
            )
    except Exception as error:
        raise ValueError(
            f"{checkpoint} is as it was written, but Orbax cannot read it into the state of this "
            f"model and optimizer ({_reason(error)}); give those that the run was begun with, or "
            "take another folder"
        ) from error


def prune(folder: Path, keep: int, losses: dict[int, float]) -> None:
    """Deletes all checkpoints but the newest, and the one of the lowest validation loss.

    Args:
      folder: the folder.
      keep: how many of the newest to keep.
      losses: the validation loss after every epoch.
    """
    held = _checkpoints(folder)
    known = {epoch: losses.get(epoch, math.nan) for epoch, _ in held}
    finite = {epoch: loss for epoch, loss in known.items() if math.isfinite(loss)}
    best = min(finite, key=lambda epoch: (finite[epoch], epoch), default=None)
    for epoch, path in held[keep:]:
        if epoch != best:
            _delete(path)


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Epoch and path of every checkpoint, the newest first."""
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    found = [(int(match[1]), path) for match, path in matches if match and path.is_dir()]
    return sorted(found, reverse=True)


def _beside(folder: Path) -> Path:
    """Makes a folder of a name that no checkpoint has."""
    path = folder / f".jaxgraph-{uuid.uuid4().hex}.part"
    path.mkdir()
    return path


def _delete(path: Path) -> None:
    """Deletes a checkpoint; a process killed meanwhile leaves none that looks damaged."""
    if not UNFINISHED.fullmatch(path.name):
        path = path.rename(path.parent / f".jaxgraph-{uuid.uuid4().hex}.part")
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _write_state(path: Path, state: Any) -> None:
    from orbax import checkpoint as ocp

    with _checkpointer() as checkpointer:
        checkpointer.save(path.absolute(), args=ocp.args.StandardSave(state))


def _checkpointer() -> Any:
    """Orbax in this process alone.

    `orbax.checkpoint.v1.save` compares the path in all processes, whatever its options say, and
    would wait for them in a thread beside their training.
    """
    from orbax import checkpoint as ocp

    first = jax.process_index()
    options = ocp.options.MultiprocessingOptions(
        primary_host=first, active_processes={first}, barrier_sync_key_prefix="jaxgraph"
    )
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=options)
    return ocp.Checkpointer(handler, multiprocessing_options=options)


def _sync(checkpoint: Path) -> None:
    """Waits until all files are on the disk."""
    for folder, _, names in os.walk(checkpoint):
        for name in names:
            with (Path(folder) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(folder))


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    number = _SYSTEM_ERROR.search(text)
    if number is not None:
        text = os.strerror(int(number[1])).lower()
    return " ".join(text.split())[:300].rstrip(".")
