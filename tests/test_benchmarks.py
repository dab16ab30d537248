import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import benchmarks
from benchmarks import compile_time, cost_model, gpu_steps
from benchmarks.__main__ import programs
from benchmarks.command_line import KEPT_MEMORY, keep_freed_memory, make_parser, report
from benchmarks.generated import OGBN_MAG, OGBN_PRODUCTS, Shape, generate_typed
from jaxgraph.planner.cost.features import FEATURES, Access
from jaxgraph.planner.cost.linear_model import Sample


def test_programs_are_listed_with_their_first_line(tmp_path: Path):
    (tmp_path / "memory.py").write_text(
        '"""Memory per device.\n\nMore of it."""\nif __name__ == "__main__":\n    print()\n'
    )
    (tmp_path / "workloads.py").write_text('"""Imported by the others."""\n')
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "__main__.py").write_text('"""Times."""\nif __name__ == "__main__":\n    1')
    assert programs(tmp_path) == {"cpu": "Times.", "memory": "Memory per device."}
    here = programs(Path(benchmarks.__file__).parent)
    assert {"compile_time", "cpu", "memory", "p3", "push_pull"} <= here.keys()


def test_figures_are_shown_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    parser = make_parser("Memory per device.\n\nMore of it.")
    assert parser.description == "Memory per device."
    rows = [{"of_all": (1.5, 20_000), "by": {"a": None}}]
    report("Times", rows, parser.parse_args([]).json)
    assert not any(tmp_path.iterdir())
    report("Times", rows, parser.parse_args(["--json", str(tmp_path / "a.json")]).json)
    written = json.loads((tmp_path / "a.json").read_text())
    assert written == {
        "jax": jax.__version__,
        "rows": [{"of_all": [1.5, 20_000], "by": {"a": None}}],
    }
    shown = capsys.readouterr().out
    assert "of all" in shown and "1.5 20,000" in shown


def test_a_program_starts_anew_once_with_memory_that_stays(monkeypatch: pytest.MonkeyPatch):
    started = []
    monkeypatch.setattr(os, "execve", lambda *arguments: started.append(arguments))
    monkeypatch.setattr(sys, "argv", ["benchmarks/roc.py", "--rounds", "3"])
    keep_freed_memory("benchmarks.roc")
    (_, command, environment) = started.pop()
    assert command[1:] == ["-m", "benchmarks.roc", "--rounds", "3"]
    assert KEPT_MEMORY.items() <= environment.items()
    for name, value in KEPT_MEMORY.items():
        monkeypatch.setenv(name, value)
    keep_freed_memory("benchmarks.roc")
    assert not started


def test_sets_of_features_are_compared_on_parts_held_out():
    def sample(nodes: int, edges: int) -> Sample:
        values = dict.fromkeys(FEATURES, 0.0) | {"nodes": nodes, "edges": edges}
        seconds = 1e-4 * nodes + 1e-5 * edges
        return Sample("GCNConv 4->4", "sar", "cpu", Access(4, 16), "g", 0, values, seconds, 0.02)

    fitted = [sample(*counts) for counts in ((10, 900), (90, 100), (50, 500))]
    rows = cost_model.compare({"GCN": fitted}, {"GCN": [sample(30, 100), sample(10, 700)]})
    by_features = {row["features"]: row for row in rows}
    assert by_features["default"]["median"] < 1 < by_features["edges"]["median"]
    assert by_features["repeat error of the measurement"]["percentile_90"] == 2
    assert {(row["fitted"], row["held_out"]) for row in rows} == {(3, 2)}


