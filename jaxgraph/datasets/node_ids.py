"""Node ids of files, numbers or names: their texts, and the row from 0 of each."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxgraph.datasets.files import AmbiguousFileError, BrokenFileError, option_advice

if TYPE_CHECKING:
    from jaxgraph.datasets.edge_keys import StoredEdges

# A graph may have this many nodes, whatever its number of edges: they take a few megabytes.
_NODES_ALWAYS_ALLOWED = 1 << 20
_NODES_PER_EDGE_ALLOWED = 16
# Names are stored with a fixed width; a few long ones must not make all of them long.
_NAME_BYTES_ALWAYS_ALLOWED = 1 << 28
_NAME_WASTE_ALLOWED = 16
_BYTES_OF_A_NAME = 200
_HASHES = 1 << 64
_ROWS_AT_ONCE = 1 << 16

_LONGEST_NUMBER = 64
WHOLE = re.compile(r"[+-]?\d+(\.0*)?", re.ASCII)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
BLANK = " \t\r\n\v\f\u00a0\u2009\u202f\u3000\ufeff\u200b\u200c\u200d\u2060"
MINUS = "\u2212"


def polars() -> Any:
    """Imports Polars where it is used: that takes a third of a second."""
    import polars as found

    return found


def trimmed(text: str) -> str:
    """Returns a text without white space and characters of no width around it."""
    return text.strip(BLANK)


def name_key(name: Any) -> Any:
    """The id by which a name is found."""
    return trimmed(name) if isinstance(name, str) else name


def looked_up(found: Mapping[str, Any], node_names: np.ndarray, what: str) -> dict[str, Any]:
    """The ends of edges, with names of their own, as rows of all names."""
    # Without names, ids that are numbers were rows already.
    names = found.get("node_names", np.zeros(0, np.int64))
    if names.dtype.kind == "U" or node_names.dtype.kind == "U":
        names, of_all = names.astype(str), node_names.astype(str)
    else:
        of_all = node_names
    rows = {name_key(name): row for row, name in enumerate(of_all.tolist())}
    of_edges = [name_key(name) for name in names.tolist()]
    unknown = [name for name in of_edges if name not in rows]
    if unknown:
        raise BrokenFileError(
            f"{len(unknown)} ids of the edges are not in {what}, the first is {unknown[0]!r}; "
            "expected the id of every node there."
        )
    row_of = np.asarray([rows[name] for name in of_edges], np.int64)
    ends = {end: row_of[found[end]] for end in ("senders", "receivers")}
    return ends | {"node_names": node_names}


def is_number(text: str) -> bool:
    """Tells whether a trimmed text is a number, with an ASCII or a typographic minus sign."""
    return len(text) <= _LONGEST_NUMBER and (NUMBER.fullmatch(text.replace(MINUS, "-")) is not None)


def check_num_nodes(num_nodes: int, num_edges: int) -> None:
    """Raises AmbiguousFileError where a header declares far more nodes than there are edges."""
    if num_nodes > max(_NODES_ALWAYS_ALLOWED, _NODES_PER_EDGE_ALLOWED * num_edges):
        raise AmbiguousFileError(
            f"declares {num_nodes:,} nodes for {num_edges:,} edges, so that nearly all nodes would "
            f"have none. If that is intended, {option_advice(f'num_nodes={num_nodes}')}."
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Numbering:
    """The row of each key.

    Args:
        num_nodes: the number of rows.
        keys: sorted [num_nodes]; None: keys are rows.
        rows: int32 [num_nodes], the row of each key; None: its position.
        names: str or int [num_nodes] by row; None: rows have no names.
    """

    num_nodes: int
    keys: np.ndarray | None = None
    rows: np.ndarray | None = None
    names: np.ndarray | None = None

    def rows_of(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Finds the rows of some keys."""
        if self.keys is None:
            unknown = (keys < 0) | (keys >= self.num_nodes)
            return keys, unknown if unknown.any() else None
        places = np.searchsorted(self.keys, keys.astype(self.keys.dtype))
        np.minimum(places, self.num_nodes - 1, out=places)
        unknown = self.keys[places] != keys
        rows = places.astype(np.int32) if self.rows is None else self.rows[places]
        return rows, unknown if unknown.any() else None


def number_nodes(
    edges: StoredEdges,
    *,
    relabel: bool | None,
    num_nodes: int | None,
    chunk: int | None = None,
    names_at_once: int = 1 << 62,
    folder: Path | None = None,
    may_be_sparse: bool = False,
) -> Numbering:
    """Numbers nodes: names by their first occurrence; whole ids are rows, or in ascending order."""
    chunk = chunk or max(edges.num_edges, 1)
    if edges.are_texts:
        return _by_occurrence(edges.names, num_nodes, names_at_once, folder)
    if not relabel:
        return Numbering(_as_rows(edges, num_nodes, chunk, may_be_sparse=may_be_sparse))
    found = np.zeros(0, np.int64)
    for first in range(0, edges.num_edges, chunk):
        ends = edges.ends.read(first, first + chunk)
        found = np.union1d(found, np.concatenate(ends).astype(np.int64))
    _check_all_named(found.size, num_nodes)
    if folder is not None:
        np.save(folder / "names.npy", found)
    return Numbering(len(found), found, None, found)


