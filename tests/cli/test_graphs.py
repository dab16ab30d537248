from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxgraph.cli.graphs import graph_summary, load_graph
from jaxgraph.cli.options import GraphOptions
from jaxgraph.datasets import load_gnn_benchmark
from jaxgraph.graph_facts import facts_of, facts_of_typed
from jaxgraph.typed_graph import TypedGraph
from tests.datasets.test_gnn_benchmark import pickled_layout


def test_generator_options_reach_the_generator():
    options = GraphOptions(
        dataset="sbm",
        num_nodes=120,
        num_classes=3,
        num_features=4,
        degree=6.0,
        option=["homophily=0.9", "seed=5"],
    )
    graph = load_graph(options)
    summary = graph_summary(facts_of(graph))
    assert (summary["nodes"], summary["features"], summary["classes"]) == (120, 4, 3)
    assert summary["train"] + summary["val"] + summary["test"] <= 120
    assert graph.labels is not None
    inside = (graph.labels[graph.senders] == graph.labels[graph.receivers]).mean()
    assert inside > 0.75


def test_transforms_are_applied(tmp_path: Path):
    (tmp_path / "ring.csv").write_text("0,1\n1,2\n2,0\n")
    plain = GraphOptions(dataset="ring.csv", data_dir=tmp_path)
    both = GraphOptions(
        dataset="ring.csv", data_dir=tmp_path, undirected=True, degree_features=True
    )
    assert load_graph(plain).num_edges == 3 and load_graph(plain).nodes is None
    changed = load_graph(both)
    assert changed.num_edges == 6
    np.testing.assert_allclose(np.asarray(changed.nodes), np.log(3), rtol=1e-6)


def test_labels_per_class_draws_a_split_from_the_seed():
    def split(seed: int) -> np.ndarray:
        options = GraphOptions(dataset="sbm", num_nodes=300, num_classes=2, seed=seed)
        graph = load_graph(GraphOptions(**{**vars(options), "labels_per_class": 5}))
        assert graph.train_mask is not None
        return graph.train_mask

    assert split(0).sum() == 10
    np.testing.assert_array_equal(split(0), split(0))
    assert (split(0) != split(1)).any()


def test_the_seed_draws_the_split_of_a_set_without_one(tmp_path: Path):
    np.savez(tmp_path / "amazon_photo.npz", **pickled_layout())
    for given, seed in (({"seed": 1}, 1), ({"seed": 1, "option": ["split_seed=2"]}, 2)):
        options: Any = {"dataset": "amazon-photo", "data_dir": tmp_path, **given}
        mask = load_graph(GraphOptions(**options)).train_mask
        expected = load_gnn_benchmark("amazon-photo", tmp_path, split_seed=seed).train_mask
        np.testing.assert_array_equal(np.asarray(mask), np.asarray(expected))


def test_an_option_without_name_or_value_is_refused():
    for text in ("homophily", "=0.5", ""):
        with pytest.raises(ValueError, match="expected NAME=VALUE"):
            load_graph(GraphOptions(dataset="sbm", option=[text]))
    with pytest.raises(ValueError, match=r"--option: .*'many'.*wrong type"):
        load_graph(GraphOptions(dataset="sbm", num_nodes=100, option=["degree=many"]))


def test_options_of_a_file_reach_its_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.txt").write_text("10000000 7 5\n7 8 6\n")

    def load(dataset: str = "a.txt", **options: Any):
        return load_graph(GraphOptions(dataset=dataset, data_dir=tmp_path, **options))

    graph = load(weight_column="2", relabel=True)
    assert graph.edge_weight is not None and graph.edge_weight.tolist() == [5, 6]
    assert graph.node_names is not None and graph.node_names.tolist() == [7, 8, 10000000]
    shown = capsys.readouterr().out
    assert "weights from column 2; ids in node_names; 3 nodes, 2 edges." in shown
    graph = load(weight_column="none", relabel=False)
    assert (graph.num_nodes, graph.edge_weight) == (10000001, None)
    named = load(option=["columns=(1,2)", "weights=False"])
    assert named.senders.tolist() == [7, 8]
    with pytest.raises(ValueError, match="weights: no option of the data set 'karate'"):
        load("karate", weight_column="2")


def test_a_table_of_nodes_beside_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "edges.csv").write_text("source,target\na,b\nb,c\n")
    (tmp_path / "nodes.csv").write_text("id,group,size\na,x,1\nb,y,\nc,x,3\nd,y,2\n")
    options = GraphOptions(
        dataset=str(tmp_path / "edges.csv"),
        node_data=tmp_path / "nodes.csv",
        option=["label_column=group", "missing=mean"],
    )
    graph = load_graph(options)
    assert graph.nodes[:, 0].tolist() == [1, 2, 3, 2] and graph.labels is not None
    assert graph.labels.tolist() == [0, 1, 0, 1]
    assert "classes 'x', 'y'" in capsys.readouterr().out


def test_edge_data_is_dropped_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "ring.csv").write_text("0,1,0.5\n1,2,2\n2,0,3\n")
    plain = GraphOptions(dataset="ring.csv", data_dir=tmp_path)
    assert load_graph(plain).edge_weight is not None and capsys.readouterr().err == ""
    assert load_graph(replace(plain, ignore_edge_data=True)).edge_weight is None
    assert "ignoring edge_weight of its edges" in capsys.readouterr().err


def test_the_summary_of_several_sets_counts_each_of_them() -> None:
    nothing = {"senders": [], "receivers": []}
    graph = TypedGraph({"a": {"num_nodes": 2}, "b": {"num_nodes": 3}}, {("a", "to", "b"): nothing})
    assert graph_summary(facts_of_typed(graph)) == {
        "name": "graph",
        "nodes": 5,
        "edges": 0,
        "a": 2,
        "b": 3,
        "to": 0,
    }
