"""The second step: the row of each key, and the names of nodes where ids are not rows."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxgraph.datasets.files import AmbiguousFileError, BrokenFileError
from jaxgraph.datasets.node_ids import check_all_named, check_dense, check_name_width
from jaxgraph.external.edge_files import polars
from jaxgraph.external.file_rows import FileRows
from jaxgraph.external.keys import HASH_SEED, NAMES, READ, StoredEdges
from jaxgraph.external.work import Work

__all__ = ["NUMBER", "Numbering", "as_rows", "number_keys", "number_names", "number_of_ids"]

NUMBER = "number"
_BYTES_OF_A_NAME = 200
_HASHES = 1 << 64


@dataclasses.dataclass(frozen=True, eq=False)
class Numbering:
    """The row of each key.

    Attributes:
      num_nodes: the number of rows.
      keys: sorted [num_nodes]; None: keys are rows.
      rows: int32 [num_nodes], the row of each key; None: its position.
      names: str or int [num_nodes] by row, mapped from a file; None: rows have no names.
    """

    num_nodes: int
    keys: np.ndarray | None = None
    rows: np.ndarray | None = None
    names: np.ndarray | None = None

    def rows_of(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Finds the rows of some keys.

        Args:
          keys: [edges].

        Returns:
          int32 [edges], and bool [edges], which keys have no row; None: all have one.
        """
        if self.keys is None:
            unknown = (keys < 0) | (keys >= self.num_nodes)
            return keys.astype(np.int32), unknown if unknown.any() else None
        places = np.searchsorted(self.keys, keys.astype(self.keys.dtype))
        np.minimum(places, self.num_nodes - 1, out=places)
        unknown = self.keys[places] != keys
        rows = places.astype(np.int32) if self.rows is None else self.rows[places]
        return rows, unknown if unknown.any() else None


def as_rows(edges: StoredEdges, num_nodes: int | None, chunk: int, *, may_be_sparse: bool) -> int:
    """Reads ids as rows, and returns the number of nodes.

    Args:
      edges: all edges.
      num_nodes: as the caller or the file declares it, or None.
      chunk: edges that are read at once.
      may_be_sparse: whether nearly all nodes may have no edge.

    Raises:
      BrokenFileError: an id is negative.
      AmbiguousFileError: the ids are too sparse.
    """
    smallest, largest = 0, -1
    if "largest" in edges.facts or edges.facts.get("edges") == 1:
        some = [*edges.facts["first"], *(edges.facts.get(x) for x in ("smallest", "largest"))]
        smallest, largest = (f(x for x in some if x is not None) for f in (min, max))
    else:
        for first in range(0, edges.num_edges, chunk):
            for keys in edges.ends.read(first, first + chunk):
                smallest, largest = min(smallest, int(keys.min())), max(largest, int(keys.max()))
    if smallest < 0:
        raise BrokenFileError(f"an id is {smallest}; expected ids from 0")
    if num_nodes is None:
        if edges.num_edges == 0:
            raise BrokenFileError("holds no edge; pass num_nodes to make a graph without edges")
        if not may_be_sparse:
            check_dense(largest, edges.num_edges)
        return largest + 1
    if largest >= num_nodes:
        raise AmbiguousFileError(
            f"the largest id is {largest}, and there are {num_nodes} nodes; do ids start at 1? To "
            "relabel them, pass relabel=True (on the command line --relabel)"
        )
    return num_nodes


def number_keys(
    work: Work, edges: StoredEdges, dtype: np.dtype, num_nodes: int | None, chunk: int
) -> Numbering:
    """Numbers whole ids in ascending order.

    Args:
      work: the folder of the run.
      edges: all edges.
      dtype: of the ids in the user's file.
      num_nodes: as the caller gave it, or None.
      chunk: edges that are read at once.

    Returns:
      The numbering; names are the ids.
    """
    path = work.files_of(NUMBER) / "names.npy"
    if not work.is_done(NUMBER):
        found = np.zeros(0, dtype)
        for first in range(0, edges.num_edges, chunk):
            ends = edges.ends.read(first, first + chunk)
            found = np.union1d(found, np.concatenate(ends).astype(dtype, copy=False))
        check_all_named(found.size, num_nodes)
        np.save(path, found)
        work.record(NUMBER, {"done": True})
    names = np.load(path, mmap_mode="r")
    return Numbering(len(names), np.asarray(names[:]), None, names)


