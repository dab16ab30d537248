"""Graphs from pandas: a frame with a row per edge, and frames or series of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxgraph.datasets.edge_columns import Choices, Column, choose_columns
from jaxgraph.datasets.edge_files import TableFile, not_flat
from jaxgraph.datasets.edge_keys import stored_in_memory
from jaxgraph.datasets.edge_list import fields_of
from jaxgraph.datasets.node_columns import Coded, check_choices, coded, encoded
from jaxgraph.datasets.node_ids import looked_up, name_key, polars
from jaxgraph.graph import Graph
from jaxgraph.graph_arrays import NODE_FIELDS, has_index, is_by_position
from jaxgraph.kinds import kind_of

if TYPE_CHECKING:
    import pandas as pd

_EDGE_FIELDS = ("edges", "edge_weight", "edge_type")
_NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal", "empty")
"""Columns of numbers, as pandas calls them."""


def from_pandas(
    frame: pd.DataFrame,
    *,
    columns: tuple[Column, Column] | None = None,
    weights: Column | bool | None = None,
    relabel: bool | None = None,
    node_names: Any = None,
    categories: str | None = None,
    missing: str | None = None,
    **fields: Any,
) -> Graph:
    """Makes a graph from a pandas DataFrame with an edge in each row.

    Columns other than ids and weights are left out: pass ``edges=frame[["length"]]``, or use
    ``graph.with_edges(length=frame["length"])``.

    Args:
        frame: the edges; its index is not read.
        columns: the columns of senders and receivers, by name or by number from 0; None finds
            them by name, as ``read_edge_list`` does.
        weights: the column of weights; False: no weights; None: the column of that name, if any.
        relabel: whether ids become consecutive rows and are stored in ``graph.node_names``, as in
            ``read_edge_list``; ids that are names always do. False with ``node_names``: ids are
            rows already.
        node_names: the ids of all nodes in the order of their rows, those without edges too; None:
            the ids that occur, numbers in ascending order, names by first occurrence.
        categories: columns of ``nodes`` that hold texts, bools or pandas categories: "one-hot"
            makes a feature of each category, "codes" a number of each column, from 0. Categories
            are sorted; those of a pandas categorical have its order. None: bools are 0 and 1, and
            others are refused.
        missing: values that ``nodes`` lacks: a number is the "mean" of its column, or "zero"; a
            category is one of its own, the last. None: they are refused.
        **fields: further arguments of ``Graph.from_edges``, as ``nodes`` and ``labels``. A frame or
            series of nodes whose index holds ids is brought into the order of the rows. Anything
            else is in that order; it is refused where that would be the order of the edges.

    Returns:
        The graph.

    Raises:
        AmbiguousFileError: the names of the columns are ambiguous, or ids are too sparse for rows.
        ValueError: an id is missing, unknown or without a row, weights are no numbers, or as
            ``Graph``.
    """
    if not hasattr(frame, "columns"):
        raise ValueError(
            f"from_pandas(frame): got {kind_of(frame)}; expected a pandas.DataFrame with a row per "
            "edge."
        )
    check_choices(categories=categories, missing=missing)
    if categories is not None or missing is not None or has_index(fields.get("nodes")):
        fields["nodes"] = _encoded(fields.get("nodes"), categories, missing)
    is_looked_up = node_names is not None and relabel is not False
    choices = Choices(
        columns=columns,
        weights=weights,
        relabel=True if is_looked_up else relabel,
        num_nodes=None if is_looked_up else fields.get("num_nodes"),
    )
    found = fields_of(stored_in_memory(_table(frame, choices), choices.relabel)[0], choices)
    if is_looked_up:
        found |= looked_up(found, np.asarray(node_names), "node_names")
    elif node_names is not None:
        found["node_names"] = node_names
    by_occurrence = node_names is None and _are_texts(found.get("node_names"))
    return Graph.from_edges(**(found | _in_row_order(fields, found, frame, by_occurrence)))


def _table(frame: pd.DataFrame, choices: Choices) -> TableFile:
    """The columns of a frame that are read."""
    names = tuple(map(str, frame.columns))
    chosen = choose_columns(names, len(names), columns=choices.columns, weights=choices.weights)
    pl = polars()
    # Two columns of a frame may have one name.
    columns = {str(at): _series(names[at], frame.iloc[:, at].to_numpy()) for at in chosen.used}
    return TableFile(pl.DataFrame(columns).lazy(), chosen, names, len(frame), max(len(frame), 1))


def _series(name: str, cells: np.ndarray) -> Any:
    """A column as numbers or texts; one with a list or a struct in a row is refused."""
    pl = polars()
    if cells.dtype.kind in "iuf":
        return pl.Series(cells)
    for row, cell in enumerate(cells):
        if isinstance(cell, list | dict | set | np.ndarray):
            raise not_flat(f"row {row}: column {name!r} holds {cell!r}", name)
    return pl.Series([None if _is_missing(cell) else str(cell) for cell in cells], dtype=pl.String)


def _is_missing(value: Any) -> bool:
    """Tells whether a cell is None, NaN or pandas' NA, which equals nothing, not even itself."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True


def _are_texts(names: Any) -> bool:
    return names is not None and np.asarray(names).dtype.kind not in "biuf"


