"""Graphs of triples (subject, relation, object): RDF in N-Triples, and OpenKE's text files.

They have one set of nodes, "entity", and one set of edges whose types are the relations.
"""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph.datasets.files import BrokenFileError, reading, require_file
from jaxgraph.datasets.limits import opened
from jaxgraph.typed_graph import TypedGraph

ENTITY, RELATED = "entity", "related"
_IRI, _BLANK = r"<[^<>\"\s]*>", r"_:\S+"
_LITERAL = rf"\"(?:[^\"\\]|\\.)*\"(?:\^\^{_IRI}|@[A-Za-z0-9-]+)?"
_TRIPLE = re.compile(
    rf"\s*({_IRI}|{_BLANK})\s*({_IRI})\s*({_IRI}|{_BLANK}|{_LITERAL})\s*\.\s*(?:#.*)?"
)
_AIFB = "the files of tkipf/relational-gcn, rgcn/data/"


def read_ntriples(
    path: str | os.PathLike[str], *, literals: bool = True, inverses: bool = True
) -> TypedGraph:
    """Reads an RDF graph: a node for each subject and object, an edge type for each predicate.

    Nodes, and types, are in the order of their terms. The inverse of type r, from the object to the
    subject, has type r + R, where R is the number of predicates.

    Args:
        path: a file of N-Triples in UTF-8, which may be compressed by gzip.
        literals: whether triples whose object is a literal are kept, and each literal, by its full
            text, is a node.
        inverses: whether every edge is there in both directions.

    Returns:
        The graph; node names are the terms as written, such as "<http://...>".

    Raises:
        ValueError: the file is missing, has no triples, or a line is none.

    References:
        W3C, "RDF 1.1 N-Triples", 2014.
    """
    path, found = Path(path), []
    with reading(path, "N-Triples"), opened(path) as file:
        for number, line in enumerate(file, 1):
            text = line.decode("utf-8").strip()
            if not text or text.startswith("#"):
                continue
            terms = _TRIPLE.fullmatch(text)
            if terms is None:
                raise BrokenFileError(
                    f"{path}: line {number} is {text[:80]!r}; expected <subject> <predicate> "
                    "object, and a full stop"
                )
            if literals or not terms[3].startswith('"'):
                found.append(terms.groups())
    if not found:
        raise BrokenFileError(f"{path}: holds no triples to make edges of")
    # Not as arrays of texts, which take the length of the longest literal for each.
    names = sorted({term for subject, _, target in found for term in (subject, target)})
    rows = {name: row for row, name in enumerate(names)}
    kinds = {name: kind for kind, name in enumerate(sorted({triple[1] for triple in found}))}
    triples = np.array([(rows[s], kinds[p], rows[o]) for s, p, o in found])
    senders, types, receivers = triples.T
    return _graph(path.stem, {"node_names": names}, senders, receivers, types, inverses=inverses)


def load_aifb(folder: str | os.PathLike[str], *, inverses: bool = True) -> TypedGraph:
    """Reads AIFB: which of four research groups a person belongs to, from an RDF graph.

    Literals are nodes, as in the published counts. The file lacks the relations that give the
    answer.

    Args:
        folder: holds ``aifb_stripped.nt.gz``, ``trainingSet.tsv`` and ``testSet.tsv``, under
            ``aifb/`` or directly.
        inverses: whether every edge is there in both directions.

    Returns:
        The graph, of 8,285 nodes without features, with labels and masks for training and test.

    Raises:
        ValueError: a file is missing or broken, or names a person who is no node.

    References:
        Schlichtkrull et al., "Modeling relational data with graph convolutional networks", 2018.
    """
    root = Path(folder)
    graph = require_file(root, "aifb/aifb_stripped.nt.gz", origin=_AIFB)
    found = read_ntriples(graph, inverses=inverses)
    nodes: Any = found.node_sets[ENTITY]
    rows = {name: row for row, name in enumerate(nodes.node_names)}
    groups: dict[str, list[tuple[int, str]]] = {}
    for mask, name in (("train_mask", "trainingSet.tsv"), ("test_mask", "testSet.tsv")):
        path = require_file(root, f"aifb/{name}", origin=_AIFB)
        with reading(path, "a table of persons"), path.open(newline="", encoding="utf-8") as file:
            table = list(csv.DictReader(file, delimiter="\t"))
            groups[mask] = [(rows[f"<{x['person']}>"], x["label_affiliation"]) for x in table]
    names = sorted({group for some in groups.values() for _, group in some})
    labels = np.full(nodes.num_nodes, -1)
    masks = {mask: np.zeros(nodes.num_nodes, bool) for mask in groups}
    for mask, some in groups.items():
        for row, group in some:
            labels[row], masks[mask][row] = names.index(group), True
    labelled = nodes.replace(labels=labels, **masks)
    return TypedGraph({ENTITY: labelled}, found.edge_sets, "aifb")


def read_openke(
    folder: str | os.PathLike[str], part: str = "train", *, inverses: bool = True
) -> TypedGraph:
    """Reads triples in the text files of OpenKE, such as FB15k-237.

    Args:
        folder: holds ``entity2id.txt``, ``relation2id.txt`` and ``<part>2id.txt``, whose lines are
            head, tail and relation; the first line of each file is the number of the others.
        part: "train", "valid" or "test".
        inverses: whether every edge is there in both directions; the inverse of type r has type
            r + R, where R is the number of relations.

    Returns:
        The graph; node names are those of ``entity2id.txt``.

    Raises:
        ValueError: a file is missing or broken.
    """
    root = Path(folder)
    numbers = require_file(root, f"{part}2id.txt", origin="OpenKE")
    entities = require_file(root, "entity2id.txt", origin="OpenKE")
    with reading(entities, "entities by number"), entities.open(encoding="utf-8") as file:
        count = int(file.readline())
        pairs = [line.rstrip("\r\n").rsplit("\t", 1) for line in file if line.strip()]
        names = dict(sorted((int(number), name) for name, number in pairs))
    if list(names) != list(range(count)):
        raise BrokenFileError(f"{entities}: expected the numbers 0 to {count - 1}, each once")
    with reading(numbers, "triples of numbers"), numbers.open(encoding="utf-8") as file:
        count = int(file.readline())
        triples = np.loadtxt(file, np.int64, ndmin=2)
    if triples.shape != (count, 3):
        raise BrokenFileError(
            f"{numbers}: holds {list(triples.shape)} numbers; expected {count} lines of 3"
        )
    heads, tails, types = triples.T
    relations = require_file(root, "relation2id.txt", origin="OpenKE")
    with reading(relations, "relations by number"), relations.open(encoding="utf-8") as file:
        num_types = int(file.readline())
    nodes = {"node_names": np.array(list(names.values()))}
    return _graph(root.name, nodes, heads, tails, types, inverses=inverses, num_types=num_types)


def _graph(
    name: str,
    nodes: dict[str, Any],
    senders: np.ndarray,
    receivers: np.ndarray,
    types: np.ndarray,
    *,
    inverses: bool,
    num_types: int | None = None,
) -> TypedGraph:
    """The graph of some triples."""
    if inverses:
        more = int(types.max(initial=-1)) + 1 if num_types is None else num_types
        senders, receivers = np.concatenate([[senders, receivers], [receivers, senders]], axis=1)
        types = np.concatenate([types, types + more])
    edges = {"senders": senders, "receivers": receivers, "edge_type": types}
    return TypedGraph({ENTITY: nodes}, {(ENTITY, RELATED, ENTITY): edges}, name)