def number_of_ids(ids: FileRows, *, are_texts: bool) -> Numbering:
    """Numbers nodes by a given list of their ids.

    Args:
      ids: [num_nodes] of the user's file, in the order of rows.
      are_texts: whether the keys of edges are hashes of texts.

    Returns:
      The numbering.

    Raises:
      ValueError: the ids are of another kind than those of edges, or one is repeated.
    """
    names = np.memmap(ids.path, ids.dtype, "r", ids.offset, ids.shape)
    kinds = "U" if are_texts else "iu"
    if names.ndim != 1 or names.dtype.kind not in kinds:
        expected = "texts" if are_texts else "integers"
        raise ValueError(
            f"{ids.path}: holds {names.dtype} {list(names.shape)}; expected {expected} [num_nodes],"
            " as the ids of edges are"
        )
    if are_texts:
        pl = polars()
        step = 1 << 20
        some = (names[first : first + step].tolist() for first in range(0, len(names), step))
        keys = np.concatenate(
            [pl.Series(x, dtype=pl.String).hash(HASH_SEED).to_numpy() for x in some]
        )
    else:
        keys = np.array(names, np.int64)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    if (repeated := keys[1:] == keys[:-1]).any():
        name = names[order[int(np.argmax(repeated))]]
        raise ValueError(f"{ids.path}: the id {name!r} is repeated; expected one row for each node")
    return Numbering(len(names), keys, order.astype(np.int32), names)


def number_names(work: Work, num_nodes: int | None, limit: int) -> Numbering:
    """Numbers names in the order of their first occurrence.

    Args:
      work: the folder of the run; its first step has kept the names of each chunk.
      num_nodes: as the caller gave it, or None.
      limit: bytes that the names may take at once.

    Returns:
      The numbering.
    """
    folder = work.files_of(NUMBER)
    if not work.is_done(NUMBER):
        _number_names(work, folder, num_nodes, limit)
        work.record(NUMBER, {"done": True})
    names = np.load(folder / "names.npy", mmap_mode="r")
    return Numbering(len(names), np.load(folder / "keys.npy"), np.load(folder / "rows.npy"), names)


def _number_names(work: Work, folder: Path, num_nodes: int | None, limit: int) -> None:
    pl = polars()
    keys, places, longest, characters = [], [], 1, 0
    for number, group in enumerate(_by_hash(work, limit)):
        if group["hash"].n_unique() != len(group):
            repeated = group.filter(pl.col("hash").is_duplicated())["name"].to_list()[:2]
            raise ValueError(
                f"the names {repeated[0]!r} and {repeated[1]!r} have the same 64-bit hash, which "
                "happens once in millions of graphs; give ids.npy with numbers instead"
            )
        keys.append(group["hash"].to_numpy())
        places.append(group["place"].to_numpy())
        lengths = group["name"].str.len_chars()
        longest = max(longest, int(lengths.max() or 0))
        characters += int(lengths.sum())
        group.select("name").write_parquet(folder / f"{number:08d}.parquet")
    of_all = np.concatenate(keys)
    check_all_named(len(of_all), num_nodes)
    check_name_width(longest, len(of_all), characters)
    rows = np.empty(len(of_all), np.int32)
    rows[np.argsort(np.concatenate(places), kind="stable")] = np.arange(len(rows), dtype=np.int32)
    del places
    _write_names(folder, rows, [len(some) for some in keys], longest)
    np.save(folder / "keys.npy", of_all)
    np.save(folder / "rows.npy", rows)


def _by_hash(work: Work, limit: int) -> Iterator:
    """The distinct names in ascending order of hashes, a range of hashes at a time."""
    pl = polars()
    pattern = re.compile(r"[0-9]{8}\.parquet")
    chunks = work.read(READ)["chunks"]
    files = sorted(x for x in work.files_of(NAMES).iterdir() if pattern.fullmatch(x.name))[:chunks]
    scanned = pl.scan_parquet(files)
    total = int(scanned.select(pl.len()).collect().item())
    ranges = max(-(-total * _BYTES_OF_A_NAME // limit), 1)
    for number in range(ranges):
        least, beyond = (_HASHES * n // ranges for n in (number, number + 1))
        wanted = pl.col("hash").is_between(pl.lit(least, pl.UInt64), pl.lit(beyond - 1, pl.UInt64))
        yield (
            scanned.filter(wanted)
            .collect()
            .group_by("name")
            .agg(pl.col("hash").first(), pl.col("place").min())
            .sort("hash")
        )


def _write_names(folder: Path, rows: np.ndarray, sizes: list[int], longest: int) -> None:
    pl = polars()
    kind, first = np.dtype(f"<U{longest}"), 0
    for number, size in enumerate(sizes):
        # Mapped anew each time, so that pages do not stay.
        mode = "r+" if number else "w+"
        names = np.lib.format.open_memmap(folder / "names.npy", mode, kind, (len(rows),))
        some = pl.read_parquet(folder / f"{number:08d}.parquet")["name"]
        for start in range(0, size, 1 << 16):
            own = rows[first + start : first + min(start + (1 << 16), size)]
            names[own] = np.array(some[start : start + len(own)].to_list(), kind)
        names.flush()
        del names
        first += size
