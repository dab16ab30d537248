"""Loading by name: every name, options, near matches."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxgraph import datasets
from tests.interpreter import run_alone

REAL = ["cora", "citeseer", "pubmed", "amazon-photo", "coauthor-cs", "blogcatalog", "ppi"]
GENERATED = ["sbm", "random", "rmat", "chung-lu"]


def test_names_are_sorted_and_hold_every_family() -> None:
    names = datasets.names()
    assert list(names) == sorted(names)
    assert set(names) >= {*REAL, *GENERATED, "karate", "ogbn-arxiv", "amazon-computers"}


@pytest.mark.parametrize("name", [name for name in REAL if name not in ("coauthor-cs", "pubmed")])
def test_real_graphs_are_loaded_by_name(name: str, data_dir: Path) -> None:
    assert datasets.load(name, data_dir=data_dir).name == name


@pytest.mark.parametrize("name", GENERATED)
def test_generated_graphs_are_loaded_by_name_and_options(name: str) -> None:
    graph = datasets.load(name, num_nodes=50, degree=4, num_classes=3, num_features=2, seed=1)
    counts = (graph.num_nodes, graph.num_edges, graph.num_classes, graph.num_features)
    assert (graph.name, *counts) == (name, 50, 200, 3, 2)


def test_the_folder_is_taken_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, data_dir: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAXGRAPH_DATA", str(data_dir))
    assert datasets.load("ppi").num_nodes == 3890
    for variable, folder, message in (
        ("", None, "data_dir: not given, .*variable JAXGRAPH_DATA is not set; pass"),
        ("", tmp_path / "absent", "data_dir: .*absent is no folder"),
        (str(tmp_path / "absent"), None, "JAXGRAPH_DATA: .*absent is no folder"),
    ):
        monkeypatch.setenv("JAXGRAPH_DATA", variable)
        with pytest.raises(datasets.MissingFileError, match=message):
            datasets.load("ppi", data_dir=folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("coraa", "name: no data set 'coraa'; did you mean 'cora'? Known: aifb, amazon-computers,"),
        (None, "name: got None; expected the text of a name"),
        ("zzz", "name: no data set 'zzz'. Known: aifb, amazon-computers,"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_near_match(name: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        datasets.load(name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("karate", {"seed": 1}, "seed: no option of the data set 'karate'; it has none."),
        ("coauthor-cs", {"spilt_seed": 1}, "did you mean 'split_seed'? Known: split_seed."),
        ("a.csv", {"directed": 1}, "did you mean 'undirected'? Known: num_nodes, undirected,"),
        ("cora", {"folder": "."}, "folder: no option of the data set 'cora'"),
    ],
)
def test_an_unknown_option_is_an_error_with_the_near_match(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        datasets.load(name, **options)


def test_a_file_name_is_read_as_a_list_of_edges(tmp_path: Path) -> None:
    path = tmp_path / "mine.npy"
    np.save(path, np.array([[0, 1], [1, 2], [0, 2]]))
    for graph in (
        datasets.load(str(path), undirected=True),
        datasets.load("mine.npy", data_dir=tmp_path, undirected=True),
    ):
        assert (graph.name, graph.num_nodes, graph.num_edges) == ("mine", 3, 6)
    with pytest.raises(datasets.MissingFileError, match=r"other.csv: no such file"):
        datasets.load("other.csv", data_dir=tmp_path)


def test_reading_data_imports_no_accelerator_library() -> None:
    program = (
        "import sys, jaxgraph.datasets, jaxgraph.transforms; "
        "jaxgraph.datasets.load('karate'); "
        "sys.exit(bool({'jax', 'jaxlib', 'flax', 'networkx'} & set(sys.modules)))"
    )
    result = run_alone(program)
    assert result.returncode == 0, result.stderr
