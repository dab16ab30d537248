"""Files that are written whole or not at all: checked before the work, replaced after it."""

import fcntl
import os
import re
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

UNFINISHED = re.compile(r"\.jaxgraph-[0-9a-f]{32}\.part")
"""Names of files that a killed process leaves behind."""


def check_writable(option: str, path: Path | None) -> None:
    """Checks before the work that a file for its result can be written.

    Makes an empty file next to `path` and removes it: permissions alone do not reveal a read-only
    file system, or a name that is too long.
    """
    if path is None:
        return
    try:
        mode = _mode(path)
        if mode is not None and stat.S_ISDIR(mode):
            raise ValueError(f"{option}: {path} is a folder; expected the name of a file.")
        if _is_stream(path):
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            return
        target = path.resolve()
        if _mode(target.parent) is None:
            raise ValueError(f"{option}: there is no folder {path.parent}; make it first.")
        beside = _beside(target)
        os.close(_make(beside))
        beside.unlink()
    except NotADirectoryError as error:
        raise ValueError(f"{option}: {path.parent} is no folder; expected one.") from error
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
        raise ValueError(
            f"{option}: {path} cannot be written ({_reason(error)}); expected a file in a folder "
            "that you may write to."
        ) from error


def write_atomically(path: Path, contents: bytes | str) -> None:
    """Writes a file next to the existing one, and replaces that once all data is on the disk.

    A reader sees the old contents or the new ones, never a part of them, even if the disk is full
    or the machine stops. Devices and pipes (`/dev/stdout`) are written in place. A symbolic link
    stays, and so do the permissions of the old file.
    """
    data = contents.encode("utf-8", "surrogateescape") if isinstance(contents, str) else contents
    try:
        if _is_stream(path):
            _append(path, data)
        else:
            _replace(path.resolve(), data)
    except OSError as error:
        before = "the file that was there is unchanged" if path.is_file() else "there is no file"
        raise OSError(f"{path} could not be written ({_reason(error)}); {before}.") from error


def write_each(*writes: Callable[[], object]) -> None:
    """Attempts every write, so that a file that fails does not lose the others."""
    failed: list[OSError] = []
    for write in writes:
        try:
            write()
        except OSError as error:
            failed.append(error)
    if len(failed) == 1:
        raise failed[0]
    if failed:
        raise OSError(" ".join(map(str, failed)))


def _replace(target: Path, data: bytes) -> None:
    beside = _beside(target)
    descriptor = _make(beside)
    try:
        try:
            mode = _mode(target)
            if mode is not None:
                os.fchmod(descriptor, stat.S_IMODE(mode))
            _write(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Waits until the names of the files in a folder are on the disk."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keeps other processes from writing to a folder at the same time, while the context lasts."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{folder}: another process writes to it; wait for it, or take another folder"
            ) from None
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


def _append(stream: Path, data: bytes) -> None:
    # O_APPEND: the standard output may be a file that already holds the summary.
    descriptor = os.open(stream, os.O_WRONLY | os.O_APPEND)
    try:
        _write(descriptor, data)
    finally:
        os.close(descriptor)


def _is_stream(path: Path) -> bool:
    """True where `path` names a device, a pipe or an open file, which cannot be replaced."""
    mode = _mode(path)
    if mode is None or stat.S_ISREG(mode):
        folder = path.parent.resolve()
        return mode is not None and (folder == Path("/dev") or folder.is_relative_to("/proc"))
    return not stat.S_ISDIR(mode)


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _beside(path: Path) -> Path:
    # Without the file's own name, which may have the maximal length.
    return path.parent / f".jaxgraph-{uuid.uuid4().hex}.part"


def _make(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
