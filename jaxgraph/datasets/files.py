"""Search for the files of a data set, and errors for missing or broken ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DATA_DIR_VARIABLE = "JAXGRAPH_DATA"
_LONGEST_REASON = 500


class MissingFileError(FileNotFoundError, ValueError):
    """A file or folder that a data set needs is not there."""


class BrokenFileError(ValueError):
    """A file's content does not follow its format."""


class UnfitOptionError(ValueError):
    """An argument asks for something that the file does not have."""


class AmbiguousFileError(ValueError):
    """A file's content has several readings; the message names the option that decides."""


# Errors whose message already names the file and the fault.
_EXPLAINED = (
    AmbiguousFileError,
    BrokenFileError,
    MissingFileError,
    UnfitOptionError,
)


def option_advice(argument: str, command_line: str | None = None) -> str:
    """Returns advice to set an option, in Python and on the command line, for a message."""
    typed = command_line or f'--option "{argument}"'
    return f"pass {argument} (on the command line {typed})"


def data_folder(data_dir: str | os.PathLike[str] | None) -> Path:
    """Returns the folder to read from: ``data_dir``, or else the environment's JAXGRAPH_DATA."""
    named = data_dir if data_dir is not None else os.environ.get(DATA_DIR_VARIABLE)
    if not named:
        raise MissingFileError(
            f"data_dir: not given, and the environment variable {DATA_DIR_VARIABLE} is not set; "
            "pass the folder that holds the data sets' files."
        )
    folder = Path(named).expanduser()
    if not folder.is_dir():
        source = "data_dir" if data_dir is not None else DATA_DIR_VARIABLE
        raise MissingFileError(f"{source}: {folder} is no folder; pass one that holds the files.")
    return folder


def find_file(folder: Path, *candidates: str) -> Path | None:
    """Returns the first of some relative paths that is a file, or None."""
    for candidate in candidates:
        for path in (folder / candidate, folder / Path(candidate).name):
            if path.is_file():
                return path
    return None


def require_file(folder: Path, *candidates: str, origin: str) -> Path:
    """Returns the first of some relative paths that is a file."""
    path = find_file(folder, *candidates)
    if path is None:
        raise MissingFileError(
            f"{folder / candidates[0]}: no such file (tried {', '.join(candidates)}, with and "
            f"without their folder). Put it there from {origin}, or pass another data_dir."
        )
    return path


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turns any error of a reader on a broken file into a ValueError that names the file."""
    try:
        yield
    except _EXPLAINED:
        raise
    except UnicodeDecodeError as error:
        raise BrokenFileError(
            f"{path}: holds bytes that are not {error.encoding.upper()}; save it as UTF-8, as with "
            f"'iconv -f latin1 -t utf-8 {path.name}', or fetch it again."
        ) from error
    except MemoryError as error:
        raise BrokenFileError(
            f"{path}: asks for more memory than there is ({error}). It may be damaged; fetch it "
            "again, or read it on a machine with more."
        ) from error
    # A reader raises arbitrary errors on arbitrary bytes, Polars panics. They become the cause.
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
        advice = "It may be truncated or of another format; fetch it again."
        if isinstance(error, PermissionError):
            advice = "See whether you may read it."
        raise BrokenFileError(f"{path}: cannot be read as {kind} ({reason}). {advice}") from error