def _as_rows(edges: StoredEdges, num_nodes: int | None, chunk: int, *, may_be_sparse: bool) -> int:
    """Reads ids as rows, and returns the number of nodes."""
    largest = -1
    for first in range(0, edges.num_edges, chunk):
        for keys in edges.ends.read(first, first + chunk):
            if keys.min() < 0:
                row = int(np.argmax(keys < 0))
                raise BrokenFileError(
                    f"{edges.place(first + row)}: has a negative id, {keys[row]}; expected ids "
                    "from 0"
                )
            largest = max(largest, int(keys.max()))
    if num_nodes is None:
        if edges.num_edges == 0:
            raise BrokenFileError("holds no edge; pass num_nodes to make a graph without edges")
        if not may_be_sparse:
            _check_dense(largest, edges.num_edges)
        return largest + 1
    if largest >= num_nodes:
        raise AmbiguousFileError(
            f"the largest id is {largest}, and there are {num_nodes} nodes; do ids start at 1? To "
            f"relabel them, {option_advice('relabel=True', '--relabel')}."
        )
    return num_nodes


def _check_dense(largest: int, num_edges: int) -> None:
    """Raises AmbiguousFileError where ids are so sparse that nearly all nodes have no edge."""
    if largest < max(_NODES_ALWAYS_ALLOWED, _NODES_PER_EDGE_ALLOWED * num_edges):
        return
    raise AmbiguousFileError(
        f"the largest id is {largest} and there are {num_edges:,} edges, so that nearly all of "
        f"{largest + 1:,} nodes would have none (more than 2**20 nodes and more than 16 per edge "
        "are refused). To relabel the ids and keep them in graph.node_names, "
        f"{option_advice('relabel=True', '--relabel')}; if ids are rows, "
        f"{option_advice('relabel=False', '--no-relabel')}."
    )


def _check_all_named(num_names: int, num_nodes: int | None) -> None:
    """Raises AmbiguousFileError where the caller gave another number of nodes than have names."""
    if num_nodes not in (None, num_names):
        raise AmbiguousFileError(
            f"num_nodes is {num_nodes}, and {num_names} ids occur, each the name of a node; leave "
            "num_nodes out. from_pandas(frame, node_names=ids) and read_edge_list(path, "
            "node_data=table) also know nodes without edges."
        )


def _by_occurrence(
    found: Any, num_nodes: int | None, names_at_once: int, folder: Path | None
) -> Numbering:
    pl = polars()
    keys, places, names, longest, characters = [], [], [], 1, 0
    for number, group in enumerate(_by_hash(found, names_at_once)):
        if group["hash"].n_unique() != len(group):
            repeated = group.filter(pl.col("hash").is_duplicated())["name"].to_list()[:2]
            raise BrokenFileError(
                f"the names {repeated[0]!r} and {repeated[1]!r} have the same 64-bit hash, which "
                "happens once in millions of graphs; give numbers instead"
            )
        keys.append(group["hash"].to_numpy())
        places.append(group["place"].to_numpy())
        lengths = group["name"].str.len_chars()
        longest = max(longest, int(lengths.max() or 0))
        characters += int(lengths.sum())
        if folder is None:
            names.append(group.lazy())
        else:
            path = folder / f"{number:08d}.parquet"
            group.write_parquet(path)
            names.append(pl.scan_parquet(path))
    of_all = np.concatenate(keys)
    _check_all_named(len(of_all), num_nodes)
    allowed = _NAME_WASTE_ALLOWED * 4 * characters
    if 4 * longest * len(of_all) > max(_NAME_BYTES_ALWAYS_ALLOWED, allowed):
        raise BrokenFileError(
            f"an id has {longest:,} characters, against {characters // len(of_all)} on "
            "average; expected names of similar length. Is the separator right?"
        )
    rows = np.empty(len(of_all), np.int32)
    rows[np.argsort(np.concatenate(places), kind="stable")] = np.arange(len(rows), dtype=np.int32)
    by_row, first = np.empty(0 if folder else len(rows), f"<U{longest}"), 0
    for number, some in enumerate(names):
        if folder is not None:
            # Mapped anew each time, so that pages do not stay.
            mode = "r+" if number else "w+"
            by_row = np.lib.format.open_memmap(
                folder / "names.npy", mode, by_row.dtype, (len(rows),)
            )
        texts = some.collect()["name"]
        for start in range(0, len(texts), _ROWS_AT_ONCE):
            own = texts[start : start + _ROWS_AT_ONCE].to_list()
            by_row[rows[first + start : first + start + len(own)]] = own
        first += len(texts)
    return Numbering(len(rows), of_all, rows, by_row)


def _by_hash(names: Any, names_at_once: int) -> Iterator[Any]:
    """The distinct names in ascending order of hashes, a range of hashes at a time."""
    pl = polars()
    total = int(names.select(pl.len()).collect().item())
    ranges = max(-(-total * _BYTES_OF_A_NAME // names_at_once), 1)
    for number in range(ranges):
        least, beyond = (_HASHES * n // ranges for n in (number, number + 1))
        wanted = pl.col("hash").is_between(pl.lit(least, pl.UInt64), pl.lit(beyond - 1, pl.UInt64))
        yield (
            names.filter(wanted)
            .collect()
            .group_by("name")
            .agg(pl.col("hash").first(), pl.col("place").min())
            .sort("hash")
        )
