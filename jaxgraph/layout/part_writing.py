"""Writes the parts of a graph into a folder, whole or not at all.

Arrays go into a new folder of data. Once all are on the disk, a new manifest names that folder:
until then a reader finds the old parts, from then on the new ones.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import re
import shutil
import uuid
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph.graph_facts import GraphFacts, TypedFacts
from jaxgraph.layout.part_files import (
    DATA_FOLDER,
    MANIFEST,
    ArrayFile,
    Contents,
    PartFiles,
    PartFolder,
    TypedContents,
    entries_of,
    write_text,
)
from jaxgraph.layout.shard_tables import PartSource
from jaxgraph.written_file import UNFINISHED, alone_in, sync_folder, write_atomically

WORK_FOLDER = re.compile(r"work-[0-9a-f]{32}")
"""The folder of a run that makes parts in steps, which goes once parts are written."""
_DTYPE = re.compile(r"\|b1|\|[iu]1|<[iu][248]|<f[248]")
"""The dtypes of arrays on disk: little-endian numbers of at most 64 bits, and bools."""
_MARK = b'"jaxgraph parts '
_SHARED = "shared"
_NODE_NAMES = "node-names"
NodeNames = np.ndarray | Mapping[str, np.ndarray | None] | None
"""The names of the nodes of a graph, or of each of its sets, by row."""
_SYNCS_AT_A_TIME = 16


def check_target(folder: str | os.PathLike[str]) -> Path:
    """Checks before the work that parts can be written into a folder."""
    root = Path(folder)
    if os.path.lexists(root) and not root.is_dir():
        raise ValueError(f"{root} is no folder; expected a new one, or one that holds parts")
    if not root.is_dir() and not root.parent.is_dir():
        raise ValueError(f"{root}: there is no folder {root.parent}; make it first")
    if not os.access(root if root.is_dir() else root.parent, os.R_OK | os.W_OK | os.X_OK):
        raise ValueError(f"{root} cannot be written to; expected a folder that you may write to")
    if root.is_dir() and not _holds_parts(root):
        other = [each.name for each in root.iterdir() if not _is_ours(each.name)]
        if other:
            raise ValueError(
                f"{root} holds {min(other)!r} and no parts of a graph; expected a new or an empty "
                "folder, or one that holds parts"
            )
    return root


def write_source(
    source: PartSource,
    folder: str | os.PathLike[str],
    graph_facts: GraphFacts | TypedFacts,
    *,
    node_names: NodeNames = None,
    on_part: Callable[[int], object] | None = None,
) -> PartFolder:
    """Writes the parts of a source; `jaxgraph.parallel.write_parts` writes those of a graph.

    Arrays that several parts have in common are written once. If writing is interrupted or fails,
    what was in the folder before is still there.
    """
    root = check_target(folder)
    is_new = not root.exists()
    root.mkdir(exist_ok=True)
    data = root / f"data-{uuid.uuid4().hex}"
    try:
        with alone_in(root):
            contents = _written(source, data, graph_facts, node_names, on_part)
            write_atomically(root / MANIFEST, write_text(contents))
            _delete_leftovers(root, keep=data.name)
    except BaseException as error:
        # An interruption may have come after the new manifest.
        if not _names(root, data.name):
            shutil.rmtree(data, ignore_errors=True)
            if is_new:
                with suppress(OSError):
                    root.rmdir()
        if isinstance(error, OSError):
            cause = error if error.strerror else error.__cause__
            reason = (getattr(cause, "strerror", None) or str(error)).lower()
            before = "the parts that were there are unchanged" if _holds_parts(root) else "no parts"
            raise OSError(f"{root} could not be written ({reason}); {before}.") from error
        raise
    return PartFolder(root, contents)


def _written(
    source: PartSource,
    data: Path,
    graph_facts: GraphFacts | TypedFacts,
    node_names: NodeNames,
    on_part: Callable[[int], object] | None,
) -> Contents:
    """Writes all arrays, and returns what the manifest says of them."""
    manifest: Any = source.manifest
    tables = [name for name, each in manifest.members.items() if "node_mask" in each.array_shapes()]
    names: dict[str, Any] = {"": node_names}
    if isinstance(node_names, Mapping):
        names = {f"tables/{name}/": each for name, each in node_names.items()}
    for name, _, dtype in manifest.shapes:
        if not _DTYPE.fullmatch(dtype):
            raise ValueError(f"{name} has dtype {dtype}; expected numbers or bools of NumPy")
    data.mkdir()
    files, counts, keys = _Files(data), [], []
    for index in range(manifest.num_parts):
        arrays, own = source.part(index), {}
        for number, (name, (_, dtype)) in enumerate(manifest.array_shapes().items()):
            values = np.ascontiguousarray(arrays[name], dtype).reshape(arrays[name].shape)
            own[name] = files.write(index, f"{number:03d}-{name}", values)
        counts.append(0)
        for table in tables:
            mask = np.asarray(arrays[f"{table}node_mask"], bool)
            counts[-1] += int(mask.sum())
            if names.get(table) is not None:
                some = np.asarray(names[table][arrays[f"{table}node_ids"][: len(mask)][mask]])
                some = some.astype(some.dtype.newbyteorder("<"))
                own[table + _NODE_NAMES] = files.write(index, table + _NODE_NAMES, some)
        keys.append(own)
        if on_part is not None:
            on_part(index)
    # Files have their last places: a file that several parts have was moved.
    placed = [{name: files.written[key] for name, key in own.items()} for own in keys]
    named = [own.pop(_NODE_NAMES, None) for own in placed]
    of_sets = [_names_of_sets(own) for own in placed]
    parts = tuple(map(PartFiles, counts, placed, named, of_sets))
    lengths = files.written[files.write(None, "row-lengths", entries_of(manifest))]
    _sync(data)
    if isinstance(graph_facts, GraphFacts):
        return Contents(data.name, manifest, graph_facts, parts, lengths)
    typed = TypedContents(manifest, graph_facts)
    return Contents(data.name, None, None, parts, lengths, typed)


def _names_of_sets(files: dict[str, ArrayFile]) -> dict[str, ArrayFile]:
    """Takes the files of the names of sets of nodes out of those of a part."""
    own = [name for name in files if name.endswith(f"/{_NODE_NAMES}")]
    return {name.removeprefix("tables/").rpartition("/")[0]: files.pop(name) for name in own}


_Key = tuple[str, bytes]
"""The name of an array, and the SHA-256 of its file."""


class _Files:
    """The files of a folder of data; arrays with equal names and bytes are one file.

    Args:
      data: the folder.

    Attributes:
      written: the files so far, in the places where they are now.
    """

    def __init__(self, data: Path) -> None:
        self.data = data
        self.written: dict[_Key, ArrayFile] = {}

    def write(self, part: int | None, name: str, values: np.ndarray) -> _Key:
        """Writes an array of a part, or of the manifest, unless an earlier part has the same."""
        safe = re.sub(r"[^A-Za-z0-9_]+", "-", name)[:80]
        head = io.BytesIO()
        description = {"descr": values.dtype.str, "fortran_order": False, "shape": values.shape}
        np.lib.format.write_array_header_1_0(head, description)
        text, body = head.getvalue(), values.reshape(-1).view(np.uint8).data
        digest = hashlib.sha256(text)
        digest.update(body)
        key = (name, digest.digest())
        if key in self.written:
            self._share(key)
            return key
        place = f"{_SHARED if part is None else f'part-{part:04d}'}/{safe}.npy"
        path = self.data / place
        path.parent.mkdir(exist_ok=True)
        _write_file(path, text, body)
        size, checksum = len(text) + len(body), zlib.crc32(body, zlib.crc32(text))
        self.written[key] = ArrayFile(place, values.shape, values.dtype.str, size, checksum)
        return key

    def _share(self, key: _Key) -> None:
        file = self.written[key]
        part, name = file.file.split("/")
        if part == _SHARED:
            return
        folder = self.data / _SHARED
        folder.mkdir(exist_ok=True)
        # Its part keeps arrays of two parts with equal names apart.
        moved = f"{_SHARED}/{part}-{name}"
        (self.data / file.file).rename(self.data / moved)
        self.written[key] = dataclasses.replace(file, file=moved)


def _write_file(path: Path, *contents: bytes | memoryview) -> None:
    with path.open("xb") as file:
        file.writelines(contents)


def _sync(data: Path) -> None:
    """Waits until a folder of data is on the disk; file systems join syncs that run together."""
    files = [each for each in data.rglob("*.npy")]

    def sync_file(path: Path) -> None:
        with path.open("rb") as file:
            os.fsync(file.fileno())

    with ThreadPoolExecutor(_SYNCS_AT_A_TIME) as pool:
        list(pool.map(sync_file, files))
    for each in (*data.iterdir(), data, data.parent):
        sync_folder(each)


def _delete_leftovers(root: Path, keep: str) -> None:
    """Deletes the data of earlier parts and of interrupted runs; a name that is ours alone."""
    for each in list(root.iterdir()):
        if each.is_symlink() or each.name in (keep, MANIFEST) or not _is_ours(each.name):
            continue
        if each.is_dir():
            shutil.rmtree(each, ignore_errors=True)
        else:
            each.unlink(missing_ok=True)


def _is_ours(name: str) -> bool:
    return any(kind.fullmatch(name) for kind in (DATA_FOLDER, WORK_FOLDER, UNFINISHED))


def _holds_parts(root: Path) -> bool:
    return _names(root, _MARK.decode())


def _names(root: Path, text: str) -> bool:
    """True where the manifest of a folder has a text in it."""
    try:
        return text.encode() in (root / MANIFEST).read_bytes()
    except OSError:
        return False
