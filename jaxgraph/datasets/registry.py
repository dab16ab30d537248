"""Data sets by name."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, overload

from jaxgraph.datasets import (
    edge_list,
    generators,
    gnn_benchmark,
    karate,
    matlab,
    ogb,
    planetoid,
    tu,
)
from jaxgraph.datasets.files import data_folder
from jaxgraph.datasets.triples import load_aifb
from jaxgraph.graph import Graph
from jaxgraph.typed_graph import TypedGraph

TYPED_NAMES = ("aifb", "ogbn-mag", *tu.NAMES)
"""Data sets that are a `TypedGraph`."""
_FROM_FILES: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"aifb": load_aifb, "ogbn-mag": partial(ogb.load_ogb_typed, "ogbn-mag")}
    | {
        name: partial(read, name)
        for family, read in (
            (planetoid.NAMES, planetoid.load_planetoid),
            (gnn_benchmark.NAMES, gnn_benchmark.load_gnn_benchmark),
            (matlab.NAMES, matlab.load_matlab),
            (ogb.NAMES, ogb.load_ogb),
            (tu.NAMES, tu.load_tu),
        )
        for name in family
    }
)
_BUILT_IN: Mapping[str, Callable[..., Graph]] = MappingProxyType(
    {
        "karate": karate.load_karate,
        "sbm": generators.stochastic_block_model,
        "chung-lu": generators.chung_lu,
        "rmat": generators.rmat,
        "random": generators.random_graph,
    }
)


def names() -> tuple[str, ...]:
    """Returns the names that ``load`` knows, sorted."""
    return tuple(sorted([*_FROM_FILES, *_BUILT_IN]))


@overload
def load(
    name: Literal[
        "aifb",
        "ogbn-mag",
        "mutag",
        "ptc-mr",
        "proteins",
        "enzymes",
        "nci1",
        "imdb-binary",
        "imdb-multi",
    ],
    data_dir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> TypedGraph: ...
@overload
def load(name: str, data_dir: str | os.PathLike[str] | None = None, **options: Any) -> Graph: ...
def load(name: str, data_dir: str | os.PathLike[str] | None = None, **options: Any) -> Any:
    """Loads a data set, or makes a generated graph, by name.

    A name with the suffix of an edge list (``.csv``, ``.mtx``, ``.npz``, ``.txt`` and so on) is
    read by ``read_edge_list``, from ``data_dir`` if that is given.

    Args:
        name: one of ``names()``, in any case, or the file name of an edge list.
        data_dir: the folder of the data sets' files; None: the environment variable JAXGRAPH_DATA.
            Built-in and generated graphs need none.
        **options: of the data set, such as ``split_seed=1`` or ``num_nodes=1000``; see the
            functions of ``jaxgraph.datasets``.

    Returns:
        The graph; of "aifb", "ogbn-mag" and the data sets of ``load_tu`` a ``TypedGraph``.

    Raises:
        ValueError: the name or an option is unknown, or a file is missing or broken.
    """
    if not isinstance(name, str):
        raise ValueError(f"name: got {name!r}; expected the text of a name. Known: {names()}.")
    if is_file_name(name, data_dir):
        _check_options(name, edge_list.read_edge_list, options)
        path = Path(name) if data_dir is None else data_folder(data_dir) / name
        return edge_list.read_edge_list(path, **options)
    known_name = name.lower().replace("_", "-")
    read = _FROM_FILES.get(known_name) or _BUILT_IN.get(known_name)
    if read is None:
        raise ValueError(f"name: no data set {name!r}{_near_match(known_name, names())}")
    _check_options(known_name, read, options)
    if known_name in _FROM_FILES:
        return read(data_folder(data_dir), **options)
    return read(**options)


def is_file_name(name: str, data_dir: str | os.PathLike[str] | None = None) -> bool:
    """Tells whether ``load`` reads an edge list of this name, rather than a data set."""
    if name.lower().endswith(edge_list.SUFFIXES):
        return True
    is_known = name.lower().replace("_", "-") in names()
    return (
        not is_known
        and (Path(name) if data_dir is None else Path(data_dir).expanduser() / name).is_file()
    )


def _check_options(name: str, read: Callable[..., Any], options: Mapping[str, Any]) -> None:
    known = [x for x in inspect.signature(read).parameters if x not in ("folder", "path")]
    for option in options:
        if option not in known:
            hint = _near_match(option, known) if known else "; it has none."
            raise ValueError(f"{option}: no option of the data set {name!r}{hint}")


def _near_match(wrong: str, known: list[str] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(wrong, known, n=1)
    question = f"; did you mean {near[0]!r}?" if near else "."
    return f"{question} Known: {', '.join(known)}."
