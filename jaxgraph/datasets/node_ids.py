"""Maps the node ids of files, numbers or names, to rows from 0."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxgraph.datasets.files import AmbiguousFileError, BrokenFileError, option_advice

__all__ = [
    "BLANK",
    "MINUS",
    "NUMBER",
    "WHOLE",
    "NodeIds",
    "check_all_named",
    "check_dense",
    "check_name_width",
    "ids_of_numbers",
    "ids_of_texts",
    "is_number",
    "number",
    "trimmed",
]

# A graph may have this many nodes, whatever its number of edges: they take a few megabytes.
_NODES_ALWAYS_ALLOWED = 1 << 20
_NODES_PER_EDGE_ALLOWED = 16
# Names are stored with a fixed width; a few long ones must not make all of them long.
_NAME_BYTES_ALWAYS_ALLOWED = 1 << 28
_NAME_WASTE_ALLOWED = 16

_SPAN_OF_TABLE = 4
_LONGEST_NUMBER = 64
WHOLE = re.compile(r"[+-]?\d+(\.0*)?", re.ASCII)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
BLANK = " \t\r\n\v\f\u00a0\u2009\u202f\u3000\ufeff\u200b\u200c\u200d\u2060"
MINUS = "\u2212"
_NOT_FINITE = ("nan", "inf", "infinity")


@dataclass(frozen=True)
class NodeIds:
    """Edges whose ids are rows.

    Args:
        senders: int [num_edges].
        receivers: int [num_edges].
        names: [num_nodes], the id in the file of each row, or None where ids are rows.
    """

    senders: np.ndarray
    receivers: np.ndarray
    names: np.ndarray | None = None


def trimmed(text: str) -> str:
    """Returns a text without white space and characters of no width around it."""
    return text.strip(BLANK)


def is_number(text: str) -> bool:
    """Tells whether a trimmed text is a number, with an ASCII or a typographic minus sign."""
    return len(text) <= _LONGEST_NUMBER and (NUMBER.fullmatch(text.replace(MINUS, "-")) is not None)


def number(text: str) -> float:
    """Parses a number.

    Args:
        text: trimmed.

    Returns:
        The number; NaN and infinities for their names.

    Raises:
        ValueError: it is no number.
    """
    if is_number(text) or text.lower().lstrip("+-") in _NOT_FINITE:
        return float(text.replace(MINUS, "-"))
    raise ValueError(f"{text[:80]!r} is no number")


def ids_of_numbers(
    senders: np.ndarray, receivers: np.ndarray, *, relabel: bool | None, num_nodes: int | None
) -> NodeIds:
    """Reads whole numbers as rows, or relabels them in ascending order.

    Args:
        senders: int [num_edges].
        receivers: int [num_edges].
        relabel: whether to relabel; None keeps the ids, and refuses ids that are too sparse.
        num_nodes: the number of nodes that the caller gave, or None.

    Returns:
        The edges.

    Raises:
        AmbiguousFileError: `relabel` and `num_nodes` are None, and the largest id would make a
            graph of more than 2**20 nodes and more than 16 per edge.
    """
    if relabel:
        names, rows = _relabelled(np.concatenate([senders, receivers]))
        check_all_named(names.size, num_nodes)
        return NodeIds(rows[: senders.size], rows[senders.size :], names)
    if relabel is None and num_nodes is None and senders.size:
        check_dense(max(int(senders.max()), int(receivers.max())), senders.size)
    return NodeIds(senders, receivers)


def _relabelled(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct ids in ascending order, and the position of each id among them."""
    smallest, largest = (int(ids.min()), int(ids.max())) if ids.size else (0, 0)
    if largest - smallest >= _SPAN_OF_TABLE * ids.size:
        names, rows = np.unique(ids, return_inverse=True)
        return names, rows.reshape(-1)
    # A table of all possible ids takes a tenth of the time of sorting.
    offsets = ids - ids.dtype.type(smallest)
    is_there = np.zeros(largest - smallest + 1, bool)
    is_there[offsets] = True
    names = np.flatnonzero(is_there).astype(ids.dtype) + ids.dtype.type(smallest)
    return names, (np.cumsum(is_there) - 1)[offsets]


def check_num_nodes(num_nodes: int, num_edges: int) -> None:
    """Refuses a file's header that declares far more nodes than the file has edges.

    Args:
        num_nodes: number of nodes that the header declares.
        num_edges: number of edges that the file holds.

    Raises:
        AmbiguousFileError: there would be more than 2**20 nodes, and more than 16 per edge.
    """
    if num_nodes > max(_NODES_ALWAYS_ALLOWED, _NODES_PER_EDGE_ALLOWED * num_edges):
        raise AmbiguousFileError(
            f"declares {num_nodes:,} nodes for {num_edges:,} edges, so that nearly all nodes would "
            f"have none. If that is intended, {option_advice(f'num_nodes={num_nodes}')}."
        )


def check_dense(largest: int, num_edges: int) -> None:
    """Raises AmbiguousFileError where ids are so sparse that nearly all nodes have no edge."""
    if largest < max(_NODES_ALWAYS_ALLOWED, _NODES_PER_EDGE_ALLOWED * num_edges):
        return
    raise AmbiguousFileError(
        f"the largest id is {largest} and there are {num_edges:,} edges, so that nearly all of "
        f"{largest + 1:,} nodes would have none (more than 2**20 nodes and more than 16 per edge "
        "are refused). To relabel the ids and keep them in graph.node_names, "
        f"{option_advice('relabel=True', '--relabel')}; if ids are rows, "
        f"{option_advice('relabel=False', '--no-relabel')}."
    )


