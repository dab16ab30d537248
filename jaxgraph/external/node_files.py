"""Features, labels and masks of nodes: read in blocks, checked, and cut by part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph import transforms
from jaxgraph.datasets.edge_keys import Rows
from jaxgraph.datasets.file_rows import FileRows, npy_rows
from jaxgraph.external.limits import Amounts
from jaxgraph.external.request import Request
from jaxgraph.external.splitting import add_by_part
from jaxgraph.external.work import StepFiles, Work
from jaxgraph.graph import Graph
from jaxgraph.graph_arrays import check_masked_nodes_labelled, check_masks_disjoint
from jaxgraph.layout.local_order import LocalOrder
from jaxgraph.partition.sorting import inverse_permutation

_MASKS = ("train_mask", "val_mask", "test_mask")
_FILES = ("nodes", "labels", *_MASKS, "ids")


def node_data_of(folder: Path) -> dict[str, FileRows]:
    """Finds the files of a folder of node data."""
    if not folder.is_dir():
        raise ValueError(f"node_data: there is no folder {folder}; expected one of .npy files")
    found = {}
    for path in sorted(folder.glob("*.npy")):
        if path.stem not in _FILES:
            raise ValueError(
                f"node_data: {path} has an unknown name; expected "
                f"{', '.join(f'{name}.npy' for name in _FILES)}"
            )
        rows = npy_rows(path)
        if rows.by_column:
            raise ValueError(
                f"node_data: {path} is stored by column; write it again with "
                "np.save(path, np.ascontiguousarray(array))"
            )
        found[path.stem] = rows
    if len({rows.shape[0] for rows in found.values()}) != 1:
        shown = ", ".join(f"{rows.shape[0]} of {name}" for name, rows in found.items())
        raise ValueError(
            f"node_data: {folder} holds {shown or 'no files'}; expected a row for each node in all"
        )
    return found


def row_bytes(arrays: Mapping[str, Rows]) -> int:
    """Bytes of a node's row in all arrays, as they are stored."""
    return sum(4 * int(np.prod(rows.shape[1:])) for rows in arrays.values())


@dataclasses.dataclass(frozen=True)
class NodeFiles:
    """The arrays of the nodes of each part, by ascending id, in files.

    Attributes:
      folder: of the files.
      kinds: shape of a row and dtype of each array by name.
      facts: num_classes, splits, train_class_counts, labelled (training nodes of each part).
    """

    folder: Path
    kinds: Mapping[str, tuple[tuple[int, ...], np.dtype]]
    facts: Mapping[str, Any]

    @property
    def multilabel(self) -> bool:
        """True where a node has several labels."""
        return len(self.kinds.get("labels", ((), None))[0]) == 1

    def arrays(self, order: LocalOrder, part: int) -> dict[str, np.ndarray]:
        """The arrays of the nodes of a part, in the order of its rows."""
        nodes = order.nodes_of(part)
        place = inverse_permutation(np.argsort(nodes, kind="stable"))
        found = {}
        for name, (rest, dtype) in self.kinds.items():
            path = self.folder / f"{part:04d}-{name}"
            found[name] = FileRows(path, dtype, (len(nodes), *rest))[:][place]
        return found


def split_nodes(
    work: Work,
    request: Request,
    arrays: Mapping[str, Rows],
    part: np.ndarray,
    amounts: Amounts,
    on_progress: Callable[[int, int], object],
) -> NodeFiles:
    """Writes the rows of every node to the file of its part."""
    num_parts = request.num_parts

    def make(files: StepFiles) -> dict[str, Any]:
        step = amounts.rows(2 * row_bytes(arrays)) if arrays else len(part)
        facts: dict[str, Any] = {"labelled": [0] * num_parts, "splits": {}, "kinds": {}}
        for first in range(0, len(part) if arrays else 0, step):
            stop = min(first + step, len(part))
            block = {name: rows[first:stop] for name, rows in arrays.items()}
            try:
                block = _checked(block, stop - first, normalize=request.normalize)
            except ValueError as error:
                raise ValueError(f"nodes {first} to {stop - 1}: {error}") from error
            add_by_part(files, block, part[first:stop], num_parts)
            for name, values in block.items():
                facts["kinds"][name] = [values.shape[1:], values.dtype.str]
            _count(facts, block, part[first:stop])
            on_progress(stop, len(part))
        return facts

    folder, facts = work.step("nodes", make)
    empty = [name for name in _MASKS if name in arrays and not facts["splits"].get(name[:-5])]
    if empty:
        raise ValueError(f"{empty[0]}: selects no node; leave the file out")
    kinds = facts["kinds"].items()
    shapes = {name: (tuple(rest), np.dtype(dtype)) for name, (rest, dtype) in kinds}
    return NodeFiles(folder, shapes, facts)


def _checked(
    block: Mapping[str, np.ndarray], count: int, *, normalize: bool
) -> dict[str, np.ndarray]:
    """The rows of some nodes as a graph stores them."""
    nothing = np.zeros(0, np.int32)
    masks = {name: values for name, values in block.items() if name in _MASKS}
    others: dict[str, Any] = {name: block[name] for name in block if name not in masks}
    graph = Graph(nothing, nothing, count, **others)
    if normalize and graph.nodes is not None:
        graph = transforms.normalize_features(graph)
    for name, mask in masks.items():
        if mask.dtype != bool or mask.shape != (count,):
            raise ValueError(
                f"{name}: got {mask.dtype} {list(mask.shape)}; expected bool [num_nodes]"
            )
    check_masks_disjoint(masks)
    check_masked_nodes_labelled(masks, graph.labels)
    return {name: getattr(graph, name) for name in others} | masks


def _count(facts: dict[str, Any], block: Mapping[str, np.ndarray], part: np.ndarray) -> None:
    """Adds a block to the facts of the nodes before it."""
    splits, labels = facts["splits"], block.get("labels")
    for name in _MASKS:
        if name in block:
            splits[name[:-5]] = splits.get(name[:-5], 0) + int(block[name].sum())
    if labels is not None:
        classes = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1
        facts["num_classes"] = max(facts.get("num_classes", 0), classes)
    if "train_mask" in block:
        trained = block["train_mask"]
        labelled = np.bincount(part[trained], minlength=len(facts["labelled"]))
        facts["labelled"] = (np.asarray(facts["labelled"]) + labelled).tolist()
        if labels is not None and labels.ndim == 1:
            before = np.asarray(facts.get("train_class_counts", []), np.int64)
            now = np.bincount(labels[trained & (labels >= 0)], minlength=len(before))
            now[: len(before)] += before
            facts["train_class_counts"] = now.tolist()
