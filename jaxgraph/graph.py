"""The graph on the host: validated, read-only NumPy arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["Graph", "refuse_masked"]

# Looked at in one go when searching for NaN: so that the boolean temporary stays in the cache.
_FINITE_CHUNK_ELEMENTS = 1 << 17
# One class more is one more column of a model's output, and of every count by class.
_MOST_CLASSES = 1 << 24


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A directed graph with features, labels and masks; edge e goes senders[e] -> receivers[e].

    An undirected graph holds every edge in both directions. Every array is validated and stored as
    a read-only view; it is copied only where its dtype or memory order has to change, so an array
    passed in must not be written to afterwards. A copied or unpickled graph is validated and
    read-only as well.

    Args:
        senders: int [num_edges], the node that each edge leaves; int32 where they fit.
        receivers: int [num_edges], the node that each edge enters.
        num_nodes: number of nodes, at least 1.
        nodes: float32 [num_nodes, num_features], node features, or None.
        labels: int32 [num_nodes], a class per node (-1: no label), or float32 or bool
            [num_nodes, num_labels] of 0 and 1 for multi-label data, or None.
        train_mask: bool [num_nodes], or None.
        val_mask: bool [num_nodes], or None.
        test_mask: bool [num_nodes], or None.
        edges: float32 [num_edges, num_edge_features], or None.
        edge_weight: float32 [num_edges], or None.
        edge_type: int32 [num_edges], from 0, or None.
        graph_ids: int32 [num_nodes], the graph of a batch that each node belongs to, or None.
        name: a name for reports.
        node_names: str or int [num_nodes], all different: the id that each node has outside of the
            graph, or None where that is its row.

    Raises:
        ValueError: an array has a wrong shape or dtype, an id is out of range, a value is not
            finite, masks overlap or are empty, a masked node has no label, or two nodes have one
            name.
    """

    senders: np.ndarray
    receivers: np.ndarray
    num_nodes: int
    nodes: np.ndarray | None = None
    labels: np.ndarray | None = None
    train_mask: np.ndarray | None = None
    val_mask: np.ndarray | None = None
    test_mask: np.ndarray | None = None
    edges: np.ndarray | None = None
    edge_weight: np.ndarray | None = None
    edge_type: np.ndarray | None = None
    graph_ids: np.ndarray | None = None
    name: str = "graph"
    node_names: np.ndarray | None = None

    def __post_init__(self) -> None:
        num_nodes = _checked_count("num_nodes", self.num_nodes)
        if not isinstance(self.name, str):
            raise ValueError(f"name: got a {type(self.name).__name__}; expected text.")
        senders = _checked_ids("senders", self.senders, num_nodes)
        receivers = _checked_ids("receivers", self.receivers, num_nodes)
        if senders.shape != receivers.shape:
            raise ValueError(
                f"senders has {senders.size} entries and receivers {receivers.size}; expected "
                "one of each per edge."
            )
        num_edges = senders.shape[0]
        checked: dict[str, Any] = {
            "num_nodes": num_nodes,
            "senders": senders,
            "receivers": receivers,
            "nodes": _checked_floats("nodes", self.nodes, (num_nodes, None)),
            "labels": _checked_labels(self.labels, num_nodes),
            "edges": _checked_floats("edges", self.edges, (num_edges, None)),
            "edge_weight": _checked_floats("edge_weight", self.edge_weight, (num_edges,)),
            "edge_type": _checked_categories("edge_type", self.edge_type, num_edges, "edge"),
            "graph_ids": _checked_categories("graph_ids", self.graph_ids, num_nodes, "node"),
            "node_names": _checked_names(self.node_names, num_nodes),
        }
        masks = {
            name: _checked_mask(name, getattr(self, name), num_nodes)
            for name in ("train_mask", "val_mask", "test_mask")
        }
        _check_masks_disjoint(masks)
        _check_masked_nodes_labelled(masks, checked["labels"])
        for name, value in (checked | masks).items():
            object.__setattr__(self, name, value)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        # Unpickling and copying skip the constructor, and bring arrays that are writable.
        Graph.__init__(self, **state)

    @classmethod
    def from_edges(
        cls,
        senders: ArrayLike,
        receivers: ArrayLike,
        *,
        num_nodes: int | None = None,
        nodes: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        train_mask: ArrayLike | None = None,
        val_mask: ArrayLike | None = None,
        test_mask: ArrayLike | None = None,
        edges: ArrayLike | None = None,
        edge_weight: ArrayLike | None = None,
        edge_type: ArrayLike | None = None,
        graph_ids: ArrayLike | None = None,
        name: str = "graph",
        node_names: ArrayLike | None = None,
    ) -> Graph:
        """Makes a graph from two lists of node ids; edge e goes senders[e] -> receivers[e].

        Args:
            senders: int [num_edges].
            receivers: int [num_edges].
            num_nodes: number of nodes; None takes it from the first array given per node
                (``nodes``, ``labels``, a mask, ``node_names``), else the largest id plus one.
            nodes: [num_nodes, num_features] node features, stored as float32.
            labels: int [num_nodes], -1 for no label, or 0/1 [num_nodes, num_labels].
            train_mask: bool [num_nodes].
            val_mask: bool [num_nodes].
            test_mask: bool [num_nodes].
            edges: [num_edges, num_edge_features] edge features, stored as float32.
            edge_weight: [num_edges], stored as float32.
            edge_type: int [num_edges], from 0.
            graph_ids: int [num_nodes], from 0.
            name: a name for reports.
            node_names: str or int [num_nodes], all different.

        Returns:
            The validated graph.

        Raises:
            ValueError: as ``Graph``.
        """
        arrays: dict[str, Any] = {
            "senders": senders,
            "receivers": receivers,
            "nodes": nodes,
            "labels": labels,
            "train_mask": train_mask,
            "val_mask": val_mask,
            "test_mask": test_mask,
            "edges": edges,
            "edge_weight": edge_weight,
            "edge_type": edge_type,
            "graph_ids": graph_ids,
            "node_names": node_names,
        }
        if num_nodes is None:
            num_nodes = _inferred_num_nodes(arrays)
        return cls(num_nodes=num_nodes, name=name, **arrays)

    def replace(self, **changes: Any) -> Graph:
        """Returns a validated copy with some fields changed; arrays that stay are shared.

        Args:
            **changes: new values by field name.

        Returns:
            The new graph.

        Raises:
            ValueError: a name is no field of ``Graph``, or the result is not a valid graph.
        """
        known = [field.name for field in dataclasses.fields(self)]
        unknown = sorted(set(changes) - set(known))
        if unknown:
            raise ValueError(
                f"Graph has no field {unknown[0]!r}; its fields are {', '.join(known)}."
            )
        return dataclasses.replace(self, **changes)

    @property
    def num_edges(self) -> int:
        """The number of directed edges."""
        return int(self.senders.shape[0])

    @property
    def num_features(self) -> int:
        """The number of features of a node; 0 without features."""
        return 0 if self.nodes is None else int(self.nodes.shape[1])

    @property
    def num_classes(self) -> int:
        """The largest class plus one, or the number of labels if multi-label; 0 without labels."""
        if self.labels is None:
            return 0
        if self.is_multilabel:
            return int(self.labels.shape[1])
        return int(self.labels.max()) + 1

    @property
    def is_multilabel(self) -> bool:
        """Whether a node can have several labels."""
        return self.labels is not None and self.labels.ndim == 2

    def in_degrees(self) -> np.ndarray:
        """Returns the number of edges that enter each node, int64 [num_nodes]."""
        return np.bincount(self.receivers, minlength=self.num_nodes)

    def out_degrees(self) -> np.ndarray:
        """Returns the number of edges that leave each node, int64 [num_nodes]."""
        return np.bincount(self.senders, minlength=self.num_nodes)

    def __repr__(self) -> str:
        parts = [
            f"name={self.name!r}",
            f"num_nodes={self.num_nodes}",
            f"num_edges={self.num_edges}",
        ]
        if self.nodes is not None:
            parts.append(f"num_features={self.num_features}")
        if self.labels is not None:
            parts.append(
                f"{'num_labels' if self.is_multilabel else 'num_classes'}={self.num_classes}"
            )
        for name in ("train_mask", "val_mask", "test_mask"):
            mask = getattr(self, name)
            if mask is not None:
                parts.append(f"{name}={int(mask.sum())}")
        parts += [
            n
            for n in ("edges", "edge_weight", "edge_type", "graph_ids", "node_names")
            if getattr(self, n) is not None
        ]
        return f"Graph({', '.join(parts)})"


