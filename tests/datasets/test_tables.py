"""Parquet files and DataFrames: columns by name, ids of any kind."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from jaxgraph.datasets import (
    AmbiguousFileError,
    BrokenFileError,
    edge_files,
    from_pandas,
    read_edge_list,
)
from jaxgraph.graph import Graph
from tests.datasets.structure import present


def read(folder: Path, table: dict[str, Any], **options: Any) -> Graph:
    pl.DataFrame(table).write_parquet(folder / "a.parquet")
    return read_edge_list(folder / "a.parquet", **options)


def pairs_of(graph: Graph) -> list[tuple[int, int]]:
    return list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))


def test_columns_of_parquet_are_found_by_name(tmp_path: Path) -> None:
    columns = {"n": [1, 2], "weight": [0.5, 2], "dst": [1, 2], "src": [0, 1]}
    graph = read(tmp_path, columns)
    assert (pairs_of(graph), present(graph.edge_weight).tolist()) == ([(0, 1), (1, 2)], [0.5, 2])
    other = read(tmp_path, columns, columns=("dst", "n"), weights=False)
    assert (pairs_of(other), other.edge_weight) == ([(1, 1), (2, 2)], None)
    named = read(tmp_path, {"source": ["ann", "bob"], "target": ["bob", "cid"]})
    assert (pairs_of(named), present(named.node_names).tolist()) == (
        [(0, 1), (1, 2)],
        ["ann", "bob", "cid"],
    )


def test_parquet_that_is_damaged_or_leaves_things_open_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AmbiguousFileError, match=r"a\.parquet: the largest id is 9000000"):
        read(tmp_path, {"src": [9_000_000], "dst": [1]})
    with pytest.raises(BrokenFileError, match=r"a\.parquet: row 1: has an empty id"):
        read(tmp_path, {"src": [0, None], "dst": [1, 2]})
    with pytest.raises(BrokenFileError, match=r"a\.parquet: .*'x' is no number in column 'weight'"):
        read(tmp_path, {"src": [0], "dst": [1], "weight": ["x"]})
    with pytest.raises(BrokenFileError, match=r"row 1: nothing is in column 'weight'.*weights=F"):
        read(tmp_path, {"src": [0, 1], "dst": [1, 2], "weight": [0.5, None]})
    with pytest.raises(ValueError, match=r"separator: got ',', and a file in Parquet"):
        read(tmp_path, {"src": [0], "dst": [1]}, separator=",")
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(content[:-20])
    with pytest.raises(BrokenFileError, match=r"a\.parquet: cannot be read as Parquet"):
        read_edge_list(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["src", "dst", "weight"])
def test_a_list_in_each_row_is_no_value(tmp_path: Path, name: str) -> None:
    lists = {"src": [0, 1], "dst": [1, 2], "weight": [0.5, 2.0]}
    lists[name] = [[value] for value in lists[name]]
    message = rf"column '{name}' holds .*; expected one value.*frame\.explode\('{name}'\)"
    with pytest.raises(BrokenFileError, match=rf"a\.parquet: .*{message}"):
        read(tmp_path, lists)
    frame = pd.DataFrame(lists)
    with pytest.raises(BrokenFileError, match=message):
        from_pandas(frame)
    graph = from_pandas(frame.explode(name))
    assert (pairs_of(graph), present(graph.edge_weight).tolist()) == ([(0, 1), (1, 2)], [0.5, 2])
    assert graph.node_names is None


def test_equal_values_that_pack_well_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_files, "_BYTES_ALWAYS_ALLOWED", 1 << 20)
    rows = np.zeros(1 << 20, np.int64)
    pl.DataFrame({"src": rows, "dst": rows}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(BrokenFileError, match=r"declares 1,048,576 rows in"):
        read_edge_list(tmp_path / "a.parquet")


def test_a_frame_is_read_by_its_columns_and_not_by_its_index() -> None:
    frame = pd.DataFrame({"Target": [1, 2], "Weight": [3, 4.5], "Source": [0, 1]}, index=[7, 9])
    graph = from_pandas(frame, labels=[0, 1, 0])
    assert (pairs_of(graph), present(graph.edge_weight).tolist()) == ([(0, 1), (1, 2)], [3, 4.5])
    assert graph.num_classes == 2
    with pytest.raises(AmbiguousFileError, match="does not tell where senders and receivers are"):
        from_pandas(frame.rename(columns={"Target": "when"}))


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        ([0.0, 1.0, 2.0], None),
        (pd.array([0, 1, 2], "Int64"), None),
        (pd.Categorical(["x", "y", "z"]), ["x", "y", "z"]),
        (["x", "y", "z"], ["x", "y", "z"]),
    ],
)
def test_ids_of_a_frame_may_have_any_type(ids: Any, names: list[str] | None) -> None:
    graph = from_pandas(pd.DataFrame({"src": ids, "dst": ids}))
    assert pairs_of(graph) == [(0, 0), (1, 1), (2, 2)]
    assert (None if graph.node_names is None else graph.node_names.tolist()) == names
    for missing in (np.nan, pd.NA, None):
        with pytest.raises(BrokenFileError, match="row 0: has an empty id"):
            from_pandas(pd.DataFrame({"src": [missing, 1], "dst": [1, 2]}))
    sparse = from_pandas(pd.DataFrame({"src": [10**12], "dst": [5]}), relabel=True)
    assert present(sparse.node_names).tolist() == [5, 10**12]


ROADS = pd.DataFrame({"source": ["d", "c", "b"], "target": ["c", "b", "a"], "length": [3.0, 2, 1]})
TOWNS = pd.DataFrame({"id": ["a", "b", "c", "d"], "size": [0.0, 1, 2, 3]}).set_index("id")


def test_rows_of_nodes_follow_their_index() -> None:
    graph = from_pandas(
        ROADS, nodes=TOWNS, labels=TOWNS["size"].astype(int), edges=ROADS[["length"]]
    )
    names = present(graph.node_names)
    assert names.tolist() == ["d", "c", "b", "a"]
    assert graph.nodes[:, 0].tolist() == present(graph.labels).tolist() == [3, 2, 1, 0]
    assert present(graph.edges)[:, 0].tolist() == [3, 2, 1]
    numbered = from_pandas(
        pd.DataFrame({"source": [2, 1], "target": [1, 0]}),
        node_data={"size": pd.Series([12, 10, 11], index=[2, 0, 1])},
    )
    assert numbered.node_data["size"].tolist() == [10, 11, 12]


def test_ids_are_looked_up_in_the_names_of_all_nodes() -> None:
    names = ["a", "b", "c", "d", "e"]
    nodes = pd.concat([TOWNS, pd.DataFrame({"size": [4.0]}, index=["e"])])
    graph = from_pandas(ROADS, node_names=names, nodes=nodes)
    assert pairs_of(graph) == [(3, 2), (2, 1), (1, 0)]
    assert graph.nodes[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert present(graph.node_names).tolist() == names
    numbers = pd.DataFrame({"source": [30, 10], "target": [20, 30]})
    assert pairs_of(from_pandas(numbers, node_names=[10, 20, 30, 40])) == [(2, 1), (0, 2)]
    with pytest.raises(ValueError, match=r"1 ids of the edges are not in node_names, .* 'd'"):
        from_pandas(ROADS, node_names=names[:3])


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"nodes": TOWNS[1:]}, "1 of 4 nodes have no row in it, the first is 'a'"),
        ({"nodes": pd.concat([TOWNS, TOWNS[:1]])}, "its index has 'a' twice"),
        ({"labels": pd.Series(range(5), list("abcde"))}, r"in no edge, such as 'e'.*labels\.index"),
        ({"nodes": pd.DataFrame({"f": range(6)}, [*"abcd", 7, "q"])}, "2 ids .* in no edge, .* 7"),
        ({"nodes": np.zeros((5, 1))}, "has 5 rows, and 4 ids occur"),
        ({"num_nodes": 5}, "num_nodes is 5, and 4 ids occur"),
        ({"node_data": {"f": TOWNS["size"][1:]}}, "1 of 4 nodes have no row"),
    ],
)
def test_rows_without_a_node_and_nodes_without_a_row(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        from_pandas(ROADS, **fields)


def test_a_graph_takes_no_rows_of_nodes_in_an_order_of_their_own() -> None:
    graph = from_pandas(ROADS)
    for make in (
        lambda: graph.replace(nodes=TOWNS),
        lambda: graph.with_nodes(size=TOWNS["size"]),
        lambda: Graph.from_edges([0], [1], labels=pd.Series([0, 1], index=[1, 0])),
    ):
        with pytest.raises(ValueError, match=r"with an index.*loc\[graph\.node_names\]"):
            make()
    ordered = graph.with_nodes(size=TOWNS["size"].loc[graph.node_names].to_numpy())
    assert ordered.node_data["size"].tolist() == [3, 2, 1, 0]


EDGES_BY_NAME = pd.DataFrame({"source": ["c", "a", "b"], "target": ["a", "b", "c"]})
"""In order of the edges, the ids are c, a, b."""


@pytest.mark.parametrize("values", [np.array([0, 1, 2]), [0, 1, 2], pd.Series([0, 1, 2])])
def test_rows_without_ids_are_not_in_the_order_of_edges(values: Any) -> None:
    with pytest.raises(ValueError, match="has no ids"):
        from_pandas(EDGES_BY_NAME, labels=values)
    for right in (
        from_pandas(EDGES_BY_NAME, labels=pd.Series(np.asarray(values), index=list("abc"))),
        from_pandas(EDGES_BY_NAME, labels=np.asarray(values), node_names=list("abc")),
    ):
        assert right.labels is not None and right.node_names is not None
        assert dict(zip(right.node_names.tolist(), right.labels.tolist(), strict=True)) == {
            "a": 0,
            "b": 1,
            "c": 2,
        }


def test_categories_are_codes_or_columns_in_sorted_order() -> None:
    table = pd.DataFrame(
        {
            "size": [1.0, np.nan, 3.0],
            "kind": ["y", "x", "y"],
            "old": [True, False, True],
            "rank": pd.Categorical(["low", "high", None], ["low", "mid", "high"]),
            "count": pd.array([1, None, 5], "Int64"),
        },
        list("abc"),
    )
    graph = from_pandas(EDGES_BY_NAME, nodes=table, categories="codes", missing="mean")
    by_name = pd.DataFrame(graph.nodes, present(graph.node_names)).loc[list("abc")]
    assert by_name.to_numpy().T.tolist() == [
        [1, 2, 3],
        [1, 0, 1],
        [1, 0, 1],
        [0, 2, 3],
        [1, 3, 5],
    ]
    graph = from_pandas(EDGES_BY_NAME, nodes=table, categories="one-hot", missing="zero")
    dummies = pd.get_dummies(table.drop(columns=["size", "count"]), columns=["kind", "old", "rank"])
    dummies["rank_missing"] = table["rank"].isna()
    dummies.insert(0, "size", table["size"].fillna(0))
    dummies["count"] = table["count"].fillna(0)
    expected = dummies.astype(float)
    assert graph.nodes.tolist() == expected.loc[present(graph.node_names)].to_numpy().tolist()
    sizes = from_pandas(EDGES_BY_NAME, nodes=table["size"], missing="zero")
    assert sizes.nodes[:, 0].tolist() == [3, 1, 0]


def test_bools_are_numbers_and_so_are_objects_that_hold_numbers() -> None:
    bools = pd.DataFrame({"old": [True, False, True], "size": [0.5, 2, 1]}, list("abc"))
    ways: list[dict[str, Any]] = [{}, {"missing": "mean"}, {"categories": "codes"}]
    for given in ways:
        graph = from_pandas(EDGES_BY_NAME, nodes=bools, **given)
        assert graph.nodes.tolist() == [[1, 1], [1, 0.5], [0, 2]]
    some = pd.Series([True, None, False], list("abc"), dtype=object)
    found = from_pandas(EDGES_BY_NAME, nodes=some, missing="mean").nodes
    assert found[:, 0].tolist() == [0, 1, 0.5]
    objects = pd.Series([40, None, 3, 1], list("abcd"), dtype=object)
    graph = from_pandas(
        ROADS, nodes=objects, categories="codes", missing="mean", node_names=list("abcd")
    )
    np.testing.assert_allclose(graph.nodes[:, 0], [40, 44 / 3, 3, 1])


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"categories": "hot"}, "categories: got 'hot'; expected one of 'codes', 'one-hot', or"),
        ({"missing": "mode"}, "missing: got 'mode'; expected one of 'mean', 'zero', or None"),
        ({"missing": "zero"}, "column 'kind' holds values that are no numbers; pass categories="),
        ({"categories": "codes"}, "column 'size' lacks 1 of 3 values, the first in row 1; pass mi"),
        ({"categories": "codes", "missing": "mean"}, "column 'none' has no value, and no mean"),
        ({"categories": "codes", "nodes": None}, "expected a frame or a series of pandas"),
        ({"nodes": pd.Series([[1], [2], [3]]), "categories": "codes"}, "holds .*explode"),
        ({"nodes": pd.Series([1j, 2, 3]), "categories": "codes"}, "'0' holds complex numbers"),
        ({"nodes": pd.Series([1j, None], dtype=object)}, "'0' holds complex numbers; expected"),
        ({}, "pass categories='one-hot' or categories='codes'"),
    ],
)
def test_an_encoding_that_does_not_fit_is_refused(given: dict[str, Any], fault: str) -> None:
    columns = {"size": [1.0, np.nan, 3.0], "kind": ["x", "y", "x"], "none": [np.nan] * 3}
    given = {"nodes": pd.DataFrame(columns, list("abc"))} | given
    with pytest.raises(ValueError, match=fault):
        from_pandas(EDGES_BY_NAME, **given)
    with pytest.raises(ValueError, match="pass missing='mean' or missing='zero'"):
        from_pandas(EDGES_BY_NAME, nodes=pd.DataFrame(columns, list("abc"))[["size"]])


def test_a_column_of_names_is_no_column_of_categories() -> None:
    count = 1001
    edges = pd.DataFrame({"source": range(count), "target": range(count)})
    names = pd.DataFrame({"name": [f"n{i}" for i in range(count)]})
    with pytest.raises(ValueError, match="column 'name' has 1,001 categories, and each would be"):
        from_pandas(edges, nodes=names, categories="one-hot")
    assert from_pandas(edges, nodes=names, categories="codes").nodes.max() == count - 1


def test_texts_and_missing_values_are_refused() -> None:
    table = pd.DataFrame({"kind": ["x", "y", "x"], "size": [1.0, np.nan, 3.0]}, list("abc"))
    with pytest.raises(ValueError, match="no numbers"):
        from_pandas(EDGES_BY_NAME, labels=table["kind"])
    with pytest.raises(ValueError, match=r"no numbers. series.astype\('category'\)"):
        from_pandas(EDGES_BY_NAME, node_data={"kind": table["kind"]})
    with pytest.raises(ValueError, match=r"train_mask: .* \(series == 'train'\) makes bools"):
        from_pandas(EDGES_BY_NAME, train_mask=table["kind"])
    with pytest.raises(ValueError, match="values are missing"):
        from_pandas(EDGES_BY_NAME, labels=table["size"])
