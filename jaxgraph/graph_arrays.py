"""Checks of the arrays of a graph.

A function `checked_...` returns an argument as `Graph` stores it: read-only, and None for None. It
raises a ValueError that names the argument, what was expected and what to pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

NODE_FIELDS = ("nodes", "labels", "train_mask", "val_mask", "test_mask")
"""Arguments of ``Graph`` with a row per node, besides names."""

LABEL_COLUMNS = "label_columns"
"""The named array of a graph whose features end with the labels of training nodes."""

# Elements that are searched for NaN at a time: the boolean temporary stays in the cache.
_FINITE_CHUNK_ELEMENTS = 1 << 17
# Each class is a column of a model's output, and of every count by class.
_MOST_CLASSES = 1 << 24


def inferred_num_nodes(arrays: Mapping[str, Any]) -> int:
    """Infers the number of nodes from the arrays of a graph."""
    for name in NODE_FIELDS:
        if sp.issparse(arrays[name]):
            return int(arrays[name].shape[0])
        if arrays[name] is not None:
            return np.atleast_1d(as_array(name, arrays[name])).shape[0]
    if arrays["node_names"] is not None:
        return _names_array(arrays["node_names"]).size
    for name, array in (arrays["node_data"] or {}).items():
        return np.atleast_1d(as_array(name, array)).shape[0]
    ids = [_ids_array(name, arrays[name]) for name in ("senders", "receivers")]
    largest = max((int(array.max()) for array in ids if array.size), default=-1)
    if largest < 0:
        raise ValueError(
            "num_nodes: cannot be inferred from a graph without edges; pass num_nodes."
        )
    return largest + 1


def checked_count(name: str, value: Any) -> int:
    """Returns a number of nodes, from 1, as an int."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(
            f"{name}: got {value!r} of type {type(value).__name__}; expected an integer."
        )
    if not 1 <= value <= np.iinfo(np.int64).max:
        raise ValueError(f"{name}: got {value}; expected at least 1, and below 2**63.")
    return int(value)


def refuse_masked(name: str, value: Any) -> None:
    """Raises ValueError for a masked array, or a list of them, with a masked entry."""
    arrays = value if isinstance(value, list | tuple) else [value]
    masked = [array for array in arrays if isinstance(array, np.ma.MaskedArray)]
    count = sum(int(np.ma.getmaskarray(array).sum()) for array in masked)
    if count:
        raise ValueError(
            f"{name}: got a masked array with {count} masked entries, whose values mean nothing; "
            f"expected a value for each. Say which with {name}.filled(value); a label that is "
            "missing is -1."
        )


def has_index(value: Any) -> bool:
    """True for a frame or a series of pandas."""
    return hasattr(value, "iloc") and hasattr(value, "index")


def is_by_position(index: Any) -> bool:
    """True where an index of pandas is 0, 1, 2, ..., which says nothing about ids."""
    values = np.asarray(index)
    return values.dtype.kind in "iu" and np.array_equal(values, np.arange(len(values)))


def refuse_index(name: str, value: Any) -> None:
    """Raises ValueError for rows of nodes of pandas whose index may be an order of its own."""
    if has_index(value) and not is_by_position(value.index):
        raise ValueError(
            f"{name}: got a {type(value).__name__} of pandas with an index, but rows are nodes by "
            f"position. Pass {name}.loc[graph.node_names].to_numpy() if the index holds the ids of "
            f"nodes, or {name}.to_numpy() if rows are in the order of the nodes. "
            "jaxgraph.datasets.from_pandas orders rows by their index."
        )