def _inferred_num_nodes(arrays: Mapping[str, Any]) -> int:
    for name in ("nodes", "labels", "train_mask", "val_mask", "test_mask", "graph_ids"):
        if arrays[name] is not None:
            return np.atleast_1d(_as_array(name, arrays[name])).shape[0]
    if arrays["node_names"] is not None:
        return _names_array(arrays["node_names"]).size
    ids = [_integer_array(name, arrays[name]) for name in ("senders", "receivers")]
    largest = max((int(array.max()) for array in ids if array.size), default=-1)
    if largest < 0:
        raise ValueError(
            "num_nodes: cannot be inferred from a graph without edges; pass num_nodes."
        )
    return largest + 1


def _checked_count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(
            f"{name}: got {value!r} of type {type(value).__name__}; expected an integer."
        )
    if not 1 <= value <= np.iinfo(np.int64).max:
        raise ValueError(f"{name}: got {value}; expected at least 1, and below 2**63.")
    return int(value)


def refuse_masked(name: str, value: Any) -> None:
    """Raises ValueError for a masked array, or a list of some, with an entry that is masked.

    Args:
        name: of the argument, for the message.
        value: anything.
    """
    arrays = value if isinstance(value, list | tuple) else [value]
    masked = [array for array in arrays if isinstance(array, np.ma.MaskedArray)]
    count = sum(int(np.ma.getmaskarray(array).sum()) for array in masked)
    if count:
        raise ValueError(
            f"{name}: got a masked array with {count} masked entries, whose values mean nothing; "
            f"expected a value for each. Say which with {name}.filled(value); a label that is "
            "missing is -1."
        )


