"""Predicted classes as a table with one line per node."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.written_file import write_atomically

__all__ = ["write_predictions"]

_NODES_AT_A_TIME = 1 << 16


def write_predictions(path: Path, graph: Graph, outputs: np.ndarray) -> None:
    """Writes a header, then for each node its name, or its row, and its predicted class.

    The class of a node is that of its largest output; of a multi-label graph, the classes whose
    logits are above 0, separated by spaces. Columns are separated by commas, in a file named
    ``.tsv`` by tabs.

    Args:
        path: The file; it is replaced once all is written.
        graph: The graph.
        outputs: float [num_nodes, num_classes], logits in the order of the graph.
    """
    table = io.StringIO()
    delimiter = "\t" if path.suffix == ".tsv" else ","
    writer = csv.writer(table, delimiter=delimiter, lineterminator="\n")
    writer.writerow(["node", "classes" if graph.is_multilabel else "class"])
    writer.writerows(_rows(graph, outputs))
    write_atomically(path, table.getvalue())


def _rows(graph: Graph, outputs: np.ndarray) -> Iterator[tuple[Any, Any]]:
    for start in range(0, graph.num_nodes, _NODES_AT_A_TIME):
        stop = min(start + _NODES_AT_A_TIME, graph.num_nodes)
        rows = outputs[start:stop]
        names = range(start, stop) if graph.node_names is None else graph.node_names[start:stop]
        if graph.is_multilabel:
            for name, row in zip(names, rows > 0, strict=True):
                yield name, " ".join(map(str, np.flatnonzero(row)))
        else:
            yield from zip(names, rows.argmax(axis=1), strict=True)
