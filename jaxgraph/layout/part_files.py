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
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from jaxgraph.graph_facts import GraphFacts
from jaxgraph.layout.manifest import Arrays, Manifest
from jaxgraph.layout.manifest_check import DTYPE, check_manifest
from jaxgraph.layout.manifest_text import decoded, parsed

__all__ = [
    "DATA_FOLDER",
    "MANIFEST",
    "ArrayFile",
    "Contents",
    "PartFiles",
    "PartFolder",
    "check_contents",
    "folder_error",
    "open_parts",
]

MANIFEST = "manifest.json"
DATA_FOLDER = re.compile(r"data-[0-9a-f]{32}")
_FILE = re.compile(r"(part-[0-9]{4,9}|shared)/[A-Za-z0-9_-]+\.npy")
_ENTRIES_DTYPE = re.compile(r"<i4|<i8")
_NAMES_DTYPE = re.compile(r"<U[1-9][0-9]{0,8}|<i8|<i4")
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
    """

    num_nodes: int
    arrays: Mapping[str, ArrayFile]
    node_names: ArrayFile | None


@dataclasses.dataclass(frozen=True)
class Contents:
    """All that the manifest of a folder says.

    Attributes:
      data: the name of the folder of the data.
      manifest: what the parts agree on.
      graph: facts of the graph.
      parts: the files of each part.
      row_lengths: the file of the entries of the manifest's arrays.
    """

    data: str
    manifest: Manifest
    graph: GraphFacts
    parts: tuple[PartFiles, ...]
    row_lengths: ArrayFile


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
    def manifest(self) -> Manifest:
        """Counts and padded shapes."""
        return self.contents.manifest

    @property
    def graph(self) -> GraphFacts:
        """Facts of the graph, which a model and its training need."""
        return self.contents.graph

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
        of_all = (*named, self.contents.row_lengths)
        return {each.file: each for part in parts for each in part.arrays.values()} | {
            each.file: each for each in of_all
        }

    def part(self, index: int) -> Arrays:
        """Maps the arrays of one part into memory, after a check of every file.

        Args:
          index: the part.

        Returns:
          The arrays by name, read-only and not padded.

        Raises:
          ValueError: a file is missing, damaged, or not the one that the manifest describes.
        """
        part = self.contents.parts[index]
        arrays = {name: self._read(file) for name, file in part.arrays.items()}
        found = int(arrays["node_mask"].sum())
        if found != part.num_nodes:
            where = f"{self.path}: part {index}"
            raise folder_error(where, f"it has {found} nodes; expected {part.num_nodes}")
        return arrays

    def node_names(self) -> np.ndarray | None:
        """Reads the names of all nodes.

        Returns:
          str or int [num_nodes] in the order of the graph, or None where its nodes have no names.

        Raises:
          ValueError: as for `part`, or nodes are missing.
        """
        ids, names = [], []
        for part in self.contents.parts:
            if part.node_names is None:
                return None
            mask = self._read(part.arrays["node_mask"])
            ids.append(self._read(part.arrays["node_ids"])[: len(mask)][mask])
            names.append(self._read(part.node_names))
        order = np.concatenate(ids)
        if not np.array_equal(np.sort(order), np.arange(self.graph.num_nodes)):
            raise folder_error(str(self.path), "its parts do not hold every node once")
        of_all = np.concatenate(names)
        found = np.empty_like(of_all)
        found[order] = of_all
        return found

    def _read(self, file: ArrayFile) -> np.ndarray:
        return _read(self.path, self.contents.data, file)


def _read(root: Path, data: str, file: ArrayFile) -> np.ndarray:
    path = root / data / file.file
    _check_place(path, root)
    with path.open("rb") as opened:
        _check_bytes(path, opened, file)
        return _mapped(path, opened, file)


def open_parts(folder: str | os.PathLike[str]) -> PartFolder:
    """Opens a folder of parts, which `jaxgraph.parallel.place` puts on devices.

    Nothing in the folder is trusted: the manifest is checked here, and every file of a part when
    that part is read. The CRC-32 finds damage, not forgery. Nothing is unpickled.

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
    _check_place(path, root)
    with _naming(path):
        content = parsed(path.read_bytes())
        data, file = _file_of_entries(content)
    entries = _read(root, data, file)
    with _naming(path):
        contents = decoded(Contents, content, entries)
        check_contents(contents)
    return PartFolder(root, contents)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Names the file in errors."""
    try:
        yield
    except ValueError as error:
        raise folder_error(str(path), str(error)) from None


def _file_of_entries(content: Any) -> tuple[str, ArrayFile]:
    """The folder of the data and the file of the manifest's arrays, by its parsed text."""
    if not isinstance(content, dict) or not {"data", "row_lengths"} <= content.keys():
        raise ValueError("content lacks data or row_lengths")
    data = content["data"]
    _check_data(data)
    where = "content.row_lengths"
    file = decoded(ArrayFile, content["row_lengths"], np.zeros(0, np.int64), where)
    _check_file(where, file, _ENTRIES_DTYPE)
    if len(file.shape) != 1:
        raise ValueError(f"{where} has shape {list(file.shape)}; expected one dimension")
    return data, file


