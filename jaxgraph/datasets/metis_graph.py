"""Graphs in the format of METIS and Chaco: a line of neighbours for each node."""

from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph.datasets.files import BrokenFileError
from jaxgraph.datasets.text_layout import open_text

_COMMENT = "%"
_HEADER = re.compile(r"(0*[1-9]\d{,17}) (\d{1,18})(?: ([01]{1,3})(?: (\d{1,18}))?)?", re.ASCII)


@dataclass(frozen=True)
class _Header:
    num_nodes: int
    num_edges: int
    num_leading: int  # numbers on a line before the first neighbour
    has_edge_weights: bool


def read_metis(path: Path, *, weights: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads an undirected graph; both directions of each edge are in the file.

    References:
        Karypis, "METIS: A Software Package for Partitioning Unstructured Graphs", version 5.1.0,
        2013, section 4.1.1.
    """
    header, degrees, numbers = _read(path)
    if len(degrees) != header.num_nodes:
        raise BrokenFileError(
            f"declares {header.num_nodes} nodes and has {len(degrees)} lines of neighbours"
        )
    values = np.array(numbers, np.float64 if header.has_edge_weights else np.int64)
    values = values.reshape(-1, 1 + header.has_edge_weights)
    receivers = values[:, 0].astype(np.int64) - 1
    if receivers.size != 2 * header.num_edges:
        raise BrokenFileError(
            f"declares {header.num_edges} edges, so {2 * header.num_edges} neighbours, and has "
            f"{receivers.size}"
        )
    fields: dict[str, Any] = {
        "senders": np.repeat(np.arange(header.num_nodes), np.array(degrees, np.int64)),
        "receivers": receivers,
        "num_nodes": header.num_nodes,
    }
    if header.has_edge_weights and weights:
        fields["edge_weight"] = values[:, 1]
    notes = [f"a header ({header.num_nodes:,} nodes, {header.num_edges:,} undirected edges)"]
    if header.num_leading:
        notes.append("weights and sizes of nodes left out")
    return fields, {"notes": tuple(notes)}


def is_like_metis(path: Path) -> bool:
    """Tells whether a text may be a graph of METIS, by all of its lines."""
    try:
        header, degrees, _ = _read(path)
    except (ValueError, OSError, EOFError, zlib.error):
        return False
    return len(degrees) == header.num_nodes or len(set(degrees)) > 1


def _read(path: Path) -> tuple[_Header, array[int], array[Any]]:
    with open_text(path) as stream:
        lines = ((n, line) for n, line in enumerate(stream, 1) if not line.startswith(_COMMENT))
        number, first = next(((n, line) for n, line in lines if line.strip()), (1, ""))
        header = _header(first, number)
        return header, *_numbers(lines, header)


def _header(line: str, number: int) -> _Header:
    cells = line.split()
    found = _HEADER.fullmatch(" ".join(cells))
    if found is None:
        raise BrokenFileError(
            f"line {number}: {line.strip()[:80]!r} is no header of METIS; expected numbers of "
            "nodes and edges, then perhaps flags as 011 and the number of weights of a node. If it "
            "is a list of edges, pass format='text' (on the command line --option format=text)"
        )
    flags = (found[3] or "").zfill(3)
    weights = int(found[4] or 1) if flags[1] == "1" else 0
    return _Header(int(found[1]), int(found[2]), int(flags[0]) + weights, flags[2] == "1")


def _numbers(lines: Iterator[tuple[int, str]], header: _Header) -> tuple[array[int], array[Any]]:
    degrees, numbers = array("q"), array("d" if header.has_edge_weights else "q")
    convert = float if header.has_edge_weights else int
    width = 1 + header.has_edge_weights
    for number, line in lines:
        if len(degrees) == header.num_nodes:
            if line.strip():
                raise BrokenFileError(
                    f"line {number}: is the line of one node more than {header.num_nodes}"
                )
            continue
        # Python would parse "1_0" as a number.
        cells = line.replace("_", "?").split()
        own = cells[header.num_leading :]
        if len(cells) < header.num_leading or len(own) % width:
            raise BrokenFileError(
                f"line {number}: has {len(cells)} numbers, too few; expected {header.num_leading} "
                f"of the node, then {width} for each neighbour, as the first line declares"
            )
        try:
            values = list(map(convert, own))
            numbers.extend(values)
        except (OverflowError, ValueError) as error:
            raise BrokenFileError(f"line {number}: {error}") from error
        for neighbour in values[::width]:
            if not 1 <= neighbour <= header.num_nodes or neighbour != int(neighbour):
                raise BrokenFileError(
                    f"line {number}: has neighbour {neighbour:g}; expected whole numbers from 1 to "
                    f"{header.num_nodes}"
                )
        degrees.append(len(own) // width)
    return degrees, numbers