def _encoded(nodes: Any, categories: str | None, missing: str | None) -> pd.DataFrame:
    """A frame of features as numbers, with the same index."""
    if not has_index(nodes):
        raise ValueError(
            f"categories, missing: got nodes={kind_of(nodes)}; expected a frame or a series of "
            "pandas, whose columns they encode."
        )
    import pandas as pd

    frame = nodes.to_frame() if nodes.ndim == 1 else nodes
    is_plain = all(isinstance(kind, np.dtype) and kind.kind in "iuf" for kind in frame.dtypes)
    if is_plain and not frame.isna().any(axis=None):
        return frame
    numbers = (*_NUMBERS, "boolean") if categories is None else _NUMBERS
    columns = [
        (str(name), _column(frame.iloc[:, at], numbers)) for at, name in enumerate(frame.columns)
    ]
    texts = [name for name, column in columns if isinstance(column, Coded)]
    if categories is None and texts:
        raise ValueError(
            f"nodes: column {texts[0]!r} holds values that are no numbers; pass "
            "categories='one-hot' or categories='codes'."
        )
    try:
        values, _ = encoded(columns, categories or "codes", missing)
    except ValueError as error:
        raise ValueError(f"nodes: {error}.") from error
    return pd.DataFrame(values, index=nodes.index)


def _column(column: Any, numbers: tuple[str, ...]) -> np.ndarray | Coded:
    """A column of some kinds of numbers, NaN where they are missing, or of categories."""
    from pandas.api.types import infer_dtype

    if hasattr(column, "cat"):
        return Coded(column.cat.codes.to_numpy(), tuple(map(str, column.cat.categories)))
    kind = infer_dtype(column)
    if kind == "complex":
        raise ValueError(
            f"nodes: column {str(column.name)!r} holds complex numbers; expected real ones, as "
            "np.real(column) and np.imag(column) in two columns."
        )
    if kind in numbers:
        return column.to_numpy(np.float64, na_value=np.nan)
    return coded(_series(str(column.name), column.to_numpy()))


def _in_row_order(
    fields: Mapping[str, Any], found: Mapping[str, Any], frame: pd.DataFrame, by_occurrence: bool
) -> dict[str, Any]:
    """The fields with pandas objects of nodes and edges made arrays in the order of the graph."""
    ordered = dict(fields)
    of_nodes = partial(_of_nodes, found=found, by_occurrence=by_occurrence)
    for name, value in fields.items():
        if name in NODE_FIELDS:
            ordered[name] = of_nodes(name, value)
        elif name in _EDGE_FIELDS:
            ordered[name] = _of_edges(value, frame)
        elif name == "node_data" and isinstance(value, Mapping):
            ordered[name] = {k: of_nodes(f"node_data[{k!r}]", v) for k, v in value.items()}
        elif name == "edge_data" and isinstance(value, Mapping):
            ordered[name] = {k: _of_edges(v, frame) for k, v in value.items()}
    return ordered


def _of_edges(value: Any, frame: pd.DataFrame) -> Any:
    is_of_frame = has_index(value) and value.index.equals(frame.index)
    return value.to_numpy() if is_of_frame else value


def _of_nodes(name: str, value: Any, found: Mapping[str, Any], by_occurrence: bool) -> Any:
    names = found.get("node_names")
    if has_index(value):
        _check_values(name, value)
    if not has_index(value) or is_by_position(value.index):
        _check_rows(name, value, names)
        if by_occurrence and value is not None:
            raise ValueError(
                f"{name}: has no ids, and ids of the edges that are names are in the order in "
                "which they first occur. Give it the ids as its index, frame.set_index('id'), or "
                "pass node_names=, the ids in the order of its rows."
            )
        return value
    index = [name_key(id_) for id_ in value.index.tolist()]
    rows = {id_: row for row, id_ in enumerate(index)}
    if len(rows) != len(index):
        repeated = next(id_ for row, id_ in enumerate(index) if rows[id_] != row)
        raise ValueError(f"{name}: its index has {repeated!r} twice; expected each id once.")
    if names is None:
        largest = max(int(found[end].max(initial=-1)) for end in ("senders", "receivers"))
        names = np.arange(max(largest + 1, len(index)))
    listed = [name_key(id_) for id_ in np.asarray(names).tolist()]
    missing = [id_ for id_ in listed if id_ not in rows]
    if missing:
        raise ValueError(
            f"{name}: {len(missing)} of {len(listed)} nodes have no row in it, the first is "
            f"{missing[0]!r}; expected one for each id, in its index."
        )
    others = rows.keys() - set(listed)
    if others:
        raise ValueError(
            f"{name}: {len(others)} ids of its index are in no edge, such as "
            f"{min(others, key=str)!r}; if they are nodes without edges, pass "
            f"node_names={name}.index."
        )
    return value.iloc[[rows[id_] for id_ in listed]].to_numpy()


def _check_values(name: str, value: Any) -> None:
    """Refuses texts and missing labels, with ways that keep the index."""
    columns = [value] if getattr(value, "ndim", 2) == 1 else [value[each] for each in value]
    if any(getattr(each.dtype, "kind", "O") not in "biuf" for each in columns):
        way_out = (
            "(series == 'train') makes bools of texts, and keeps the index."
            if name.endswith("_mask")
            else "series.astype('category').cat.codes numbers texts, and astype(float) makes "
            "numbers of objects; both keep the index."
        )
        raise ValueError(f"{name}: holds values that are no numbers. {way_out}")
    if name == "labels" and any(each.isna().any() for each in columns):
        raise ValueError(
            "labels: values are missing. labels.fillna(-1).astype(int) marks nodes without a label "
            "and keeps the index."
        )


def _check_rows(name: str, value: Any, names: Any) -> None:
    """Refuses rows for more or fewer nodes than have a name."""
    count = value.shape[0] if hasattr(value, "shape") and value.shape else None
    if names is not None and count not in (None, len(names)):
        raise ValueError(
            f"{name}: has {count} rows, and {len(names)} ids occur in the edges; expected a row "
            "for each. Nodes without edges have rows if node_names= lists the ids of all nodes."
        )