def ids_of_texts(
    codes: tuple[np.ndarray, np.ndarray],
    texts: Sequence[str],
    *,
    relabel: bool | None,
    num_nodes: int | None,
    place: Callable[[int], str],
) -> NodeIds:
    """Reads texts as whole numbers if all of them are, and as names if none of them is a number.

    Args:
        codes: int [num_edges] of senders and of receivers, positions in ``texts``.
        texts: the distinct ids of the file, trimmed.
        relabel: None or True relabels names; True relabels anything; False refuses names.
        num_nodes: the number of nodes that the caller gave, or None.
        place: returns where the text of a code first occurs, for messages.

    Returns:
        The edges; names are in the order of their first occurrence.

    Raises:
        AmbiguousFileError: some are numbers and others are not, a number is not whole, or names
            must not be relabelled.
    """
    whole = [_whole(text) for text in texts]
    unlike = next((code for code, value in enumerate(whole) if value is None), None)
    if unlike is None:
        return _ids_of_whole_numbers(codes, whole, relabel=relabel, num_nodes=num_nodes)
    if relabel is None:
        for code, text in enumerate(texts):
            if is_number(text):
                _refuse_mixture(place, texts, whole, code)
    if relabel is False:
        raise AmbiguousFileError(
            f"{place(unlike)}: the id {texts[unlike][:80]!r} is a name, which is not a row; "
            "leave out relabel=False (--no-relabel) to relabel ids and keep them in "
            "graph.node_names."
        )
    check_all_named(len(texts), num_nodes)
    return NodeIds(*codes, _names_array(texts))


def check_all_named(num_names: int, num_nodes: int | None) -> None:
    """Raises AmbiguousFileError where the caller gave another number of nodes than have names."""
    if num_nodes not in (None, num_names):
        raise AmbiguousFileError(
            f"num_nodes is {num_nodes}, and {num_names} ids occur, each the name of a node; leave "
            "num_nodes out. from_pandas(frame, node_names=ids) also knows nodes without edges."
        )


def _refuse_mixture(
    place: Callable[[int], str], texts: Sequence[str], whole: list[int | None], code: int
) -> None:
    odd = code
    if whole[0] is not None:
        odd = next(position for position, value in enumerate(whole) if value is None)
    kind = "no whole number" if odd != code or whole[code] is None else "a number"
    raise AmbiguousFileError(
        f"{place(odd)}: the id {texts[odd][:80]!r} is {kind}, unlike other ids. "
        f"If all ids are names, {option_advice('relabel=True', '--relabel')}."
    )


def _ids_of_whole_numbers(
    codes: tuple[np.ndarray, np.ndarray],
    whole: list[int | None],
    *,
    relabel: bool | None,
    num_nodes: int | None,
) -> NodeIds:
    limits = np.iinfo(np.int64)
    values = [value for value in whole if value is not None]
    if all(limits.min <= value <= limits.max for value in (min(values), max(values))):
        table = np.array(values, np.int64)
        return ids_of_numbers(
            table[codes[0]], table[codes[1]], relabel=relabel, num_nodes=num_nodes
        )
    if not relabel:
        check_dense(max(max(values), -min(values)), codes[0].size)
    # Beyond 64 bits ids are kept as texts; equal numbers, such as 7 and 07, stay one node.
    distinct = sorted(set(values))
    rows = {value: row for row, value in enumerate(distinct)}
    table = np.array([rows[value] for value in values], np.int64)
    return NodeIds(
        table[codes[0]], table[codes[1]], _names_array([str(value) for value in distinct])
    )


def _whole(text: str) -> int | None:
    if len(text) > _LONGEST_NUMBER:
        return None
    text = text.replace(MINUS, "-")
    if WHOLE.fullmatch(text):
        return int(text.partition(".")[0])
    if not is_number(text):
        return None
    value = float(text)
    # Up to 2**53 every whole number has a float of its own.
    return int(value) if value.is_integer() and abs(value) <= 2**53 else None


def _names_array(names: Sequence[str]) -> np.ndarray:
    """Returns names as an array of fixed width, unless a few long ones would make it enormous.

    Args:
        names: the names.

    Returns:
        str [len(names)].

    Raises:
        BrokenFileError: the array would take more than 256 MiB and more than 16 times the size of
            the names.
    """
    longest = max(map(len, names), default=1)
    check_name_width(longest, len(names), sum(map(len, names)))
    return np.array(names, np.str_)


def check_name_width(longest: int, num_names: int, characters: int) -> None:
    """Refuses names whose array of fixed width would be enormous.

    Args:
        longest: characters of the longest name.
        num_names: number of names.
        characters: of all names.

    Raises:
        BrokenFileError: the array would take more than 256 MiB and more than 16 times the size of
            the names.
    """
    allowed = _NAME_WASTE_ALLOWED * 4 * characters
    if 4 * longest * num_names > max(_NAME_BYTES_ALWAYS_ALLOWED, allowed):
        raise BrokenFileError(
            f"an id has {longest:,} characters, against {characters // num_names} on "
            "average; expected names of similar length. Is the separator right?"
        )
