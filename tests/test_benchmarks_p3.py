import dataclasses

import numpy as np
import pytest
from rich.console import Console

import jaxgraph as jg
from benchmarks import push_pull
from benchmarks.p3 import measure, report
from benchmarks.p3.measure import Partitioning, Point, Step, Transfer
from benchmarks.p3.systems import SYSTEMS, make_model, place
from jaxgraph.analysis.traffic import Overlap
from jaxgraph.layout.column_tables import ColumnRequest
from jaxgraph.layout.placed import placed_shapes
from jaxgraph.layout.shard_tables import tabulate

BY_NAME = {system.name: system for system in SYSTEMS}
POINT = Point("small", "hash", 4, 10, 8)


def small_graph(num_nodes: int = 64) -> jg.Graph:
    return jg.datasets.load("random", num_nodes=num_nodes, degree=6, num_features=10, seed=0)


def transfer(system: str, forward: int, backward: int, **changes: object) -> Transfer:
    point = dataclasses.replace(POINT, **changes)  # pyright: ignore[reportArgumentType]
    return Transfer(point, system, forward, backward, True)


class TestSystems:
    @pytest.mark.parametrize("name", ["aggregate first", "transform first"])
    def test_both_orders_are_graphsage(self, name: str):
        graph = small_graph()
        parts = jg.partition.partition(graph, 2, method="hash", seed=0)
        sharded = jg.parallel.shard(graph, parts, jg.parallel.make_mesh(2), mode="domain")
        model = make_model(BY_NAME[name], 10, 8)
        usual = make_model(BY_NAME["sar"], 10, 8)
        ours, theirs = model.layers[0].convolution, usual.layers[0].convolution
        for weights in ("self_kernel", "neighbor_kernel"):
            setattr(theirs, weights, getattr(ours, weights))
        np.testing.assert_allclose(
            jg.train.predict(_alone(model), sharded),
            jg.train.predict(_alone(usual), sharded),
            rtol=1e-5,
            atol=1e-5,
        )

    def test_what_is_sent_does_not_depend_on_who_counts(self):
        # Compiles every first layer, and raises where the program sends other bytes.
        made = measure.cut("small", small_graph(), 3, "hash")
        rows = list(measure.measure_transfers(made, [(10, 4), (20, 4)], [(10, 4)]))
        sent = report.by_point(rows)
        assert [point.features for point in sent] == [10, 20]
        narrow, wide = sent.values()
        for name in ("p3", "transform first", "sar"):
            assert wide[name].both == narrow[name].both > 0
            assert (narrow[name].is_compiled, wide[name].is_compiled) == (True, False)
        first = "aggregate first"
        assert wide[first].forward == 2 * narrow[first].forward > 0
        assert narrow[first].backward == wide["cached"].both == 0

    def test_other_counts_are_refused(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(measure, "_layer_bytes", lambda *_: (1, 1))
        made = measure.cut("small", small_graph(), 2, "hash")
        with pytest.raises(RuntimeError, match=r"p3 on small, 2 devices, hash: .* sends"):
            list(measure.measure_transfers(made, [(10, 8)], [(10, 8)]))

    def test_work_of_the_first_aggregation(self):
        def columns(name: str, hidden: int) -> list[int]:
            return BY_NAME[name].columns_aggregated(10, hidden, 4)

        assert columns("p3", 8) == [3, 3, 2, 2]
        assert columns("p3", 2) == [2] * 4
        assert columns("aggregate first", 2) == [10] * 4
        assert columns("transform first", 16) == [16] * 4
        assert columns("sar", 16) == [10] * 4
        assert columns("cached", 2) == columns("p3, cached", 2) == [0] * 4

    def test_features_are_held_in_slices(self):
        graph = small_graph()
        parts = jg.partition.partition(graph, 2, method="hash", seed=0)
        sharded = place(BY_NAME["p3"], graph, parts, make_model(BY_NAME["p3"], 10, 8))
        assert isinstance(sharded.shards.nodes, jg.parallel.FeatureColumns)
        assert sharded.shards.nodes.values.shape[-1] == 5


def _alone(model: jg.nn.GraphSAGE) -> jg.nn.GraphSAGE:
    """The output of the first layer."""
    del model.layers[1:]
    return model


class TestReport:
    def test_losses_are_said_plainly(self):
        transfers = [
            transfer("p3", 2, 2),
            transfer("aggregate first", 40, 0),
            transfer("transform first", 1, 1),
            transfer("p3", 4, 4, hidden=16),
            transfer("aggregate first", 4, 0, hidden=16),
            transfer("transform first", 2, 3, hidden=16),
        ]
        steps = [
            Step(POINT, "p3", 1, 1, 60, 1, (9, 3), 0.0),
            Step(POINT, "transform first", 1, 1, 20, 1, (1, 4), 0.0),
        ]
        partitionings = [Partitioning("small", "hash", 4, 0.5, 1.0)]
        lines = list(report.conclusions(transfers, steps, partitionings))
        assert lines[0] == (
            "small, hash: P3 LOSES to aggregate first at 1 of 2 points, it sends up to 2.00 times "
            "as much (4 devices, 10 features, hidden 16); at best 1/10.0 (4 devices, 10 features, "
            "hidden 8)"
        )
        assert lines[1].startswith(
            "small, hash: P3 LOSES to transform first everywhere, it sends at least 1.60 and up to "
            "2.00 times as much"
        )
        assert "3.0 times the bytes" in lines[3]
        assert "2.4 times as many columns x edges" in lines[3]
        assert "at most 1.500 (transform first 1.600)" in lines[4]
        assert "hash 0.50 s" in lines[5]

    def test_tables_show_every_row(self):
        console = Console(width=200, record=True)
        names = ("p3", "aggregate first", "transform first", "cached")
        sizes = ((2e6, 2e6), (40e6, 0), (1e6, 1e6), (0, 0))
        transfers = [
            transfer(name, int(a), int(b)) for name, (a, b) in zip(names, sizes, strict=True)
        ]
        report.show_transfers(transfers, console)
        report.show_steps(
            [Step(POINT, "p3", 10**6, 2 * 10**6, 0, 0, (3 * 10**6, 10**6), 0.0)], console
        )
        text = console.export_text()
        assert "2.00 + 2.00" in text
        assert "1/10.0" in text
        assert "1 to 3" in text
        assert "1.500" in text

    def test_curves_follow_one_width(self):
        transfers = [transfer("p3", 10**6 * hidden, 0, hidden=hidden) for hidden in (16, 8)] + [
            transfer("p3", 10**6, 0, features=16, hidden=32)
        ]
        assert report.curves(transfers, 4, "hidden") == {("p3", "hash"): ([8, 16], [8.0, 16.0])}


class TestPushPull:
    def test_an_enlarged_graph_has_the_shapes_of_a_larger_one(self):
        def manifest(num_nodes: int):
            graph = small_graph(num_nodes)
            parts = jg.partition.partition(graph, 2, method="hash", seed=0)
            columns = ColumnRequest(chunks=2)
            return tabulate(graph, parts, "domain", columns=columns).manifest

        small, large = manifest(200), manifest(1600)
        enlarged = push_pull.enlarged(small, 8)
        assert enlarged.columns is not None
        assert enlarged.columns.chunks == 2
        found, wanted = enlarged.array_shapes(), large.array_shapes()
        assert found.keys() == wanted.keys()
        rows = 2 * enlarged.node_rows
        assert found["nodes"][0] == (rows, 5)
        assert found["columns/node_mask"][0] == (rows,)
        found, wanted = (placed_shapes(each, "xla") for each in (enlarged, large))
        for name in ("nodes", "columns/by_receiver/neighbors", "columns/by_sender/rows"):
            assert found[name][0] == pytest.approx(wanted[name][0], rel=0.2), name

    def test_features_by_node_cannot_be_enlarged(self):
        graph = small_graph()
        parts = jg.partition.partition(graph, 2, method="hash", seed=0)
        with pytest.raises(ValueError, match="not of a graph in mode 'p3'"):
            push_pull.enlarged(tabulate(graph, parts, "domain").manifest, 2)

    def test_what_hides_a_transfer(self):
        def overlap(*between: str) -> Overlap:
            return Overlap("start", "body", True, between)

        transfers = [overlap("fusion"), overlap("custom-call"), overlap("while"), overlap()]
        assert push_pull.hidden(transfers) == 2
