"""Named arrays of a graph: data of its nodes or edges, by a name that the user chooses."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from jaxgraph.graph_arrays import as_array, refuse_index

_KINDS = {"node_data": "num_nodes", "edge_data": "num_edges"}
_METHODS = {"node_data": "with_nodes", "edge_data": "with_edges"}


def checked_named(field: str, value: Any, length: int, reserved: Any) -> Mapping[str, np.ndarray]:
    """Returns named arrays as `Graph` stores them: read-only, in the order given."""
    if value is None:
        return MappingProxyType({})
    if not isinstance(value, Mapping):
        raise ValueError(
            f"{field}: got a {type(value).__name__}; expected arrays by name, as in "
            f"graph.{_METHODS[field]}(name=array)."
        )
    for name in value:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(
                f"{field}: got the name {name!r}; expected letters, digits and _, as of a variable "
                "of Python."
            )
        if name in reserved:
            raise ValueError(
                f"{field}: {name} is a field of Graph; set it with graph.replace({name}=...), or "
                "choose another name."
            )
    return MappingProxyType(
        {
            name: _checked(f"{field}[{name!r}]", field, array, length)
            for name, array in value.items()
        }
    )


def with_named(current: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns named arrays with some added or replaced; None removes one."""
    return {name: array for name, array in {**current, **changes}.items() if array is not None}


def _checked(what: str, field: str, value: Any, length: int) -> np.ndarray:
    if field == "node_data":
        refuse_index(what, value)
    array = as_array(what, value)
    if array.dtype.itemsize > 8:
        raise ValueError(
            f"{what}: got dtype {array.dtype}; expected at most 64 bits. Convert it with astype "
            "first."
        )
    if array.ndim == 0 or array.shape[0] != length:
        raise ValueError(
            f"{what}: got shape {list(array.shape)}; expected [{length}, ...], where {length} is "
            f"{_KINDS[field]}."
        )
    infinite = np.isinf(array) if array.dtype.kind == "f" else np.zeros(0, bool)
    if infinite.any():
        first = [int(i) for i in np.argwhere(infinite)[0]]
        raise ValueError(
            f"{what}: {int(infinite.sum())} of {array.size} values are infinite, the first at "
            f"{first}; expected finite values, or NaN where one is missing."
        )
    stored = np.ascontiguousarray(array, np.dtype(array.dtype.name)).view()
    stored.flags.writeable = False
    return stored