def _as_array(name: str, value: Any) -> np.ndarray:
    refuse_masked(name, value)
    if isinstance(value, Mapping):
        raise ValueError(
            f"{name}: got a mapping; expected one array. Features by node type are not supported: "
            "stack the types into one array and number the nodes through."
        )
    if hasattr(value, "tocsr"):
        raise ValueError(
            f"{name}: got a sparse matrix {type(value).__name__}; expected a dense array. Pass "
            f"{name}.toarray()."
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"{name}: cannot be made an array ({error}); are its rows equally long?"
        ) from error
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{name}: got dtype {array.dtype}; expected numbers. Convert it with astype first."
        )
    return array


def _integer_array(name: str, value: Any) -> np.ndarray:
    array = _as_array(name, value)
    # An empty list arrives as float64: without entries there is nothing to lose.
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
        advice = (
            f" Pass {name}.ravel()." if len(expected) == 1 and array.size == expected[0] else ""
        )
        raise ValueError(f"{name}: got shape {list(array.shape)}; expected [{text}].{advice}")


def _read_only(array: np.ndarray, dtype: Any) -> np.ndarray:
    stored = np.ascontiguousarray(array, dtype=dtype).view()
    stored.flags.writeable = False
    return stored


def _checked_ids(name: str, value: Any, num_nodes: int) -> np.ndarray:
    array = _integer_array(name, value)
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
                "or more, or renumber the ids with np.unique(ids, return_inverse=True)."
            )
    return _read_only(array, np.int32 if num_nodes <= np.iinfo(np.int32).max else np.int64)


def _checked_floats(name: str, value: Any, shape: tuple[int | None, ...]) -> np.ndarray | None:
    if value is None:
        return None
    array = _as_array(name, value)
    _check_shape(name, array, shape)
    with np.errstate(over="ignore"):
        stored = _read_only(array, np.float32)
    _check_finite(name, stored)
    return stored


def _check_finite(name: str, array: np.ndarray) -> None:
    flat = array.reshape(-1)
    starts = range(0, flat.size, _FINITE_CHUNK_ELEMENTS)
    bad = sum(
        chunk.size - int(np.count_nonzero(np.isfinite(chunk)))
        for chunk in (flat[start : start + _FINITE_CHUNK_ELEMENTS] for start in starts)
    )
    if bad:
        first = np.unravel_index(int(np.argmin(np.isfinite(flat))), array.shape)
        raise ValueError(
            f"{name}: {bad} of {array.size} values are NaN or infinite in float32, the first at "
            f"{[int(i) for i in first]}; expected finite values. np.nan_to_num replaces them."
        )


def _checked_categories(name: str, value: Any, length: int, per: str) -> np.ndarray | None:
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


def _checked_names(value: Any, num_nodes: int) -> np.ndarray | None:
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


def _checked_labels(value: Any, num_nodes: int) -> np.ndarray | None:
    if value is None:
        return None
    array = _as_array("labels", value)
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
    "Targets of a regression are no labels yet: append them to `nodes` as columns, which the model "
    "leaves out, and pass jaxgraph.train.fit a task of your own (jaxgraph.train.Task) that reads "
    "them there; or make classes of them with np.digitize."
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
    wrong = int(np.count_nonzero((array != 0) & (array != 1)))
    if wrong:
        raise ValueError(
            f"labels: got shape {list(array.shape)}, so multi-label, with {wrong} values other "
            "than 0 and 1; for one class per node pass integers of shape [num_nodes]. "
            + (_TARGETS if array.dtype.kind == "f" else "")
        )
    return _read_only(array, np.float32)


def _checked_mask(name: str, value: Any, num_nodes: int) -> np.ndarray | None:
    if value is None:
        return None
    array = _as_array(name, value)
    if array.dtype.kind != "b":
        raise ValueError(
            f"{name}: got dtype {array.dtype}; expected bool [num_nodes]. From ids: mask = "
            "np.zeros(num_nodes, bool); mask[ids] = True."
        )
    _check_shape(name, array, (num_nodes,))
    if not array.any():
        raise ValueError(f"{name}: selects no node; pass None for a graph without this split.")
    return _read_only(array, np.bool_)


def _check_masks_disjoint(masks: Mapping[str, np.ndarray | None]) -> None:
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


def _check_masked_nodes_labelled(
    masks: Mapping[str, np.ndarray | None], labels: np.ndarray | None
) -> None:
    if labels is None or labels.ndim == 2:
        return
    for name, mask in masks.items():
        missing = 0 if mask is None else int(np.count_nonzero(mask & (labels < 0)))
        if missing:
            raise ValueError(
                f"{name}: {missing} of its nodes have no label (-1); expected labelled nodes. Take "
                f"them out with {name} & (labels >= 0)."
            )
