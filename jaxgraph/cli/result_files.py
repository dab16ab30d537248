"""Results as files: JSON that any reader accepts, and predicted classes, one line per node."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph.run_log import plain
from jaxgraph.written_file import write_atomically

_NODES_AT_A_TIME = 1 << 16


def write_predictions(
    path: Path, outputs: np.ndarray, names: np.ndarray | None, multilabel: bool = False
) -> None:
    """Writes a header, then for each node its name, or its row, and its predicted class.

    The class of a node is that of its largest output; of a multi-label graph, the classes whose
    logits are above 0, separated by spaces. Columns are separated by commas, in a file named
    ``.tsv`` by tabs.
    """
    table = io.StringIO()
    delimiter = "\t" if path.suffix == ".tsv" else ","
    writer = csv.writer(table, delimiter=delimiter, lineterminator="\n")
    writer.writerow(["node", "classes" if multilabel else "class"])
    writer.writerows(_rows(outputs, range(len(outputs)) if names is None else names, multilabel))
    write_atomically(path, table.getvalue())


def _rows(
    outputs: np.ndarray, names: Sequence[Any] | np.ndarray, multilabel: bool
) -> Iterator[tuple[Any, Any]]:
    for start in range(0, max(len(outputs), len(names)), _NODES_AT_A_TIME):
        rows = outputs[start : start + _NODES_AT_A_TIME]
        some = names[start : start + _NODES_AT_A_TIME]
        if multilabel:
            for name, row in zip(some, rows > 0, strict=True):
                yield name, " ".join(map(str, np.flatnonzero(row)))
        else:
            yield from zip(some, rows.argmax(axis=1), strict=True)


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON; NumPy numbers and arrays become plain ones, NaN and infinity null."""
    write_atomically(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")