def _check_data(data: Any) -> None:
    if not isinstance(data, str) or not DATA_FOLDER.fullmatch(data):
        raise ValueError(f"content.data is {data!r}; expected data-<32 hexadecimal digits>")


def folder_error(where: str, fault: str) -> ValueError:
    """Makes the error of a folder that cannot be trusted, with the remedy."""
    return ValueError(
        f"{where}: {fault}. The folder was damaged, changed or copied in part: copy it again, or "
        "write it again with jaxgraph partition --out, or jaxgraph.parallel.write_parts"
    )


def check_contents(contents: Contents) -> None:
    """Checks that the entries of a manifest fit each other; ValueError names one that does not."""
    manifest, parts = contents.manifest, contents.parts
    check_manifest(manifest)
    _check_data(contents.data)
    if len(parts) != manifest.num_parts:
        raise ValueError(f"it lists {len(parts)} parts; expected {manifest.num_parts}")
    for index, part in enumerate(parts):
        _check_part(f"part {index}", part, manifest)
    if len({part.node_names is None for part in parts}) > 1:
        raise ValueError(
            "some parts have names of nodes and others have none; expected all or none"
        )
    nodes = [part.num_nodes for part in parts]
    if not manifest.has_padding and min(nodes) < manifest.node_rows:
        raise ValueError("manifest.has_padding is False, and a part has fewer nodes than rows")
    _check_sizes(manifest, parts)
    _check_facts(contents.graph, manifest, sum(nodes))


def _check_part(where: str, part: PartFiles, manifest: Manifest) -> None:
    listed = {name: (shape, dtype) for name, shape, dtype in manifest.shapes}
    if part.arrays.keys() != listed.keys():
        odd = sorted(part.arrays.keys() ^ listed.keys())
        raise ValueError(f"{where} and manifest.shapes do not list the same arrays: {odd}")
    if part.num_nodes > manifest.node_rows:
        raise ValueError(f"{where} has {part.num_nodes} nodes for {manifest.node_rows} rows")
    for name, file in part.arrays.items():
        shape, dtype = listed[name]
        _check_file(f"{where}: {name}", file, DTYPE)
        fits = len(file.shape) == len(shape) and all(map(int.__le__, file.shape, shape))
        if not fits or file.dtype != dtype:
            raise ValueError(
                f"{where}: {name} is {file.dtype} {list(file.shape)}; expected {dtype}, at most "
                f"{list(shape)}"
            )
    if part.node_names is not None:
        _check_file(f"{where}: names of nodes", part.node_names, _NAMES_DTYPE)
        if part.node_names.shape != (part.num_nodes,):
            raise ValueError(f"{where}: names have shape {list(part.node_names.shape)}")


def _check_file(what: str, file: ArrayFile, dtypes: re.Pattern[str]) -> None:
    if not _FILE.fullmatch(file.file):
        raise ValueError(f"{what} is in {file.file!r}; expected a file of part-0000 or shared")
    if not dtypes.fullmatch(file.dtype):
        raise ValueError(f"{what} has dtype {file.dtype!r}; expected a plain one")


def _check_sizes(manifest: Manifest, parts: tuple[PartFiles, ...]) -> None:
    """Checks that no array has other padding than its slack: one forged size takes no memory."""
    shapes = {name: shape for name, shape, _ in manifest.shapes}
    for name, shape in shapes.items():
        largest = [max(sizes) for sizes in zip(*(p.arrays[name].shape for p in parts), strict=True)]
        slack = manifest.slack(name, len(shape))
        # A part without repeated edges has no repetitions, others one for each edge.
        edges = f"{name.removesuffix('/repetition')}/by_receiver/neighbors"
        others = set(map(max, shapes.get(edges, ()), (1,)))
        for size, most, more in zip(shape, largest, slack, strict=False):
            if size not in {most, more, most + more, max(most, 1)} | others:
                raise ValueError(
                    f"manifest.shapes[{name}] is {list(shape)}; expected {largest}, the largest of "
                    f"all parts, and slack of {list(slack)}"
                )


