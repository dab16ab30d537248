"""The worker alone: arrays in a folder in, parts in a folder out."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest

from jaxgraph.partition import metis_worker


def two_triangles(folder: Path, weights: list[int], **changes: object) -> None:
    """Writes the triangles 0 1 2 and 3 4 5, joined by the edge 2 3."""
    neighbours = [[1, 2], [0, 2], [0, 1, 3], [2, 4, 5], [3, 5], [3, 4]]
    np.save(folder / "starts.npy", np.cumsum([0] + [len(row) for row in neighbours]))
    np.save(folder / "neighbours.npy", np.concatenate(neighbours).astype(np.int32))
    np.save(folder / "weights.npy", np.array(weights))
    settings = {"num_parts": 2, "seed": 0, "objective": "cut", "recursive": True, "attempts": 1}
    (folder / "settings.json").write_text(json.dumps(settings | changes))


@pytest.mark.parametrize(
    ("objective", "recursive"), [("cut", True), ("cut", False), ("volume", False)]
)
def test_cuts_the_edge_between_two_triangles(
    tmp_path: Path, objective: str, recursive: bool
) -> None:
    two_triangles(tmp_path, [1] * 6, objective=objective, recursive=recursive)
    metis_worker.main(tmp_path)
    found = np.load(tmp_path / "assignment.npy")
    assert found.dtype == np.int32
    assert len(set(found[:3])) == len(set(found[3:])) == 1
    assert found[0] != found[3]


def test_weights_are_balanced(tmp_path: Path) -> None:
    two_triangles(tmp_path, [5, 1, 1, 1, 1, 1])
    metis_worker.main(tmp_path)
    found = np.load(tmp_path / "assignment.npy")
    assert np.count_nonzero(found == found[0]) == 1


def test_imports_neither_jax_nor_jaxgraph() -> None:
    tree = ast.parse(Path(metis_worker.__file__).read_text())
    names = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names == {"__future__", "json", "numpy", "pathlib", "pymetis", "sys"}
