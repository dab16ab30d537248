"""The report of how a reader read a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_SEPARATOR_NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class ReadReport:
    """Reports how a reader read a file; its string is one line.

    Args:
        path: the file.
        format: "text", "MatrixMarket", "METIS", "Parquet", "npy" or "npz".
        num_nodes: number of nodes of the graph, before any transform.
        num_edges: number of edges of the graph, before any transform.
        separator: in a text, the character between columns; None: white space.
        header: the names of the columns, or None where the file has none.
        columns: the sender's and the receiver's column, by name, or by number from 0.
        weight_column: the column that became the edges' weights, or None.
        ignored_columns: the other columns.
        num_comments: number of comment lines before the first edge.
        declared_counts: the numbers in a line of counts, or in a comment (nodes, edges), or None.
        node_columns: the names of the features, from a table of nodes: those of its columns of
            numbers, and "COLUMN=CATEGORY" of others.
        classes: the names of the classes in that table, in their order; empty: they are numbers.
        relabelled: whether the ids of the file are in ``graph.node_names``; else ids are rows.
        notes: anything else that was decided, one sentence each.
    """

    path: Path
    format: str
    num_nodes: int
    num_edges: int
    separator: str | None = None
    header: tuple[str, ...] | None = None
    columns: tuple[str | int, str | int] | None = None
    weight_column: str | int | None = None
    ignored_columns: tuple[str | int, ...] = ()
    num_comments: int = 0
    declared_counts: tuple[int, ...] | None = None
    node_columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    relabelled: bool = False
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [self.format]
        if self.format == "text":
            separator = self.separator
            separated = "white space" if separator is None else _SEPARATOR_NAMES.get(separator)
            parts.append(f"separator {separated or repr(separator)}")
        if self.columns is not None:
            parts.append("a header" if self.header is not None else "no header")
            parts.append(f"edges from column {self.columns[0]!r} to {self.columns[1]!r}")
            weights = self.weight_column
            parts.append("no weights" if weights is None else f"weights from column {weights!r}")
        if self.ignored_columns:
            parts.append(f"ignored columns {', '.join(repr(c) for c in self.ignored_columns)}")
        if self.num_comments:
            parts.append(f"comment lines {self.num_comments}")
        if self.declared_counts is not None:
            counts = " ".join(str(count) for count in self.declared_counts)
            parts.append(f"declared counts {counts}")
        if self.node_columns:
            parts.append(f"features {_listed(self.node_columns)}")
        if self.classes:
            parts.append(f"classes {_listed(self.classes)}")
        parts.append("ids in node_names" if self.relabelled else "ids are rows")
        parts += self.notes
        parts.append(f"{self.num_nodes:,} nodes, {self.num_edges:,} edges")
        return f"{self.path}: {'; '.join(parts)}."


def _listed(names: tuple[str, ...]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(map(repr, names[:_SHOWN])) + (f" and {more} more" if more > 0 else "")