def as_array(name: str, value: Any) -> np.ndarray:
    """Returns an argument as a dense array of numbers."""
    refuse_masked(name, value)
    if isinstance(value, Mapping):
        raise ValueError(
            f"{name}: got a mapping; expected one array. jaxgraph.TypedGraph holds sets of nodes "
            "by name, each with features of its own."
        )
    if hasattr(value, "tocsr"):
        raise ValueError(
            f"{name}: got a sparse matrix {type(value).__name__}; expected a dense array. Pass "
            f"{name}.toarray()."
        )
    try:
        array = np.asarray(value)
    # Tensors of other libraries raise RuntimeError, or TypeError where they are on a device.
    except (RuntimeError, TypeError, ValueError) as error:
        if "traced array" in str(error):
            raise ValueError(
                f"{name}: got a traced array, and a Graph is on the host. Pass it as an argument: "
                "layer(graph, x), jaxgraph.parallel.propagate(graph, message_fn, x, x, edge=w), or "
                "under jaxgraph.parallel.spmd shard.replace(edge_weight=w)"
            ) from error
        hint = "; are its rows equally long?" if isinstance(error, ValueError) else ""
        raise ValueError(f"{name}: cannot be made an array ({error}){hint}") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{name}: got dtype {array.dtype}; expected numbers. Convert it with astype first; "
            "texts become numbers by np.unique(texts, return_inverse=True)."
        )
    return array


def _integer_array(name: str, value: Any) -> np.ndarray:
    array = as_array(name, value)
    # NumPy makes an empty list float64: a cast without entries loses nothing.
    if array.dtype.kind in "bf" and array.size:
        raise ValueError(
            f"{name}: got dtype {array.dtype}; expected integers. Convert with "
            f"{name}.astype(np.int32) if its values are whole numbers."
        )
    return array if array.dtype.kind in "iu" else array.astype(np.int32)


def _check_shape(name: str, array: np.ndarray, expected: tuple[int | None, ...]) -> None:
    fits = array.ndim == len(expected) and all(
        want in (None, got) for got, want in zip(array.shape, expected, strict=True)
    )
    if not fits:
        text = ", ".join("any" if want is None else str(want) for want in expected)
        advice = ""
        if len(expected) == 1 and array.size == expected[0]:
            advice = f" Pass {name}.ravel()."
        elif expected[1:] == (None,) and array.shape == expected[:1]:
            advice = f" Pass {name}[:, None]."
        raise ValueError(f"{name}: got shape {list(array.shape)}; expected [{text}].{advice}")


def _read_only(array: np.ndarray, dtype: Any) -> np.ndarray:
    stored = np.ascontiguousarray(array, dtype=dtype).view()
    stored.flags.writeable = False
    return stored


_RELABEL = (
    "np.unique(np.stack([senders, receivers]), return_inverse=True) relabels both ends alike; each "
    "end by itself would get other numbers."
)


def _ids_array(name: str, value: Any) -> np.ndarray:
    """Ids of nodes as integers; texts are refused with a way to relabel both ends alike."""
    given = np.asarray(value) if isinstance(value, list | tuple) else value
    kind = getattr(getattr(given, "dtype", None), "kind", "")
    if kind in "OSTU" and kind:
        raise ValueError(
            f"{name}: got dtype {given.dtype}; expected integers from 0, the rows of the nodes. If "
            "they are names: jaxgraph.datasets.from_pandas(frame) makes a graph of a frame with "
            f"an edge in each row, and keeps them in graph.node_names; {_RELABEL}"
        )
    return _integer_array(name, value)


def checked_ids(name: str, value: Any, num_nodes: int) -> np.ndarray:
    """Returns ids of nodes, from 0 and below ``num_nodes``, as int32 [num_edges], or int64."""
    array = _ids_array(name, value)
    if array.ndim != 1:
        raise ValueError(
            f"{name}: got shape {list(array.shape)}; expected [num_edges]. Of an edge_index "
            "[2, num_edges], row 0 is senders and row 1 receivers."
        )
    if array.size:
        smallest, largest = int(array.min()), int(array.max())
        if smallest < 0:
            raise ValueError(
                f"{name}: {int((array < 0).sum())} of {array.size} ids are negative, the smallest "
                f"{smallest}; expected ids from 0."
            )
        if largest >= num_nodes:
            raise ValueError(
                f"{name}: {int((array >= num_nodes).sum())} of {array.size} ids are not below "
                f"num_nodes = {num_nodes}, the largest is {largest}. Pass num_nodes={largest + 1} "
                f"or more; subtract 1 from both ends if ids count from 1; or relabel: {_RELABEL}"
            )
    return _read_only(array, np.int32 if num_nodes <= np.iinfo(np.int32).max else np.int64)


