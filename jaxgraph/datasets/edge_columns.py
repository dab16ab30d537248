"""The choice of the columns of senders, receivers and weights in a table of edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxgraph.datasets.files import AmbiguousFileError, UnfitOptionError, option_advice
from jaxgraph.datasets.node_ids import trimmed

Column = str | int

# Names in lower case, without blanks and without a suffix that means "id".
_SENDER_NAMES = frozenset(
    ("source", "src", "from", "u", "sender", "start", "origin", "node1", "i", "citing", "follower")
)
_RECEIVER_NAMES = frozenset(
    ("target", "dst", "dest", "destination", "to", "v", "receiver", "end", "node2", "j", "cited")
) | {"followee"}
_WEIGHT_NAMES = frozenset(("weight", "weights", "w", "edgeweight"))
_ENDINGS = ("nodeid", "node", "id", "name")


@dataclass(frozen=True)
class EdgeColumns:
    """Positions of the columns of a table of edges, from 0.

    Args:
        sender: of the senders' ids.
        receiver: of the receivers' ids.
        weight: of the weights, or None.
        is_weight_named: whether the caller or the header names the column of weights.
    """

    sender: int
    receiver: int
    weight: int | None = None
    is_weight_named: bool = False

    @property
    def used(self) -> tuple[int, ...]:
        """The positions of the columns that are read."""
        ends = (self.sender, self.receiver)
        return ends if self.weight is None else (*ends, self.weight)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The caller's decisions about a list of edges, as of `read_edge_list`; None: it decides.

    Ids that are looked up are among those of all nodes, so that no count in the file matters.
    """

    num_nodes: int | None = None
    separator: str | None = None
    header: bool | None = None
    counts: bool | None = None
    columns: tuple[Column, Column] | None = None
    weights: Column | bool | None = None
    relabel: bool | None = None
    is_looked_up: bool = False

    def check_unused(self, form: str, *used: str) -> None:
        """Refuses a choice that does not apply to a format other than text."""
        for name in ("separator", "header", "counts", "columns", "weights", "relabel"):
            value = getattr(self, name)
            if value is not None and name not in used:
                raise UnfitOptionError(
                    f"{name}: got {value!r}, and a file in {form} leaves no such choice."
                )


def choose_columns(
    names: Sequence[str] | None,
    num_columns: int,
    *,
    columns: tuple[Column, Column] | None = None,
    weights: Column | bool | None = None,
) -> EdgeColumns:
    """Chooses the columns by their names, or by position where there are no names."""
    if weights is True:
        raise UnfitOptionError(
            "weights: got True; expected a column's name or number, False or None."
        )
    position = None if weights is None or weights is False else _find(names, num_columns, weights)
    if weights is None and names is not None:
        position = _only_named(names, _WEIGHT_NAMES, "weights")
    if columns is None:
        ends = _named_ends(names, position) if names is not None else _first_two(num_columns)
    else:
        if isinstance(columns, str) or len(columns) != 2:
            raise UnfitOptionError(
                f"columns: got {columns!r}; expected two, of senders and receivers."
            )
        ends = (_find(names, num_columns, columns[0]), _find(names, num_columns, columns[1]))
    if len({*ends, position}) != 3:
        raise UnfitOptionError(
            f"columns: {ends[0]} and {ends[1]} hold senders and receivers and {position} weights; "
            "expected three different ones."
        )
    if names is None and columns is None and weights is None:
        return EdgeColumns(*ends, _unnamed_weights(num_columns))
    return EdgeColumns(*ends, position, is_weight_named=position is not None)


def names_edges(names: Sequence[str]) -> bool:
    """Tells whether the names of columns identify senders and receivers."""
    roots = {_root(name) for name in names}
    return bool(roots & _SENDER_NAMES and roots & _RECEIVER_NAMES)


def _root(name: str) -> str:
    root = "".join(letter for letter in trimmed(name).casefold() if letter.isalnum())
    if root in ("node1", "node2"):
        return root
    return next(
        (root.removesuffix(end) for end in _ENDINGS if root.endswith(end) and root != end), root
    )


def _named_ends(names: Sequence[str], weight: int | None) -> tuple[int, int]:
    sender = _only_named(names, _SENDER_NAMES, "senders")
    receiver = _only_named(names, _RECEIVER_NAMES, "receivers")
    if sender is not None and receiver is not None:
        return sender, receiver
    others = [
        position
        for position, name in enumerate(names)
        if position != weight and not _is_index(name)
    ]
    if sender is None and receiver is None and len(others) == 2:
        return others[0], others[1]
    shown = ", ".join(repr(name) for name in names)
    first, second = ([*others, 0, 1])[:2]
    example = f"({names[first]!r},{names[second]!r})"
    raise AmbiguousFileError(
        f"the columns are named {shown}, which does not tell where senders and receivers are; "
        "expected source and target, src and dst, from and to, u and v, or sender and receiver. "
        f"For others {option_advice(f'columns={example}')}."
    )


def _is_index(name: str) -> bool:
    # pandas writes its index without a name, and reads it back as "Unnamed: 0".
    return trimmed(name) == "" or trimmed(name).startswith("Unnamed:")


def _only_named(names: Sequence[str], known: frozenset[str], kind: str) -> int | None:
    found = [position for position, name in enumerate(names) if _root(name) in known]
    if len(found) > 1:
        shown = " and ".join(repr(names[position]) for position in found)
        way_out = (
            option_advice(f"weights={names[found[0]]!r}", f"--weight-column {names[found[0]]}")
            if kind == "weights"
            else option_advice("columns=('SENDER','RECEIVER')")
        )
        raise AmbiguousFileError(f"the columns {shown} may all hold {kind}; {way_out}.")
    return found[0] if found else None


def _first_two(num_columns: int) -> tuple[int, int]:
    if num_columns < 2:
        raise AmbiguousFileError(
            f"has {num_columns} column; expected at least two, of senders and receivers. If "
            f"another character separates them, {option_advice('separator=CHARACTER')}."
        )
    return 0, 1


def _unnamed_weights(num_columns: int) -> int | None:
    if num_columns > 3:
        raise AmbiguousFileError(
            f"has {num_columns} columns without names, so the meaning of columns 2 to "
            f"{num_columns - 1} (from 0) is unknown. To take the first two and ignore the rest, "
            f"{option_advice('weights=False', '--weight-column none')}; if one holds weights, "
            f"{option_advice('weights=2', '--weight-column 2')}."
        )
    return 2 if num_columns == 3 else None


def _find(names: Sequence[str] | None, num_columns: int, column: Column) -> int:
    if isinstance(column, int) and not isinstance(column, bool):
        if 0 <= column < num_columns:
            return column
        raise UnfitOptionError(f"column {column}: expected a number from 0 to {num_columns - 1}.")
    wanted = trimmed(str(column)).casefold()
    found = [p for p, name in enumerate(names or ()) if trimmed(name).casefold() == wanted]
    if len(found) != 1:
        shown = ", ".join(repr(name) for name in names) if names else "not named"
        raise UnfitOptionError(
            f"column {column!r}: {len(found)} columns have this name; the columns are {shown}. "
            "Columns can be given by number, from 0."
        )
    return found[0]
