import numpy as np
import pytest

import jaxgraph as jg
from benchmarks import p3, p3_samples, push_pull
from jaxgraph.analysis.traffic import Overlap
from jaxgraph.layout.column_tables import ColumnRequest
from jaxgraph.layout.placed import placed_shapes
from jaxgraph.layout.shard_tables import tabulate

BY_NAME = {system.name: system for system in p3.SYSTEMS}


def small_graph(num_nodes: int = 64) -> jg.Graph:
    return jg.datasets.load("random", num_nodes=num_nodes, degree=6, num_features=10, seed=0)


@pytest.mark.parametrize("name", ["aggregate first", "transform first"])
def test_both_orders_are_graphsage(name: str):
    graph = small_graph()
    parts = jg.partition.partition(graph, 2, method="hash", seed=0)
    sharded = jg.parallel.shard(graph, parts, jg.parallel.make_mesh(2), mode="domain")
    model = p3.make_model(BY_NAME[name], 10, 8)
    usual = p3.make_model(BY_NAME["sar"], 10, 8)
    ours, theirs = model.layers[0].convolution, usual.layers[0].convolution
    for weights in ("self_kernel", "neighbor_kernel"):
        setattr(theirs, weights, getattr(ours, weights))
    for each in (model, usual):
        del each.layers[1:]
    np.testing.assert_allclose(
        jg.train.predict(model, sharded), jg.train.predict(usual, sharded), rtol=1e-5, atol=1e-5
    )


def test_bytes_follow_the_width_that_a_system_sends():
    parts = jg.partition.partition(small_graph(), 3, method="hash", seed=0)
    narrow, wide = (p3.measure("small", small_graph(), parts, n, 4) for n in (10, 20))
    for name in ("p3", "transform first", "sar"):
        assert wide[name] == narrow[name] > 0
    assert wide["aggregate first"] == 2 * narrow["aggregate first"] > 0
    assert wide["cached"] == 0


def test_an_enlarged_graph_has_the_shapes_of_a_larger_one():
    def manifest(num_nodes: int):
        graph = small_graph(num_nodes)
        parts = jg.partition.partition(graph, 2, method="hash", seed=0)
        columns = ColumnRequest(chunks=2)
        return tabulate(graph, parts, "domain", columns=columns).manifest

    small, large = manifest(200), manifest(1600)
    enlarged = push_pull.enlarged(small, 8)
    assert enlarged.columns is not None and enlarged.columns.chunks == 2
    found, wanted = enlarged.array_shapes(), large.array_shapes()
    assert found.keys() == wanted.keys()
    rows = 2 * enlarged.node_rows
    assert found["nodes"][0] == (rows, 5) and found["columns/node_mask"][0] == (rows,)
    found, wanted = (placed_shapes(each, "xla") for each in (enlarged, large))
    for name in ("nodes", "columns/by_receiver/neighbors", "columns/by_sender/rows"):
        assert found[name][0] == pytest.approx(wanted[name][0], rel=0.2), name


def test_a_kernel_or_a_loop_hides_a_transfer():
    found = [("fusion",), ("custom-call",), ("while",), ()]
    assert push_pull.hidden([Overlap("start", "body", True, each) for each in found]) == 2


@pytest.mark.parametrize("way", [p3_samples.PULL, p3_samples.PUSH_PULL])
def test_bytes_of_a_step_follow_from_the_sizes_of_samples(way: str):
    samples, case = p3_samples.Samples(small_graph(400)), p3_samples.Case(10, 8, 2, 2)
    loader = samples.loader(way, case)
    found = p3_samples.traffic(case, loader.abstract_batch(), backward=True)
    row = p3_samples.check(case, way, loader, found)
    assert row["compiled_MB"] == pytest.approx(row["from_sizes_MB"], rel=0.03)


def test_push_pull_sends_more_from_some_number_of_hidden_features_on():
    samples = p3_samples.Samples(small_graph(400))
    (row,) = p3_samples.crossovers(samples, [10])
    names = {name: value for name, value in row.items() if name != "features"}
    assert len(names) == 2 and all(value >= 0 for value in names.values())