def test_graphs_to_predict_are_what_they_are_called():
    by_degree = cost_model.degree_ordered(300, 8, 2.5, 0).in_degrees()
    assert by_degree[:30].min() >= by_degree[-30:].max()
    dense = cost_model.density_blocked(3200, 20, 2.5, 0).in_degrees().reshape(16, -1).sum(1)
    assert 30 < dense[-1] / dense[0] < 130
    assert set(cost_model.grid(8, 1).in_degrees().tolist()) == {8}
    blocks = cost_model.communities(400, 10, 4, 0)
    assert np.mean(blocks.senders // 100 == blocks.receivers // 100) > 0.8


@pytest.mark.slow
def test_a_model_is_compiled_on_each_number_of_devices(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compile_time, "SHAPE", Shape(40, 160, 8, 3))
    monkeypatch.setattr(compile_time, "LAYERS", 1)
    rows = list(compile_time.measure(["GCN"], [1, 2], ["xla"]))
    found = [(row["model"], row["devices"], row["kernels"]) for row in rows]
    assert found == [("GCN", 1, "xla"), ("GCN", 2, "xla")]
    assert all(row["cpu_seconds"] > 0 for row in rows)


def test_shapes_of_a_large_graph_from_a_small_one():
    manifest = gpu_steps.scaled_manifest(2, "sar", 2048)
    shapes = manifest.array_shapes()
    assert 1 < 2 * manifest.node_rows / OGBN_PRODUCTS.num_nodes < 1.2
    assert 1 < 2 * shapes["incoming/by_receiver/neighbors"][0][0] / OGBN_PRODUCTS.num_edges < 1.2
    # Cut by hash, every row has an edge from the other part.
    assert manifest.halo_rows > 0.9 * manifest.node_rows
    assert shapes["nodes"] == ((manifest.node_rows, OGBN_PRODUCTS.num_features), "float32")


def test_a_compiled_step_is_described():
    ring = [(0, 1), (1, 0)]
    mesh = jax.make_mesh((2,), ("graph",), axis_types=(jax.sharding.AxisType.Auto,))
    shift = jax.shard_map(
        lambda x: jax.lax.ppermute(x, "graph", ring),
        mesh=mesh,
        in_specs=jax.P("graph"),
        out_specs=jax.P("graph"),
    )
    compiled = jax.jit(shift).lower(jax.ShapeDtypeStruct((4, 3), "float32")).compile()
    row = gpu_steps.describe(compiled, "gat", 2)
    names = ("permutes", "under_kernels", "share_of_bytes", "kernels")
    assert [row[name] for name in names] == [1, 0, 0, 0]
    assert row["blocks"] == pytest.approx(row["GB"] * 1e9 / (OGBN_PRODUCTS.num_nodes / 2 * 512 * 4))


def test_a_generated_graph_of_several_sets_has_its_counts_communities_and_hubs():
    scale = 1 / 200
    graph, again = (generate_typed(OGBN_MAG, scale=scale, seed=seed) for seed in (3, 3))
    other = generate_typed(OGBN_MAG, scale=scale, inside=0, seed=3)
    for name, count in OGBN_MAG.num_nodes.items():
        assert graph.node_sets[name].num_nodes == round(count * scale)
    papers = graph.node_sets["paper"]
    masks: list[Any] = [papers.train_mask, papers.val_mask, papers.test_mask]
    assert graph.target == "paper" and papers.num_features == 128
    assert np.add.reduce(masks).tolist() == [1] * papers.num_nodes
    assert papers.labels is not None and papers.num_classes == round(8_740 * scale)
    for ends, count in OGBN_MAG.num_edges.items():
        edges = graph.edge_sets[ends]
        assert edges.num_edges == round(count * scale)
        pairs = np.stack([edges.senders, edges.receivers])
        assert np.unique(pairs, axis=1).shape == pairs.shape
        np.testing.assert_array_equal(edges.receivers, again.edge_sets[ends].receivers)
        degrees = np.bincount(edges.receivers)
        # Of the 44 institutions less than of the others.
        assert degrees.max() > 2 * degrees.mean()
    shares = []
    for made in (graph, other):
        cites, labels = made.edge_sets["paper", "cites", "paper"], made.node_sets["paper"].labels
        assert labels is not None and (cites.senders != cites.receivers).all()
        shares.append((labels[cites.senders] == labels[cites.receivers]).mean())
    assert shares[0] > 0.4 and shares[1] < 0.1