def checked_choice(name: str, value: Any, num_nodes: int) -> np.ndarray:
    """Returns ids of some nodes, each once, as given."""
    ids = np.asarray(value)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.size == 0:
        raise ValueError(
            f"{name}: got {ids.dtype} {list(ids.shape)}; expected at least one integer id, "
            "[num_kept]. np.flatnonzero makes ids from a mask."
        )
    if ids.min() < 0 or ids.max() >= num_nodes:
        raise ValueError(
            f"{name}: values run from {ids.min()} to {ids.max()}; expected ids from 0 to "
            f"{num_nodes - 1}."
        )
    is_chosen = np.zeros(num_nodes, bool)
    is_chosen[ids] = True
    if np.count_nonzero(is_chosen) != ids.size:
        raise ValueError(f"{name}: some ids are repeated; expected distinct ids, as of np.unique.")
    return ids


def checked_floats(name: str, value: Any, shape: tuple[int | None, ...]) -> np.ndarray | None:
    """Returns finite numbers as float32; None in the expected shape allows any size."""
    if value is None:
        return None
    array = as_array(name, value)
    _check_shape(name, array, shape)
    with np.errstate(over="ignore"):
        stored = _read_only(array, np.float32)
    check_finite(name, stored)
    return stored


def check_finite(name: str, array: np.ndarray) -> None:
    """Raises ValueError for NaN and infinity."""
    flat = array.reshape(-1)
    starts = range(0, flat.size, _FINITE_CHUNK_ELEMENTS)
    bad = sum(
        chunk.size - int(np.count_nonzero(np.isfinite(chunk)))
        for chunk in (flat[start : start + _FINITE_CHUNK_ELEMENTS] for start in starts)
    )
    if bad:
        first = np.unravel_index(int(np.argmin(np.isfinite(flat))), array.shape)
        raise ValueError(
            f"{name}: {bad} of {array.size} values are NaN or infinite in {array.dtype}, the first "
            f"at {[int(i) for i in first]}; expected finite values. np.nan_to_num replaces them."
        )


def checked_features(value: Any, num_nodes: int) -> np.ndarray | sp.csr_array | None:
    """Returns features of nodes as float32 [num_nodes, num_features], dense or in sorted CSR."""
    if not sp.issparse(value):
        return checked_floats("nodes", value, (num_nodes, None))
    matrix: Any = value
    if matrix.dtype.kind not in "biuf":
        raise ValueError(
            f"nodes: got dtype {matrix.dtype}; expected numbers. Convert it with astype first."
        )
    _check_shape("nodes", matrix, (num_nodes, None))
    return _sorted_rows(matrix)


def _sorted_rows(matrix: Any) -> sp.csr_array:
    """A read-only CSR matrix of float32: columns ascend in every row, and no stored value is 0."""
    try:
        given = matrix.tocsr()
        found: Any = sp.csr_array((given.data, given.indices, given.indptr), shape=given.shape)
        found.check_format(full_check=True)
    except ValueError as error:
        raise ValueError(
            f"nodes: the sparse matrix is broken ({error}); expected indices of its rows and "
            "columns. scipy.sparse.csr_array(dense array) makes one."
        ) from error
    if not found.has_canonical_format:
        # `sum_duplicates` works in place; the user's matrix stays unchanged.
        found = found.copy()
        found.sum_duplicates()
    with np.errstate(over="ignore"):
        found = found.astype(np.float32, copy=False)
    if not found.data[: found.nnz].all():
        found = found.copy()
        found.eliminate_zeros()
    _check_finite_entries(found)
    index = np.int32 if max(*found.shape, found.nnz) <= np.iinfo(np.int32).max else np.int64
    arrays = (found.data[: found.nnz], found.indices[: found.nnz], found.indptr)
    stored = [_read_only(x, t) for x, t in zip(arrays, (np.float32, index, index), strict=True)]
    result = sp.csr_array(tuple(stored), shape=found.shape)
    # SciPy would check the indices again, and may store other views of the arrays.
    result.data, result.indices, result.indptr = stored
    result.has_canonical_format = True
    return result


