"""The graph type: its fields, and its errors."""

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxgraph import transforms
from jaxgraph.graph import Graph
from jaxgraph.graph_arrays import _FINITE_CHUNK_ELEMENTS
from jaxgraph.partition import partition
from tests.strategies import SMALL_GRAPHS

NUM_NODES = 4
SENDERS = np.array([0, 1, 2, 3, 0])
RECEIVERS = np.array([1, 2, 3, 0, 0])


def build(**changes: Any) -> Graph:
    arguments: dict[str, Any] = {
        "senders": SENDERS,
        "receivers": RECEIVERS,
        "num_nodes": NUM_NODES,
    }
    return Graph.from_edges(**(arguments | changes))


def mask_of(*ids: int) -> np.ndarray:
    mask = np.zeros(NUM_NODES, bool)
    mask[list(ids)] = True
    return mask


FULL: dict[str, Any] = {
    "nodes": np.arange(12.0).reshape(4, 3),
    "labels": np.array([0, 2, 1, -1]),
    "train_mask": mask_of(0),
    "val_mask": mask_of(1),
    "test_mask": mask_of(2),
    "edges": np.ones((5, 2)),
    "edge_weight": np.arange(5),
    "edge_type": np.array([0, 1, 0, 1, 2]),
    "name": "small",
}


def test_a_full_graph_keeps_every_value_in_the_documented_dtype() -> None:
    graph = build(**FULL)
    dtypes = {
        "senders": np.int32,
        "receivers": np.int32,
        "nodes": np.float32,
        "labels": np.int32,
        "train_mask": np.bool_,
        "val_mask": np.bool_,
        "test_mask": np.bool_,
        "edges": np.float32,
        "edge_weight": np.float32,
        "edge_type": np.int32,
    }
    given_values = FULL | {"senders": SENDERS, "receivers": RECEIVERS}
    for name, dtype in dtypes.items():
        stored = getattr(graph, name)
        assert stored.dtype == dtype, name
        np.testing.assert_array_equal(stored, given_values[name])
    assert (graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes) == (4, 5, 3, 3)
    assert not graph.is_multilabel


def test_counts_without_features_or_labels_are_zero() -> None:
    graph = build()
    assert (graph.num_features, graph.num_classes, graph.is_multilabel) == (0, 0, False)


def test_degrees_count_each_direction_and_self_loops() -> None:
    graph = build()
    np.testing.assert_array_equal(graph.in_degrees(), [2, 1, 1, 1])
    np.testing.assert_array_equal(graph.out_degrees(), [2, 1, 1, 1])
    one_way = Graph.from_edges([1, 0], [1, 1], num_nodes=3)
    np.testing.assert_array_equal(one_way.in_degrees(), [0, 2, 0])
    np.testing.assert_array_equal(one_way.out_degrees(), [1, 1, 0])


def test_every_stored_array_is_read_only_and_the_original_stays_writable() -> None:
    features = np.ones((4, 2), np.float32)
    graph = build(nodes=features)
    for array in (graph.senders, graph.receivers, graph.nodes):
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    features[0] = 2.0


def test_arrays_of_the_right_dtype_are_not_copied() -> None:
    features = np.ones((4, 2), np.float32)
    senders = SENDERS.astype(np.int32)
    graph = build(nodes=features, senders=senders)
    assert graph.nodes is not None
    assert np.shares_memory(graph.nodes, features)
    assert np.shares_memory(graph.senders, senders)
    assert np.shares_memory(np.asarray(graph.replace(name="other").nodes), features)


@pytest.mark.parametrize("form", [sp.csr_matrix, sp.csc_array, sp.coo_array, sp.lil_array])
def test_sparse_features_are_stored_in_one_form_and_the_original_stays(form: Any) -> None:
    dense = np.array([[0, 2, 0], [0, 0, 0], [1, 0, 4], [0, 5, 0]])
    given = form(dense)
    graph = Graph.from_edges([0, 1], [1, 2], nodes=given)
    nodes = graph.nodes
    assert isinstance(nodes, sp.csr_array) and nodes.dtype == np.float32
    assert (graph.num_nodes, graph.num_features) == (4, 3)
    assert "num_features=3 (33.33% non-zero)" in repr(graph)
    assert (nodes.indptr.tolist(), nodes.indices.tolist()) == ([0, 1, 1, 3, 4], [1, 0, 2, 1])
    for array in (nodes.data, nodes.indices, nodes.indptr):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    assert np.shares_memory(present_sparse(graph.replace(name="other")).data, nodes.data)
    for copied in COPIES.values():
        again = present_sparse(copied(graph))
        np.testing.assert_array_equal(again.toarray(), dense)
        assert not again.data.flags.writeable
    np.testing.assert_array_equal(given.toarray(), dense)


