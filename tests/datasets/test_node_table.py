"""Tables of nodes beside a list of edges."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from jaxgraph.datasets import ReadReport, from_pandas, read_edge_list
from jaxgraph.graph import Graph
from tests.datasets.structure import present

EDGES = "source,target\nann,bob\nbob,cid\ncid,ann\ndan,ann\n"
NODES = """id,age,city,vip,label,split
dan,1,Rome,true,y,test
eve,2.5,Oslo,true,,
ann,3,Bern,false,x,train
bob,4.5,Rome,false,y,val
cid,5,Bern,true,x,train
"""


def read(folder: Path, nodes: str | bytes = NODES, edges: str = EDGES, **options: Any) -> Graph:
    (folder / "edges.csv").write_text(edges)
    (folder / "nodes.csv").write_bytes(nodes.encode() if isinstance(nodes, str) else nodes)
    return read_edge_list(folder / "edges.csv", node_data=folder / "nodes.csv", **options)


def test_nodes_have_the_order_of_their_table_and_those_without_edges_are_kept(
    tmp_path: Path,
) -> None:
    reports: list[ReadReport] = []
    graph = read(tmp_path, on_report=reports.append)
    names = present(graph.node_names)
    assert names.tolist() == ["dan", "eve", "ann", "bob", "cid"]
    pairs = zip(names[graph.senders].tolist(), names[graph.receivers].tolist(), strict=True)
    assert [",".join(pair) for pair in pairs] == EDGES.splitlines()[1:]
    assert present(graph.labels).tolist() == [1, -1, 0, 1, 0]
    assert present(graph.train_mask).tolist() == [False, False, True, False, True]
    assert present(graph.val_mask).tolist() == [False, False, False, True, False]
    assert present(graph.test_mask).tolist() == [True, False, False, False, False]
    table = pd.read_csv(tmp_path / "nodes.csv").set_index("id")
    features = table[["age", "city", "vip"]]
    other = from_pandas(
        pd.read_csv(tmp_path / "edges.csv"),
        nodes=features,
        node_names=table.index,
        categories="one-hot",
    )
    assert np.array_equal(graph.nodes, other.nodes)
    assert np.array_equal(graph.senders, other.senders)
    (report,) = reports
    cities = ("city=Bern", "city=Oslo", "city=Rome")
    assert report.node_columns == ("age", *cities, "vip=false", "vip=true")
    assert report.classes == ("x", "y")
    assert "features 'age', 'city=Bern'," in str(report) and "classes 'x', 'y'" in str(report)


@pytest.mark.parametrize("counts", ["", "9 2\n"])
def test_ids_that_are_numbers_are_looked_up_too(tmp_path: Path, counts: str) -> None:
    nodes = "node_id;class;x\n70;2;0.5\n30;;1\n9000000000;0;2\n10;1;3\n"
    edges = f"{counts}30 70\n9000000000 30\n"
    graph = read(tmp_path, nodes, edges, counts=bool(counts))
    assert present(graph.node_names).tolist() == [70, 30, 9_000_000_000, 10]
    assert (graph.senders.tolist(), graph.receivers.tolist()) == ([1, 2], [0, 1])
    assert present(graph.labels).tolist() == [2, -1, 0, 1]
    assert graph.nodes[:, 0].tolist() == [0.5, 1, 2, 3]


PLAIN = "id,x,kind,label\nNA,1,u,yes\nb,-2.5,,yes\nc,,v,no\n"


@pytest.mark.parametrize(
    "written",
    [
        PLAIN.replace(",", ", "),
        PLAIN.replace(",", "\t ").replace("\n", " \r\n"),
        "\ufeff\n" + PLAIN.replace("\n", "\n\n") + " \n,,,\n",
        PLAIN.replace(",1,", ",+1,").replace("-", "\u2212"),
        PLAIN.replace("c,,", "c,null,").replace("b,-2.5,", "b,-2.5,N/A"),
        PLAIN.replace("c,,", "c,<NA>,").replace("b,-2.5,", "b, -2.5 ,None"),
        "".join(f'"{line}"\n'.replace(",", '","') for line in PLAIN.splitlines()),
        PLAIN.encode("utf-16"),
    ],
)
def test_blanks_and_the_signs_of_nothing_are_no_values(tmp_path: Path, written: str) -> None:
    reports: list[ReadReport] = []
    options = {"missing": "mean", "on_report": reports.append}
    graph = read(tmp_path, written, "source,target\nNA,b\nb,c\n", **options)
    assert present(graph.node_names).tolist() == ["NA", "b", "c"]
    assert graph.nodes.tolist() == [[1, 1, 0, 0], [-2.5, 0, 0, 1], [-0.75, 0, 1, 0]]
    assert present(graph.labels).tolist() == [1, 1, 0]
    assert reports[0].node_columns == ("x", "kind=u", "kind=v", "kind=missing")
    assert reports[0].classes == ("no", "yes")


@pytest.mark.parametrize("ids", ["007 +8 9.0", "7 8 18446744073709551615", "007 8 x"])
def test_ids_are_read_as_those_of_edges(tmp_path: Path, ids: str) -> None:
    names = ids.split()
    edges = "source,target\n" + "".join(f"{name},{names[0]}\n" for name in names)
    graph = read(tmp_path, "\n".join(["id", *names]), edges)
    assert (graph.senders.tolist(), graph.receivers.tolist()) == ([0, 1, 2], [0, 0, 0])
    alone = read_edge_list(tmp_path / "edges.csv", relabel=True)
    assert present(graph.node_names).tolist() == present(alone.node_names).tolist()


def test_parquet_and_texts_that_look_like_numbers(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n2,1\n")
    table = {"id": ["2", "1", "x"], "label": [1.0, float("nan"), 0.0], "f": [1, None, 3]}
    pl.DataFrame(table).write_parquet(tmp_path / "nodes.parquet")
    graph = read_edge_list(
        tmp_path / "edges.csv", node_data=tmp_path / "nodes.parquet", missing="mean"
    )
    assert (graph.senders.tolist(), graph.receivers.tolist()) == ([1, 0], [0, 1])
    assert present(graph.labels).tolist() == [1, -1, 0]
    assert graph.nodes[:, 0].tolist() == [1, 2, 3]
    only_ids = read(tmp_path, "id\nann\nbob\ncid\ndan\n")
    assert only_ids.nodes is None and only_ids.labels is None and only_ids.num_nodes == 4


MANY = "id,name\n" + "".join(f"{i},n{i}\n" for i in range(1001))


@pytest.mark.parametrize(
    ("nodes", "options", "fault"),
    [
        (NODES + "ann,3,Bern,false,x,train\n", {}, "nodes.csv: line 7: the id 'ann' is in several"),
        (
            NODES.replace("dan", "tom"),
            {},
            "edges.csv: 1 ids of the edges are not in .*'dan'",
        ),
        (NODES, {"label_column": "group"}, "nodes.csv: label_column: got 'group'; expected one"),
        (
            NODES.replace("age", "y"),
            {},
            "columns 'y' and 'label' may all hold labels; pass lab",
        ),
        (MANY, {}, "nodes.csv: column 'name' has 1,001 categories"),
        (NODES.replace("id,", "who,"), {}, "the columns are 'who', 'age'.*expected one named 'id'"),
        (NODES.replace("dan", ""), {}, "nodes.csv: line 2: has an empty id"),
        (
            NODES.replace("2.5", ""),
            {},
            "column 'age' lacks 1 of 5 .* in line 3; .*--option missing=m",
        ),
        (NODES.replace(",test", ",held"), {}, "line 2: column 'split' holds 'held'; expected tra"),
        (NODES, {"missing": "x"}, "missing: got 'x'; expected one of"),
        (NODES, {"num_nodes": 5}, "num_nodes, relabel: for ids that are rows"),
        (NODES, {"relabel": False}, "num_nodes, relabel: for ids that are rows"),
        ("id,x\n", {}, "nodes.csv: holds no row"),
        (" \n,\n", {}, "nodes.csv: holds no row"),
        ("id,x\n1,2,3\n", {}, "nodes.csv: line 2: has 3 cells, and the header 2; expected a cell"),
        ('id,x\n"a\nb",1\n\nc\n', {}, "nodes.csv: line 5: has 1 cells, and the header 2"),
        ('id,x\na,"c\n', {}, "nodes.csv: its lines are no columns; expected quotation marks"),
        (NODES.replace(",x,train", ",x"), {}, "nodes.csv: line 4: has 5 cells, and the header 6"),
        (NODES.replace("vip", "label"), {}, "nodes.csv: 2 columns are named 'label'; expected dif"),
        (NODES.replace("vip", " age"), {}, "nodes.csv: 2 columns are named 'age'; expected diff"),
        (
            NODES.replace(",y,", ",0.5,").replace(",x,", ",1,"),
            {},
            "line 2: .*'label' holds 0.5; ex",
        ),
        ("id,label\nann,inf\nbob,1.0\ncid,\ndan,\n", {}, "nodes.csv: line 2: .*'label' holds inf"),
        (NODES.replace(",x,train", ",,train"), {}, "nodes.csv: train_mask: 2 of its nodes have no"),
        (NODES.replace("4.5", "inf"), {}, "nodes.csv: nodes: 1 of 30 values are NaN or infinite"),
        (NODES.replace("4.5", "1e99"), {}, "nodes.csv: nodes: 1 of 30 values are NaN or infinite"),
        ("id,x\nann,\nbob,null\n", {"missing": "mean"}, "column 'x' has no value, and no mean"),
        (NODES.replace("dan", "dän").encode("latin1"), {}, "not UTF-8; save it as UTF-8"),
        ("id\n0.5\n18446744073709551615\n", {}, "ids of the edges are not in .*nodes.csv"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    tmp_path: Path, nodes: str | bytes, options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        read(tmp_path, nodes, **options)


def test_a_table_that_is_not_there_or_not_for_this_file_is_refused(tmp_path: Path) -> None:
    read(tmp_path)
    edges = tmp_path / "edges.csv"
    with pytest.raises(ValueError, match=r"node_data: .* is no file.*partition --process-memory"):
        read_edge_list(edges, node_data=tmp_path)
    frame: Any = pd.read_csv(tmp_path / "nodes.csv")
    with pytest.raises(ValueError, match=r"node_data: got a DataFrame; expected .*from_pandas\("):
        read_edge_list(edges, node_data=frame)
    with pytest.raises(ValueError, match="label_column, missing: for node_data"):
        read_edge_list(edges, missing="mean")
    (tmp_path / "a.graph").write_text("2 1\n2\n1\n")
    with pytest.raises(ValueError, match="node_data: a file in METIS has rows and no ids"):
        read_edge_list(tmp_path / "a.graph", node_data=tmp_path / "nodes.csv")
