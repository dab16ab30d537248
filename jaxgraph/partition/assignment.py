"""The result of every partitioner: the part that owns each node.

A part owns its nodes and the edges that enter them, as in SAR (section 3.2: the subgraphs G_{p,q}
hold the edges that end in partition p) and ROC (section 4.2: vertices "and their in-edges").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxgraph.graph_arrays import refuse_masked


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """Every node of a graph assigned to exactly one of num_parts parts.

    Args:
        assignment: int [num_nodes], the part of each node, from 0; stored as a read-only int32
            copy. Parts may be empty.
        num_parts: number of parts, at least 1.
        method: the name of the partitioner that made it, for reports.
        rank: int [num_nodes], from 0 to num_nodes - 1. In a part, nodes with an edge to another
            part come first; both groups are ordered by ascending rank, then by id.
            Stored as a read-only int32 copy. None: by id. See ``locality_rank``.

    Raises:
        ValueError: the assignment is not a vector of integers in [0, num_parts), or the rank none
            of integers in [0, num_nodes).
    """

    assignment: np.ndarray
    num_parts: int
    method: str = "given"
    rank: np.ndarray | None = None

    def __post_init__(self) -> None:
        num_parts = checked_num_parts(self.num_parts)
        object.__setattr__(self, "num_parts", num_parts)
        object.__setattr__(self, "assignment", _checked_assignment(self.assignment, num_parts))
        if self.rank is not None:
            rank = _stored("rank", self.rank, self.num_nodes, self.num_nodes)
            object.__setattr__(self, "rank", rank)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        # Unpickling and copying skip the constructor, and bring writable arrays.
        Partition.__init__(self, **state)

    @classmethod
    def from_assignment(
        cls, assignment: ArrayLike, num_parts: int, rank: ArrayLike | None = None
    ) -> Partition:
        """Makes a partition from parts chosen elsewhere.

        Args:
            assignment: int [num_nodes], the part of each node, from 0.
            num_parts: number of parts; larger than the largest part used leaves parts empty.
            rank: int [num_nodes], the rank of each node among those of its part, such as its
                community; None: by id.

        Returns:
            The validated partition, with method "given".

        Raises:
            ValueError: as ``Partition``.
        """
        given: dict[str, Any] = {"assignment": assignment, "rank": rank}
        return cls(num_parts=num_parts, **given)

    @property
    def num_nodes(self) -> int:
        """The number of nodes that are assigned."""
        return int(self.assignment.shape[0])

    def counts(self) -> np.ndarray:
        """Returns the number of nodes of each part, int64 [num_parts]."""
        return np.bincount(self.assignment, minlength=self.num_parts)

    def __repr__(self) -> str:
        return (
            f"Partition(method={self.method!r}, num_parts={self.num_parts}, "
            f"num_nodes={self.num_nodes})"
        )


def checked_num_parts(num_parts: int) -> int:
    """Returns num_parts as an int."""
    if isinstance(num_parts, bool) or not isinstance(num_parts, int | np.integer):
        raise ValueError(
            f"num_parts: got {num_parts!r} of type {type(num_parts).__name__}; expected an integer."
        )
    # Part ids are int32.
    if not 1 <= num_parts <= np.iinfo(np.int32).max:
        raise ValueError(f"num_parts: got {num_parts}; expected at least 1 and below 2**31.")
    return int(num_parts)


def _checked_assignment(assignment: ArrayLike, num_parts: int) -> np.ndarray:
    array = np.asarray(assignment)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(
            f"assignment: got shape {list(array.shape)}; expected [num_nodes], one part per node."
        )
    return _stored("assignment", assignment, array.size, num_parts)


def _stored(name: str, values: ArrayLike, count: int, end: int) -> np.ndarray:
    """Integers [count] from 0 to end - 1, as a read-only copy."""
    refuse_masked(name, values)
    array = np.asarray(values)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: got {array.dtype} {list(array.shape)}; expected integers [{count}], one "
            f"per node. Convert with {name}.astype(np.int32) if its values are whole numbers."
        )
    smallest, largest = int(array.min()), int(array.max())
    if smallest < 0 or largest >= end:
        raise ValueError(
            f"{name}: values run from {smallest} to {largest}; expected 0 to {end - 1}. "
            f"np.unique({name}, return_inverse=True) renumbers them."
        )
    stored = array.astype(np.int32)
    stored.flags.writeable = False
    return stored