def test_repeated_entries_add_up_and_zeros_are_dropped() -> None:
    entries = ([1.0, 2, 0, 3, -3], ([0, 0, 1, 3, 3], [1, 1, 0, 2, 2]))
    nodes = present_sparse(Graph.from_edges([0], [1], nodes=sp.coo_array(entries, (4, 3))))
    assert (nodes.nnz, nodes[0, 1]) == (1, 3)
    # Columns of a row in any order, in the user's own arrays, which stay as they are.
    columns = np.array([2, 0], np.int32)
    rows = sp.csr_array((np.array([5.0, 6.0], np.float32), columns, [0, 2, 2]), (2, 3))
    nodes = present_sparse(Graph.from_edges([0], [1], nodes=rows))
    assert (nodes.indices.tolist(), nodes.data.tolist()) == ([0, 2], [6, 5])
    assert columns.tolist() == [2, 0]


def present_sparse(graph: Graph) -> sp.csr_array:
    assert isinstance(graph.nodes, sp.csr_array)
    return graph.nodes


def broken_matrix() -> sp.csr_array:
    """A matrix whose column indices were changed after it was made."""
    matrix = sp.csr_array(np.eye(4, 2))
    matrix.indices[0] = 7
    return matrix


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES.keys())
def test_copies_are_equal_validated_and_read_only(copied: Callable[[Any], Any]) -> None:
    graph = SMALL_GRAPHS[-1].replace(labels=np.arange(SMALL_GRAPHS[-1].num_nodes) % 3)
    parts = partition(graph, 3, "random", order="degree")
    for original in (graph, parts):
        found = copied(original)
        assert type(found) is type(original) and repr(found) == repr(original)
        for name, value in vars(original).items():
            if not isinstance(value, np.ndarray):
                assert getattr(found, name) == value
                continue
            np.testing.assert_array_equal(getattr(found, name), value, strict=True)
            with pytest.raises(ValueError, match="read-only"):
                getattr(found, name)[...] = 0
    broken = copied(graph)
    object.__setattr__(broken, "senders", np.full(graph.num_edges, graph.num_nodes))
    with pytest.raises(ValueError, match=r"senders: .* not below num_nodes"):
        copied(broken)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 2)])
def test_targets_of_a_regression_are_refused_with_what_to_do(shape: tuple[int, ...]) -> None:
    targets = np.random.default_rng(0).standard_normal(shape)
    with pytest.raises(ValueError, match=r"labels: .*with_nodes\(target=.*NodeRegression") as e:
        build(labels=targets)
    assert "astype" not in str(e.value)


def test_a_masked_array_without_masked_entries_is_an_array() -> None:
    graph = build(labels=np.ma.array([0, 1, 1, 0]))
    np.testing.assert_array_equal(graph.labels, [0, 1, 1, 0])


def test_number_of_nodes_is_inferred_from_node_arrays_then_from_ids() -> None:
    assert Graph.from_edges([0, 1], [1, 0], nodes=np.zeros((5, 1))).num_nodes == 5
    assert Graph.from_edges([0, 1], [1, 0], labels=np.zeros(6, int)).num_nodes == 6
    assert Graph.from_edges([0, 7], [1, 0]).num_nodes == 8
    with pytest.raises(ValueError, match="pass num_nodes"):
        Graph.from_edges([], [])


def test_ids_are_int64_only_when_they_must_be() -> None:
    assert Graph.from_edges([0], [0], num_nodes=2**31 - 1).senders.dtype == np.int32
    large = Graph.from_edges([2**31], [0], num_nodes=2**31 + 1)
    assert large.senders.dtype == np.int64
    assert large.senders[0] == 2**31


def test_nodes_of_several_labels_have_masks_whatever_their_labels() -> None:
    graph = build(labels=np.zeros((4, 3)), train_mask=mask_of(0, 2))
    assert graph.train_mask is not None and graph.train_mask.sum() == 2