def _check_finite_entries(matrix: Any) -> None:
    bad = np.flatnonzero(~np.isfinite(matrix.data))
    if bad.size:
        row = int(np.searchsorted(matrix.indptr, bad[0], side="right")) - 1
        raise ValueError(
            f"nodes: {bad.size} of {matrix.nnz} stored values are NaN or infinite in float32, the "
            f"first at {[row, int(matrix.indices[bad[0]])]}; expected finite values. "
            "nodes.data = np.nan_to_num(nodes.data) replaces them."
        )


def checked_categories(name: str, value: Any, length: int, per: str) -> np.ndarray | None:
    """Returns one number for each node or edge (``per``), from 0, as int32 [length]."""
    if value is None:
        return None
    array = _integer_array(name, value)
    _check_shape(name, array, (length,))
    if array.size and (int(array.min()) < 0 or int(array.max()) > np.iinfo(np.int32).max):
        raise ValueError(
            f"{name}: values run from {array.min()} to {array.max()}; expected one number per "
            f"{per}, from 0 and below 2**31."
        )
    return _read_only(array, np.int32)


def _names_array(value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind in "OT" and all(isinstance(name, str) for name in array.flat):
        array = np.array(array.tolist(), np.str_)
    if array.dtype.kind not in "Uiu" or array.ndim != 1:
        raise ValueError(
            f"node_names: got {array.dtype} {list(array.shape)}; expected texts or integers, "
            "[num_nodes]. [str(name) for name in names] makes texts of anything."
        )
    return array


def checked_names(value: Any, num_nodes: int) -> np.ndarray | None:
    """Returns names of nodes, all different, as str or int [num_nodes]."""
    if value is None:
        return None
    array = _names_array(value)
    _check_shape("node_names", array, (num_nodes,))
    names = array.tolist()
    if len(set(names)) != num_nodes:
        seen: set[Any] = set()
        repeated = next(name for name in names if name in seen or seen.add(name))
        raise ValueError(f"node_names: {repeated!r} is the name of several nodes; expected one.")
    return _read_only(array, array.dtype)


def checked_labels(value: Any, num_nodes: int) -> np.ndarray | None:
    """Returns classes, int32 [num_nodes], or 0, 1 and NaN, float32 or bool [num_nodes, labels]."""
    if value is None:
        return None
    array = as_array("labels", value)
    if array.ndim == 2:
        return _checked_multilabels(array, num_nodes)
    if array.dtype.kind == "f":
        _refuse_float_labels(array)
    array = _integer_array("labels", array)
    _check_shape("labels", array, (num_nodes,))
    smallest, largest = int(array.min()), int(array.max())
    if smallest < -1 or largest >= _MOST_CLASSES:
        raise ValueError(
            f"labels: values run from {smallest} to {largest}; expected classes from 0 and below "
            f"{_MOST_CLASSES}, and -1 for no label. np.unique(labels, return_inverse=True) numbers "
            "classes through."
        )
    return _read_only(array, np.int32)


_TARGETS = (
    "Targets of a regression are a named array: graph.with_nodes(target=...), which "
    "jaxgraph.train.fit learns with task=jaxgraph.train.NodeRegression('target')."
)


def _refuse_float_labels(array: np.ndarray) -> None:
    missing = np.isnan(array)
    given = array[~missing]
    if not np.array_equal(given, np.rint(given)):
        raise ValueError(
            f"labels: got dtype {array.dtype} with values that are no whole numbers; expected one "
            f"class for each node, as integers. {_TARGETS}"
        )
    if missing.any():
        raise ValueError(
            f"labels: {int(missing.sum())} of {array.size} are NaN; expected integers, -1 for no "
            "label. np.where(np.isnan(labels), -1, labels).astype(np.int32) makes them that."
        )


def _checked_multilabels(array: np.ndarray, num_nodes: int) -> np.ndarray:
    _check_shape("labels", array, (num_nodes, None))
    if array.dtype.kind == "b":
        return _read_only(array, np.bool_)
    # NaN, an unknown label, differs from itself.
    wrong = int(np.count_nonzero((array != 0) & (array != 1) & (array == array)))
    if wrong:
        raise ValueError(
            f"labels: got shape {list(array.shape)}, so multi-label, with {wrong} values other "
            "than 0, 1 and NaN (not known); for one class per node pass integers of shape "
            "[num_nodes]. " + (_TARGETS if array.dtype.kind == "f" else "")
        )
    return _read_only(array, np.float32)


def checked_mask(name: str, value: Any, num_nodes: int) -> np.ndarray | None:
    """Returns a mask that selects at least one node, bool [num_nodes]."""
    if value is None:
        return None
    array = as_array(name, value)
    if array.dtype.kind != "b":
        raise ValueError(
            f"{name}: got dtype {array.dtype}; expected bool [num_nodes]. From ids: mask = "
            "np.zeros(num_nodes, bool); mask[ids] = True."
        )
    _check_shape(name, array, (num_nodes,))
    if not array.any():
        raise ValueError(f"{name}: selects no node; pass None for a graph without this split.")
    return _read_only(array, np.bool_)


def check_masks_disjoint(masks: Mapping[str, np.ndarray | None]) -> None:
    """Raises ValueError where two masks select the same node."""
    given = [(name, mask) for name, mask in masks.items() if mask is not None]
    for position, (name, mask) in enumerate(given):
        for other_name, other in given[position + 1 :]:
            shared = int(np.count_nonzero(mask & other))
            if shared:
                raise ValueError(
                    f"{name} and {other_name} overlap in {shared} nodes, the first is "
                    f"{int(np.argmax(mask & other))}; expected disjoint masks. Remove them from "
                    f"one, as in {name} & ~{other_name}."
                )


def check_masked_nodes_labelled(
    masks: Mapping[str, np.ndarray | None], labels: np.ndarray | None
) -> None:
    """Raises ValueError where a mask selects a node without a class."""
    if labels is None or labels.ndim == 2:
        return
    for name, mask in masks.items():
        missing = 0 if mask is None else int(np.count_nonzero(mask & (labels < 0)))
        if missing:
            raise ValueError(
                f"{name}: {missing} of its nodes have no label (-1); expected labelled nodes. Take "
                f"them out with {name} & (labels >= 0)."
            )


def check_label_columns(
    node_data: Mapping[str, np.ndarray], nodes: Any, labels: Any, train_mask: Any
) -> None:
    """Raises ValueError where features no longer end with the labels of the training nodes."""
    marked = node_data.get(LABEL_COLUMNS)
    if marked is None:
        return
    shown = np.zeros(len(marked), bool) if train_mask is None else train_mask
    if nodes is not None and labels is not None and labels.ndim == 1:
        first, (ids,) = nodes.shape[1] - int(labels.max()) - 1, np.nonzero(shown)
        columns, is_whole = nodes[:, max(first, 0) :], first >= 0 and np.array_equal(marked, shown)
        # Sums, since a sparse array may have sparse comparisons.
        if is_whole and (columns[ids, labels[ids]] == 1).sum() == (columns != 0).sum() == ids.size:
            return
    raise ValueError(
        f"node_data[{LABEL_COLUMNS!r}]: the last columns of nodes are no longer the labels of the "
        "training nodes; expected that neither nodes, labels, train_mask nor this array change "
        "once they are there. Change the graph first, and add the columns last, with "
        "jaxgraph.transforms.with_label_columns."
    )
