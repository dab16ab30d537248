"""A folder that holds the parts of a graph: memory-mapped arrays, and a manifest that is checked.

    DIR/manifest.json                 format, CRC-32, and all that is known of every file
    DIR/data-<hex>/part-0000/*.npy    the arrays of one part
    DIR/data-<hex>/shared/*.npy       arrays that several parts have, and those of the manifest

A process that owns some parts needs the manifest, the folders of these parts and `shared`. What is
stored is the exchange contract; arrays that implementations derive are made when a part is placed.
`part_writing` writes such a folder.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import types
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from jaxgraph.graph_facts import GraphFacts, TypedFacts
from jaxgraph.layout.manifest import Arrays, Manifest
from jaxgraph.layout.typed_manifest import TypedManifest

MANIFEST = "manifest.json"
DATA_FOLDER = re.compile(r"data-[0-9a-f]{32}")
_BYTES_AT_A_TIME = 1 << 20


@dataclasses.dataclass(frozen=True)
class ArrayFile:
    """A file that holds an array.

    Attributes:
      file: its path in the folder of the data.
      shape, dtype: of the array.
      bytes, crc32: of the file.
    """

    file: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    crc32: int


@dataclasses.dataclass(frozen=True)
class PartFiles:
    """The files of a part.

    Attributes:
      num_nodes: nodes of the part.
      arrays: those that the manifest lists, by name.
      node_names: the names of its nodes in the order of their rows; None: nodes have none.
      names_of_sets: those of each set of nodes that has some, by name.
    """

    num_nodes: int
    arrays: Mapping[str, ArrayFile]
    node_names: ArrayFile | None
    names_of_sets: Mapping[str, ArrayFile] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class TypedContents:
    """All that parts of a graph of several sets agree on.

    Attributes:
      manifest: its tables and relations.
      graph: facts of the graph.
    """

    manifest: TypedManifest
    graph: TypedFacts


@dataclasses.dataclass(frozen=True)
class Contents:
    """All that the manifest of a folder says.

    Attributes:
      data: the name of the folder of the data.
      manifest: what the parts agree on.
      graph: facts of the graph.
      parts: the files of each part.
      row_lengths: the file of the entries of the manifest's arrays.
      typed: the manifest and facts of a graph of several sets, which has none of the above.
    """

    data: str
    manifest: Manifest | None
    graph: GraphFacts | None
    parts: tuple[PartFiles, ...]
    row_lengths: ArrayFile
    typed: TypedContents | None = None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PartFolder:
    """The parts of a graph in a folder; a source for `jaxgraph.parallel.place`.

    Attributes:
      path: the folder.
      contents: what its manifest says, checked.
    """

    path: Path
    contents: Contents

    def __repr__(self) -> str:
        graph = self.graph
        return (
            f"PartFolder({str(self.path)!r}, name={graph.name!r}, num_nodes={graph.num_nodes}, "
            f"num_edges={graph.num_edges}, mode={self.mode!r}, num_parts={self.num_parts})"
        )

    @property
    def manifest(self) -> Any:
        """Counts and padded shapes."""
        typed = self.contents.typed
        return self.contents.manifest if typed is None else typed.manifest

    @property
    def graph(self) -> Any:
        """Facts of the graph, which a model and its training need."""
        typed = self.contents.typed
        return self.contents.graph if typed is None else typed.graph

    @property
    def num_parts(self) -> int:
        """The number of parts."""
        return self.manifest.num_parts

    @property
    def mode(self) -> str:
        """The mode that the parts were made for: "sar", "domain" or "p3"."""
        return self.manifest.mode if self.manifest.columns is None else "p3"

    @property
    def files(self) -> Mapping[str, ArrayFile]:
        """The files of all arrays by their paths in the folder of the data."""
        parts = self.contents.parts
        named = [part.node_names for part in parts if part.node_names is not None]
        named += [each for part in parts for each in part.names_of_sets.values()]
        of_all = (*named, self.contents.row_lengths)
        return {each.file: each for part in parts for each in part.arrays.values()} | {
            each.file: each for each in of_all
        }

    def part(self, index: int) -> Arrays:
        """Maps the arrays of one part into memory, after a check of every file."""
        return {name: self._read(x) for name, x in self.contents.parts[index].arrays.items()}

    def node_names(self, node_set: str | None = None) -> np.ndarray | None:
        """Reads the names of all nodes, of a graph of several sets those of one, or the target."""
        ids, names, typed = [], [], self.contents.typed
        if node_set is None and typed is not None:
            node_set = typed.manifest.target
        table = "" if node_set is None else f"tables/{node_set}/"
        for part in self.contents.parts:
            own = part.node_names if node_set is None else part.names_of_sets.get(node_set)
            if own is None:
                return None
            mask = self._read(part.arrays[f"{table}node_mask"])
            ids.append(self._read(part.arrays[f"{table}node_ids"])[: len(mask)][mask])
            names.append(self._read(own))
        of_all = np.concatenate(names)
        found = np.empty_like(of_all)
        found[np.concatenate(ids)] = of_all
        return found

    def _read(self, file: ArrayFile) -> np.ndarray:
        return _read(self.path / self.contents.data / file.file, file)


def open_parts(folder: str | os.PathLike[str]) -> PartFolder:
    """Opens a folder of parts, which `jaxgraph.parallel.place` puts on devices.

    The manifest is checked here, and every file of a part when that part is read. The CRC-32 finds
    damage, not forgery. Nothing is unpickled.

    Args:
      folder: as `jaxgraph.parallel.write_parts` or `jaxgraph partition --out` wrote it.

    Returns:
      A source of parts that reads a part when asked for it.

    Raises:
      ValueError: there is no such folder, or its manifest is missing, damaged or of another
        version.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(
            f"{root}: there is no such folder; write one with jaxgraph partition --out {root}, or "
            "jaxgraph.parallel.write_parts"
        )
    path = root / MANIFEST
    if not path.exists() and any(root.glob("work-*")):
        raise ValueError(
            f"{root}: the parts are unfinished; give the same command of jaxgraph partition again "
            "to continue"
        )
    try:
        content = parsed(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _folder_error(path, error) from None
    file = decoded(ArrayFile, content["row_lengths"], np.zeros(0, np.int64))
    entries = _read(root / content["data"] / file.file, file)
    return PartFolder(root, decoded(Contents, content, entries))


def _read(path: Path, file: ArrayFile) -> np.ndarray:
    """Maps the array of a file whose bytes are those that were written."""
    size, found = 0, 0
    try:
        with path.open("rb") as opened:
            while some := opened.read(_BYTES_AT_A_TIME):
                size, found = size + len(some), zlib.crc32(some, found)
    except OSError as error:
        raise _folder_error(path, error) from None
    if (size, found) != (file.bytes, file.crc32):
        fault = f"{size} bytes of CRC-32 {found}; expected {file.bytes} of {file.crc32}"
        raise _folder_error(path, f"it has {fault}")
    return np.load(path, mmap_mode="r")


def _folder_error(path: Path, fault: Exception | str) -> ValueError:
    """The error of a folder that cannot be read, with the remedy."""
    if isinstance(fault, OSError):
        fault = f"it cannot be read ({(fault.strerror or str(fault)).lower()})"
    return ValueError(
        f"{path}: {fault}. The folder was damaged, changed or copied in part: copy it again, or "
        "write it again with jaxgraph partition --out, or jaxgraph.parallel.write_parts"
    )


FORMAT, TYPED_FORMAT = "jaxgraph parts 2", "jaxgraph parts 3"
"""Names and versions of the formats of a graph of one set, and of several."""


def write_text(content: Any) -> str:
    """Writes a dataclass as JSON, with its CRC-32."""
    text = _canonical(_plain(content))
    form = FORMAT if getattr(content, "typed", None) is None else TYPED_FORMAT
    return f'{{"format":"{form}","crc32":{zlib.crc32(text.encode())},\n"content":{text}}}\n'


def entries_of(content: Any) -> np.ndarray:
    """Joins the entries of all arrays of a dataclass, for `decoded`."""
    joined = np.concatenate([np.zeros(0, np.int64), *_arrays(content)])
    return joined.astype(np.int32 if joined.max(initial=0) < 2**31 else np.int64)


def _arrays(value: Any) -> Iterator[np.ndarray]:
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _arrays(getattr(value, field.name))
    elif isinstance(value, Mapping | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _arrays(each)
    elif isinstance(value, np.ndarray):
        yield value


def parsed(text: bytes) -> Any:
    """Reads the JSON that `write_text` has written, to be decoded."""
    try:
        read = json.loads(text)
        found, checksum, content = read["format"], read["crc32"], read["content"]
        own = zlib.crc32(_canonical(content).encode())
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ValueError("it is no manifest of parts") from None
    if found not in (FORMAT, TYPED_FORMAT):
        raise ValueError(
            f"its format is {found!r}; this version of jaxgraph reads {FORMAT!r}, and "
            f"{TYPED_FORMAT!r} of graphs of several sets"
        )
    if own != checksum:
        raise ValueError(f"its CRC-32 is {own}; expected {checksum!r}, as written in it")
    return content


def decoded(kind: type, content: Any, entries: np.ndarray) -> Any:
    """Makes a dataclass from its parsed JSON and the entries of its arrays."""
    first = 0

    def take(count: int) -> np.ndarray:
        nonlocal first
        first += count
        return entries[first - count : first].astype(np.int64)

    return _decoded(kind, content, take)


def _canonical(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return len(value)
    if isinstance(value, np.generic):
        return value.tolist()
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _decoded(kind: Any, value: Any, take: Callable[[int], np.ndarray]) -> Any:
    """Reads a value of a type; `take` returns the entries of the next array."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (given,) = (each for each in arguments if each is not types.NoneType)
        return None if value is None else _decoded(given, value, take)
    if dataclasses.is_dataclass(kind):
        hints, names = get_type_hints(kind), [x.name for x in dataclasses.fields(kind)]
        made: Any = kind
        return made(**{x: _decoded(hints[x], value[x], take) for x in names if x in value})
    if origin is tuple:
        kinds = (arguments[0],) * len(value) if arguments[-1] is Ellipsis else arguments
        if set(kinds) == {int}:
            return tuple(value)  # at once: there may be one for each pair of parts
        return tuple(_decoded(each, x, take) for each, x in zip(kinds, value, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        return {key: _decoded(arguments[1], each, take) for key, each in value.items()}
    return take(value) if kind is np.ndarray else value