def test_a_nan_is_found_at_the_end_of_a_large_array() -> None:
    nodes = np.zeros((_FINITE_CHUNK_ELEMENTS + 1, 1), np.float32)
    nodes[-1] = np.nan
    with pytest.raises(ValueError, match=r"nodes: 1 of \d+ values are NaN or infinite"):
        Graph.from_edges([0], [0], nodes=nodes)


@pytest.mark.parametrize("dtype", [np.bool_, np.float32, np.int64])
def test_multilabels_are_zero_one_matrices(dtype: Any) -> None:
    graph = build(labels=np.eye(4, 3).astype(dtype))
    assert graph.is_multilabel
    assert graph.num_classes == 3
    assert graph.labels is not None
    assert graph.labels.dtype == (np.bool_ if dtype == np.bool_ else np.float32)


@pytest.mark.parametrize(
    "given_names",
    [
        ["a", "b", "c", "dd"],
        np.array(["a", "b", "c", "dd"], object),
        np.array(["a", "b", "c", "dd"], np.dtypes.StringDType()),
        np.array([7, 3, -1, 10**15]),
    ],
    ids=["list", "objects", "strings", "integers"],
)
def test_names_of_nodes_are_kept_and_follow_their_nodes(given_names: Any) -> None:
    names = list(np.asarray(given_names).tolist())
    graph = build(node_names=given_names)
    stored = graph.node_names
    assert stored is not None and stored.tolist() == names
    with pytest.raises(ValueError, match="read-only"):
        stored[0] = stored[1]
    for kept in (
        pickle.loads(pickle.dumps(graph)),
        transforms.to_undirected(graph),
        transforms.remove_self_loops(graph),
        graph.replace(name="other"),
    ):
        assert kept.node_names is not None and kept.node_names.tolist() == names
    some = transforms.subgraph(graph, np.array([3, 1])).node_names
    assert some is not None and some.tolist() == [names[3], names[1]]
    assert Graph.from_edges([0], [1], node_names=names).num_nodes == 4


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b", "a", "c"], "node_names: 'a' is the name of several nodes"),
        (["a", "b"], r"node_names: got shape \[2\]; expected \[4\]"),
        ([0.5, 1, 2, 3], "node_names: got float64"),
        ([["a"], ["b"], ["c"], ["d"]], r"node_names: got .*\[4, 1\]; expected texts or integers"),
        ([None, "b", "c", "d"], "node_names: got object"),
    ],
)
def test_names_that_do_not_name_each_node_are_refused(names: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(node_names=names)


def test_replace_changes_one_field_and_validates() -> None:
    graph = build(**FULL)
    assert graph.replace(name="other").name == "other"
    assert graph.replace(nodes=None).num_features == 0
    with pytest.raises(ValueError, match=r"nodes: got shape \[3, 1\]; expected \[4, any\]"):
        graph.replace(nodes=np.zeros((3, 1)))
    with pytest.raises(ValueError, match="Graph has no field 'feature'; its fields are senders"):
        graph.replace(feature=1)


def test_repr_gives_sizes_and_no_arrays() -> None:
    assert repr(build(**FULL)) == (
        "Graph(name='small', num_nodes=4, num_edges=5, num_features=3, num_classes=3, "
        "train_mask=1, val_mask=1, test_mask=1, edges, edge_weight, edge_type)"
    )
    assert "num_labels=3" in repr(build(labels=np.eye(4, 3)))


def masks(**ids: list[int]) -> dict[str, Any]:
    return {f"{split}_mask": mask_of(*nodes) for split, nodes in ids.items()}


UNLABELLED = {"labels": [0, -1, 1, -1]}
# Faulty inputs, and the start of their messages.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"senders": [0, 9, 4, 1, 2]}, "senders: 2 of 5 ids are not below num_nodes = 4"),
    ({"receivers": [0, -3, 1, 1, 2]}, "receivers: 1 of 5 ids are negative, the smallest -3"),
    ({"senders": SENDERS.astype(float)}, "senders: got dtype float64; expected integers"),
    ({"senders": SENDERS.astype(bool)}, "senders: got dtype bool; expected integers"),
    ({"senders": ["a"] * 5}, "senders: got dtype <U1; expected integers from 0"),
    ({"senders": [SENDERS, RECEIVERS]}, "senders: got shape [2, 5]; expected [num_edges]"),
    ({"senders": [0, 1]}, "senders has 2 entries and receivers 5"),
    ({"num_nodes": 4.0}, "num_nodes: got 4.0 of type float"),
    ({"num_nodes": True}, "num_nodes: got True of type bool"),
    ({"senders": [], "receivers": [], "num_nodes": 0}, "num_nodes: got 0; expected at least 1"),
    ({"nodes": np.zeros((3, 2))}, "nodes: got shape [3, 2]; expected [4, any]"),
    ({"nodes": np.zeros(4)}, "nodes: got shape [4]; expected [4, any]. Pass nodes[:, None]"),
    ({"nodes": [[0, 0], [0, np.nan], [np.inf, 0], [0, 0]]}, "nodes: 2 of 8 values are NaN or"),
    ({"nodes": np.full((4, 1), 1e300)}, "nodes: 4 of 4 values are NaN or infinite in float32"),
    ({"nodes": np.zeros((4, 1), complex)}, "nodes: got dtype complex128; expected numbers"),
    ({"nodes": [[1], [1, 2], [1], [1]]}, "nodes: cannot be made an array"),
    ({"edges": sp.eye_array(5).tocsr()}, "edges: got a sparse matrix csr_array; expected a dense"),
    ({"nodes": sp.eye_array(3).tocsr()}, "nodes: got shape [3, 3]; expected [4, any]"),
    ({"nodes": 1j * sp.eye_array(4).tocsr()}, "nodes: got dtype complex128; expected numbers"),
    ({"nodes": sp.coo_array(([1e300], ([0], [1])), (4, 2))}, "nodes: 1 of 1 stored values"),
    ({"nodes": broken_matrix()}, "nodes: the sparse matrix is broken (indices must be < 2)"),
    ({"nodes": {"user": np.zeros((4, 1))}}, "nodes: got a mapping; expected one array"),
    ({"edges": np.zeros((4, 2))}, "edges: got shape [4, 2]; expected [5, any]"),
    ({"edge_weight": np.ones(4)}, "edge_weight: got shape [4]; expected [5]"),
    ({"edge_weight": np.ones((5, 1))}, "edge_weight: got shape [5, 1]; expected [5]. Pass edge_w"),
    ({"edge_weight": [1, 1, np.nan, 1, 1]}, "edge_weight: 1 of 5 values are NaN or infinite"),
    ({"edge_type": np.ones(5)}, "edge_type: got dtype float64; expected integers"),
    ({"edge_type": [0, -1, 0, 0, 0]}, "edge_type: values run from -1 to 0"),
    ({"edge_type": [0]}, "edge_type: got shape [1]; expected [5]"),
    ({"labels": [0, 1, 0]}, "labels: got shape [3]; expected [4]"),
    ({"labels": [0, 1, -2, 0]}, "labels: values run from -2 to 1; expected classes from 0"),
    ({"labels": [0, 1, 2**40, 0]}, f"labels: values run from 0 to {2**40}"),
    ({"labels": [0, 1, 2**24, 0]}, f"labels: values run from 0 to {2**24}; expected classes"),
    ({"num_nodes": 2**63}, "num_nodes: got 9223372036854775808; expected at least 1, and below"),
    ({"name": ["a"]}, "name: got a list; expected text"),
    ({"labels": [0.0, 1.0, 2.0, 0.0]}, "labels: got dtype float64; expected integers"),
    ({"labels": [0.0, 1.0, np.nan, 0.0]}, "labels: 1 of 4 are NaN; expected integers, -1 for no"),
    ({"labels": np.ma.masked_less([0, 1, -7, 0], 0)}, "labels: got a masked array with 1 masked"),
    ({"nodes": [np.ma.masked_invalid([np.nan])] * 4}, "nodes: got a masked array with 4 masked"),
    ({"labels": np.full((4, 2), 2)}, "labels: got shape [4, 2], so multi-label, with 8 values"),
    ({"labels": [[np.nan], [1], [0.5], [2]]}, "labels: got shape [4, 1], so multi-label, with 2"),
    ({"labels": np.zeros((4, 1, 1), int)}, "labels: got shape [4, 1, 1]; expected [4]"),
    ({"train_mask": [0, 1]}, "train_mask: got dtype int64; expected bool [num_nodes]. From ids:"),
    ({"val_mask": [True, False]}, "val_mask: got shape [2]; expected [4]"),
    ({"test_mask": np.zeros(4, bool)}, "test_mask: selects no node; pass None"),
    (
        masks(train=[0, 2], test=[2, 3]),
        "train_mask and test_mask overlap in 1 nodes, the first is 2",
    ),
    (masks(train=[0, 3], val=[1], test=[2, 3]), "train_mask and test_mask overlap in 1 nodes"),
    (masks(train=[0], val=[1, 2], test=[2, 3]), "val_mask and test_mask overlap in 1 nodes"),
    (UNLABELLED | masks(train=[0, 1, 3]), "train_mask: 2 of its nodes have no label (-1)"),
    (UNLABELLED | masks(test=[1]), "test_mask: 1 of its nodes have no label (-1)"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[text[:40] for _, text in REFUSED])
def test_refused_input_names_the_argument_and_the_way_out(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        build(**changes)


def test_an_id_out_of_range_is_reported_with_the_number_of_nodes_to_pass() -> None:
    with pytest.raises(ValueError, match=r"Pass num_nodes=10 or more.*relabels both ends"):
        build(senders=[0, 9, 4, 1, 2])


@pytest.mark.parametrize(
    "ids", [["b", "a"], np.array(["b", None], object)], ids=["texts", "object"]
)
def test_ids_that_are_names_are_refused_with_a_way_that_relabels_both_ends_alike(ids: Any) -> None:
    message = r"senders: got dtype .*from_pandas\(frame\).*np\.stack\(\[senders, receivers\]\)"
    with pytest.raises(ValueError, match=message):
        Graph.from_edges(ids, ids)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x", "has no attribute 'x': its name here is nodes"),
        ("edge_index", "senders and receivers"),
        ("to", "jaxgraph.parallel.shard"),
        ("rain", r"graph\.node_data\['rain'\]"),
        ("weather", "has no attribute 'weather'$"),
    ],
)
def test_a_name_that_is_not_there_leads_to_ours(name: str, message: str) -> None:
    graph = build().with_nodes(rain=np.ones(4))
    for each in (graph, copy.copy(graph), pickle.loads(pickle.dumps(graph))):
        with pytest.raises(AttributeError, match=message):
            getattr(each, name)
        assert not hasattr(each, name)


