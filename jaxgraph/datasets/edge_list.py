"""Graphs from files that list edges: text, MatrixMarket, METIS, Parquet, npy and npz."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from jaxgraph import transforms
from jaxgraph.datasets.edge_columns import Choices, Column
from jaxgraph.datasets.edge_files import EdgeFile, TextFile, open_parquet, open_text_edges
from jaxgraph.datasets.edge_keys import (
    Facts,
    StoredEdges,
    check_text,
    ends_of,
    stored_in_memory,
)
from jaxgraph.datasets.file_rows import npy_rows
from jaxgraph.datasets.files import (
    AmbiguousFileError,
    BrokenFileError,
    MissingFileError,
    UnfitOptionError,
    option_advice,
    reading,
)
from jaxgraph.datasets.matrix_market import is_matrix_market, read_matrix_market
from jaxgraph.datasets.metis_graph import is_like_metis, read_metis
from jaxgraph.datasets.node_columns import check_choices
from jaxgraph.datasets.node_ids import looked_up, number_nodes
from jaxgraph.datasets.node_table import read_node_table
from jaxgraph.datasets.npz import check_pairs, load_npz
from jaxgraph.datasets.read_report import ReadReport
from jaxgraph.datasets.text_layout import Layout
from jaxgraph.graph import Graph
from jaxgraph.kinds import kind_of

logger = logging.getLogger(__name__)

_PACKED_FORMATS = {
    **dict.fromkeys((".csv", ".tsv", ".txt", ".edges", ".edgelist"), "text"),
    ".mtx": "MatrixMarket",
    **dict.fromkeys((".graph", ".metis"), "METIS"),
}
_METIS_ADVICE = (
    "It looks like a METIS graph, which has a line of neighbours for each node. If it is one, name "
    "it .graph, or " + option_advice("format='METIS'", "--option format=METIS")
)
_FORMAT_OF_SUFFIX: Mapping[str, str] = MappingProxyType(
    {
        **_PACKED_FORMATS,
        **{f"{suffix}.gz": form for suffix, form in _PACKED_FORMATS.items()},
        ".parquet": "Parquet",
        ".npy": "npy",
        ".npz": "npz",
    }
)
SUFFIXES = tuple(_FORMAT_OF_SUFFIX)
FORMATS = tuple(dict.fromkeys(_FORMAT_OF_SUFFIX.values()))
_WITH_IDS = ("text", "Parquet", "npy")
"""Formats whose ids may be looked up in a table of nodes."""


# Arguments of ``Graph.from_edges``, and facts of the report.
_Found = tuple[dict[str, Any], dict[str, Any]]
_BLOCK, _ROWS = 1 << 26, 1 << 24
"""Bytes of a text and rows of a table that are parsed at once."""


def read_edge_list(
    path: str | Path,
    *,
    num_nodes: int | None = None,
    undirected: bool = False,
    name: str | None = None,
    format: str | None = None,
    separator: str | None = None,
    header: bool | None = None,
    counts: bool | None = None,
    columns: tuple[Column, Column] | None = None,
    weights: Column | bool | None = None,
    relabel: bool | None = None,
    node_data: str | Path | None = None,
    label_column: str | None = None,
    missing: str | None = None,
    on_report: Callable[[ReadReport], None] | None = None,
) -> Graph:
    """Reads a graph from a list of edges, and refuses an ambiguous file.

    - text (``.csv``, ``.tsv``, ``.txt``, ``.edges``, ``.edgelist``): an edge on each line, its
      columns separated by commas, semicolons, tabs, bars or white space. Lines that begin with #
      or % are comments; a first line without numbers names the columns. Named columns are found
      by name (source and target, src and dst, from and to, u and v, sender and receiver, weight);
      without names the first two are senders and receivers, and a third one of floating numbers
      holds weights, unless it is empty.
    - MatrixMarket (``.mtx``, and any text that begins as one): the entry [i, j] is an edge.
    - METIS (``.graph``, ``.metis``): a line of neighbours for each node, from 1.
    - Parquet (``.parquet``): columns by name, as in a text.
    - ``.npy``: int [num_edges, 2], or [2, num_edges] of other than two or three edges.
    - ``.npz``: arrays named as the arguments of ``Graph.from_edges``, at least senders and
      receivers.

    The first three may be compressed by gzip (``.gz``). Ids that are whole numbers are rows. A
    largest id that would make a graph of more than 2**20 nodes, and of more than 16 per edge, is
    refused. Ids that are names get consecutive rows in the order of their first occurrence, and are
    stored in ``graph.node_names``.

    Args:
        path: the file.
        num_nodes: number of nodes; None: from the file's arrays, its counts, or its largest id.
        undirected: whether the reverse of every edge is added, and repeated edges removed.
        name: of the graph; None: that of the file.
        format: "text", "MatrixMarket", "METIS", "Parquet", "npy" or "npz", in any case; None: by
            the suffix.
        separator: the character between the columns of a text.
        header: whether the first line of a text names its columns.
        counts: whether the first line of a text holds numbers of nodes and edges.
        columns: the columns of senders and receivers, by name or by number from 0.
        weights: the column of weights, by name or by number from 0; False for no weights.
        relabel: whether ids become consecutive rows and are stored in ``graph.node_names``; False:
            ids are rows, however large they are.
        node_data: a table of nodes (``.csv``, ``.tsv``, ``.parquet``) whose first line names its
            columns: "id", the ids of the edges, one row for each node, those without edges too;
            "label" ("labels", "class", "y"), numbers from 0 or texts, which are numbered in sorted
            order, or nothing; "split": train, val, test or nothing. All other columns are
            features: numbers, or one for each category of texts, sorted. Nodes have the order of
            its rows, and their ids are in ``graph.node_names``.
        label_column: the column of labels in ``node_data``; None finds it by name.
        missing: a number that ``node_data`` lacks is the "mean" of its column, or "zero"; a
            category is one of its own. None: they are refused.
        on_report: called with a ``ReadReport``, which is also logged.

    Returns:
        The graph.

    Raises:
        AmbiguousFileError: the file has several readings; the message names the arguments that
            decide.
        ValueError: the file is missing or broken, or an argument does not fit it.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingFileError(f"{path}: no such file; expected a list of edges.")
    form = _format(path, format)
    if node_data is not None and (num_nodes is not None or relabel is False):
        raise UnfitOptionError(
            "num_nodes, relabel: for ids that are rows, and node_data holds the ids of all nodes; "
            "leave them out."
        )
    of_nodes, nodes_report = _of_nodes(node_data, label_column, missing)
    choices = Choices(
        num_nodes=num_nodes,
        separator=separator,
        header=header,
        counts=counts,
        columns=columns,
        weights=weights,
        relabel=True if of_nodes else relabel,
        is_looked_up=bool(of_nodes),
    )
    with reading(path, f"a list of edges ({form})"), naming(path):
        # Some collections name MatrixMarket files as text files.
        if form == "text" and is_matrix_market(path):
            form = "MatrixMarket"
        if of_nodes and form not in _WITH_IDS:
            raise UnfitOptionError(
                f"node_data: a file in {form} has rows and no ids; expected {', '.join(_WITH_IDS)}."
            )
        found, facts = _READERS[form](path, choices)
        if of_nodes:
            found |= of_nodes | looked_up(found, of_nodes["node_names"], str(node_data))
        given = {"num_nodes": num_nodes, "name": name}
        arguments = {"name": path.name.split(".")[0]} | found
        arguments |= {key: value for key, value in given.items() if value is not None}
        graph = _graph(arguments)
    report = ReadReport(
        path=path,
        format=form,
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        relabelled=graph.node_names is not None,
        **facts,
        **nodes_report,
    )
    logger.info("%s", report)
    if on_report is not None:
        on_report(report)
    return transforms.to_undirected(graph) if undirected else graph