def _check_facts(facts: GraphFacts, manifest: Manifest, nodes: int) -> None:
    shapes, counts = manifest.array_shapes(), manifest.counts
    assert counts is not None
    features = shapes.get("nodes", ((0, 0), 0))[0][1]
    for of_kind, count in ((manifest.features, "num_columns"), (manifest.columns, "num_features")):
        features = features if of_kind is None else getattr(of_kind, count)
    splits = {name for name in ("train", "val", "test") if f"{name}_mask" in shapes}
    pairs = {
        "counts.num_nodes": (counts.num_nodes, nodes),
        "graph.num_nodes": (facts.num_nodes, nodes),
        "graph.num_edges": (facts.num_edges, counts.num_edges),
        "graph.num_classes": (facts.num_classes, manifest.num_classes),
        "graph.multilabel": (facts.multilabel, manifest.multilabel),
        "graph.num_features": (facts.num_features, features),
        "graph.edge_features": (facts.edge_features, shapes.get("edges", ((0, 0), 0))[0][1]),
        "graph.splits": (set(facts.splits), splits),
    }
    of_classes = facts.train_class_counts
    one_class = "labels" in shapes and not manifest.multilabel and "train" in splits
    pairs["graph.train_class_counts"] = (of_classes is not None, one_class)
    if of_classes is not None and one_class:
        pairs["graph.train_class_counts"] = (
            (len(of_classes), sum(of_classes)),
            (facts.num_classes, facts.splits.get("train")),
        )
    for name, (found, expected) in pairs.items():
        if found != expected:
            raise ValueError(f"{name} is {found}; expected {expected}, by its other entries")


def _check_place(path: Path, root: Path) -> None:
    """Checks that a file exists and lies inside the folder, whatever links lead to it."""
    try:
        real = path.resolve(strict=True)
        inside, mode = real.is_relative_to(root.resolve()), real.stat().st_mode
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
        reason = getattr(error, "strerror", None) or str(error)
        raise folder_error(str(path), f"it cannot be read ({reason.lower()})") from None
    if not inside:
        raise folder_error(str(path), f"a symbolic link leads out of the folder, to {real}")
    if not stat.S_ISREG(mode):
        raise folder_error(str(path), "it is no regular file")


def _check_bytes(path: Path, opened: BinaryIO, file: ArrayFile) -> None:
    size = os.fstat(opened.fileno()).st_size
    if size != file.bytes:
        raise folder_error(str(path), f"it has {size} bytes; expected {file.bytes}")
    found, buffer = 0, bytearray(_BYTES_AT_A_TIME)
    view = memoryview(buffer)
    while count := opened.readinto(buffer):  # pyright: ignore[reportAttributeAccessIssue]
        found = zlib.crc32(view[:count], found)
    if found != file.crc32:
        raise folder_error(str(path), f"its CRC-32 is {found}; expected {file.crc32}")


def _mapped(path: Path, opened: BinaryIO, file: ArrayFile) -> np.ndarray:
    """Maps the array of an open file whose bytes have been checked."""
    opened.seek(0)
    try:
        if np.lib.format.read_magic(opened) != (1, 0):
            raise ValueError("its format of .npy is not version 1.0")
        shape, column_major, dtype = np.lib.format.read_array_header_1_0(opened)
    except ValueError as error:
        raise folder_error(str(path), f"it is no .npy file ({error})") from None
    if (shape, dtype.str, column_major) != (file.shape, file.dtype, False):
        raise folder_error(
            str(path), f"it holds {dtype} {list(shape)}; expected {file.dtype} {list(file.shape)}"
        )
    start = opened.tell()
    expected = start + dtype.itemsize * int(np.prod(shape, dtype=object))
    if expected != file.bytes:
        raise folder_error(str(path), f"it has {file.bytes} bytes; expected {expected}")
    if expected == start:
        return np.zeros(shape, dtype)
    return np.memmap(opened, dtype, "r", start, shape)