def test_arguments_and_items_of_other_libraries_lead_to_ours() -> None:
    with pytest.raises(TypeError, match=r"from_edges has no argument 'edge_attr'.* edges"):
        Graph.from_edges([0], [1], edge_attr=[[1.0]])  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match=r"^Graph has no argument 'edge_index'.* senders and rec"):
        Graph(edge_index=[[0], [1]], num_nodes=2)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match=r"^Graph has no argument 'x'; its name here is nodes"):
        Graph([0], [1], 2, x=[[1.0], [1.0]])  # pyright: ignore[reportCallIssue]
    with pytest.raises(ValueError, match="no field 'y'; its name here is labels"):
        build().replace(y=[0])
    graph: Any = build()
    with pytest.raises(TypeError, match=r"graph\.node_data\['rain'\]"):
        graph["rain"]
    with pytest.raises(TypeError, match="not iterable"):
        iter(graph)


@given(
    num_nodes=st.integers(1, 50),
    data=st.data(),
    dtype=st.sampled_from([np.int16, np.int32, np.int64, np.uint8, np.uint64]),
)
def test_any_ids_in_range_are_kept_and_degrees_sum_to_edges(
    num_nodes: int, data: st.DataObject, dtype: Any
) -> None:
    num_edges = data.draw(st.integers(0, 30))
    ids = hnp.arrays(dtype, num_edges, elements=st.integers(0, num_nodes - 1))
    senders, receivers = data.draw(ids), data.draw(ids)
    graph = Graph.from_edges(senders, receivers, num_nodes=num_nodes)
    np.testing.assert_array_equal(graph.senders, senders)
    np.testing.assert_array_equal(graph.receivers, receivers)
    assert graph.in_degrees().sum() == graph.out_degrees().sum() == graph.num_edges


@given(num_nodes=st.integers(1, 20), wrong=st.lists(st.integers(0, 1000), min_size=1, max_size=9))
def test_any_id_out_of_range_is_reported_with_its_size(num_nodes: int, wrong: list[int]) -> None:
    ids = np.array(wrong) + num_nodes
    expected = rf"{ids.size} of {ids.size} ids .* the largest is {ids.max()}\."
    with pytest.raises(ValueError, match=expected):
        Graph.from_edges(ids, np.zeros_like(ids), num_nodes=num_nodes)