def _of_nodes(
    path: str | Path | None, label_column: str | None, missing: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of the nodes in a table, and facts of the report; nothing without a table."""
    if path is None:
        if label_column is not None or missing is not None:
            raise UnfitOptionError("label_column, missing: for node_data; leave them out.")
        return {}, {}
    if not isinstance(path, str | os.PathLike):
        raise ValueError(
            f"node_data: got {kind_of(path)}; expected the path of a table of nodes. A frame of "
            "them is for jaxgraph.datasets.from_pandas(edges, nodes=frame)."
        )
    check_choices(missing=missing)
    path = Path(path)
    with naming(path), reading(path, "a table of nodes"):
        found, facts = read_node_table(path, label_column, missing)
        # Without the edges, so that a fault is reported under the name of this file.
        _graph({"senders": [], "receivers": []} | found)
    return found, facts


def _graph(arguments: dict[str, Any]) -> Graph:
    try:
        return Graph.from_edges(**arguments)
    except ValueError as error:
        raise BrokenFileError(str(error)) from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Puts the file's name before messages about its content."""
    try:
        yield
    except (AmbiguousFileError, BrokenFileError, UnfitOptionError) as error:
        if str(error).startswith(str(path)):
            raise
        raise type(error)(f"{path}: {str(error).rstrip('.')}.") from error


def _format(path: Path, wanted: str | None) -> str:
    if wanted is not None:
        known = {form.lower(): form for form in FORMATS}
        if wanted.lower() not in known:
            raise ValueError(f"format: got {wanted!r}; expected one of {', '.join(FORMATS)}.")
        return known[wanted.lower()]
    suffix = next((s for s in SUFFIXES if path.name.lower().endswith(s)), None)
    if suffix is None:
        raise ValueError(
            f"{path}: the suffix is none of {', '.join(SUFFIXES)}; "
            "pass format='text' (on the command line --option format=text) if it is a list of "
            f"edges, or another format: {', '.join(FORMATS)}."
        )
    return _FORMAT_OF_SUFFIX[suffix]


def _from_text(path: Path, choices: Choices) -> _Found:
    try:
        return _from_edges(path, choices, "text")
    except (AmbiguousFileError, BrokenFileError) as error:
        if not is_like_metis(path):
            raise
        raise type(error)(f"{str(error).rstrip('.')}. {_METIS_ADVICE}") from error


def open_edges(
    path: Path,
    form: str,
    choices: Choices,
    stored: Callable[[EdgeFile], tuple[StoredEdges, Facts]],
    *,
    block: int,
    rows: int,
) -> tuple[StoredEdges, EdgeFile | None, int | None]:
    """Reads a text, a Parquet file or an npy file of edges."""
    if form == "text":
        text = open_text_edges(path, choices, block)
        edges, facts = stored(text)
        return edges, text, check_text(text, facts, choices.counts)
    if form == "Parquet":
        choices.check_unused(form, "columns", "weights", "relabel")
        table = open_parquet(path, choices, rows)
        return stored(table)[0], table, None
    choices.check_unused(form, "relabel")
    pairs = npy_rows(path)
    check_pairs(pairs.shape, lambda: pairs[:2])
    if pairs.dtype.kind not in "iu":
        raise BrokenFileError(f"holds {pairs.dtype}; expected integers")
    by_edge = pairs.shape[1] == 2
    ends = ends_of(pairs, by_edge=by_edge)
    edges = StoredEdges(pairs.shape[not by_edge], ends, False, {}, lambda edge: f"edge {edge}")
    return edges, None, None


def _from_edges(path: Path, choices: Choices, form: str) -> _Found:
    stored = partial(stored_in_memory, relabel=choices.relabel)
    edges, source, declared = open_edges(path, form, choices, stored, block=_BLOCK, rows=_ROWS)
    if choices.num_nodes is None and not choices.is_looked_up:
        choices = replace(choices, num_nodes=declared)
    facts = {} if source is None else _column_facts(source)
    if isinstance(source, TextFile):
        facts |= _text_facts(path, source.layout, edges.num_edges, choices.counts)
    return fields_of(edges, choices), facts


def _text_facts(path: Path, layout: Layout, num_edges: int, counts: bool | None) -> dict[str, Any]:
    is_first_unsure = counts is None and layout.names is None and layout.counts is None
    follow = num_edges - 1
    if is_first_unsure and layout.first_row[0] == str(follow) and is_like_metis(path):
        raise AmbiguousFileError(
            f"the first line, {' '.join(layout.first_row)!r}, may be an edge, or may say that "
            f"{follow} nodes follow. If it is an edge, {option_advice('counts=False')}"
        )
    notes, declared = (), layout.counts or layout.commented_counts
    if declared is not None and declared == layout.commented_counts and declared[1] != num_edges:
        notes = (f"a comment declares {declared[1]:,} edges, and there are {num_edges:,}",)
        logger.warning("%s: %s.", path, notes[0])
    return {
        "separator": layout.separator,
        "num_comments": layout.num_comments,
        "declared_counts": declared,
        "notes": notes,
    }


def _column_facts(source: EdgeFile) -> dict[str, Any]:
    names, columns = source.names, source.columns
    used = [names[position] for position in columns.used]
    return {
        "header": None if isinstance(names, range) else names,
        "columns": tuple(used[:2]),
        "weight_column": None if columns.weight is None else used[2],
        "ignored_columns": tuple(names[x] for x in range(len(names)) if x not in columns.used),
    }


def _from_matrix_market(path: Path, choices: Choices) -> _Found:
    keep = _check_only_weights(choices, "MatrixMarket")
    return read_matrix_market(path, num_nodes=choices.num_nodes, weights=keep)


def _from_metis(path: Path, choices: Choices) -> _Found:
    return read_metis(path, weights=_check_only_weights(choices, "METIS"))


def _check_only_weights(choices: Choices, form: str) -> bool:
    """True where weights are kept; refuses all other choices."""
    choices.check_unused(form, "weights")
    if choices.weights not in (None, False):
        raise UnfitOptionError(
            f"weights: got {choices.weights!r}; expected False, to leave them out, or None."
        )
    return choices.weights is None


def fields_of(edges: StoredEdges, choices: Choices) -> dict[str, Any]:
    """Numbers the nodes of edges, and returns arguments of ``Graph.from_edges``."""
    numbering = number_nodes(
        edges,
        relabel=choices.relabel,
        num_nodes=choices.num_nodes,
        may_be_sparse=choices.relabel is False,
    )
    ends = edges.ends.read(0, edges.num_edges)
    (senders, _), (receivers, _) = map(numbering.rows_of, ends)
    found: dict[str, Any] = {"senders": senders, "receivers": receivers}
    if choices.num_nodes is not None:
        found["num_nodes"] = choices.num_nodes
    found |= {name: rows[:] for name, rows in edges.data.items()}
    return found if numbering.names is None else found | {"node_names": numbering.names}


def _from_npz(path: Path, choices: Choices) -> _Found:
    choices.check_unused("npz")
    found = {
        key: value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
        for key, value in load_npz(path).items()
    }
    known = list(inspect.signature(Graph.from_edges).parameters)
    missing = [key for key in ("senders", "receivers") if key not in found]
    unknown = [key for key in found if key not in known]
    if missing or unknown:
        wrong = f"no array {missing[0]}" if missing else f"an array {unknown[0]}"
        raise BrokenFileError(f"has {wrong}; expected arrays named {', '.join(known)}")
    return found, {}


_READERS: Mapping[str, Callable[[Path, Choices], _Found]] = MappingProxyType(
    {
        "text": _from_text,
        "MatrixMarket": _from_matrix_market,
        "METIS": _from_metis,
        "Parquet": partial(_from_edges, form="Parquet"),
        "npy": partial(_from_edges, form="npy"),
        "npz": _from_npz,
    }
)
