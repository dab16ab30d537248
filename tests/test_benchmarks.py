import json
import os
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import benchmarks
from benchmarks import compile_time, cost_model, gpu_steps
from benchmarks.__main__ import programs
from benchmarks.command_line import KEPT_MEMORY, keep_freed_memory, make_parser, write_figures
from benchmarks.generated import OGBN_PRODUCTS, Shape
from jaxgraph.planner.cost.features import FEATURES, Access
from jaxgraph.planner.cost.linear_model import Sample


def test_programs_are_listed_with_their_first_line(tmp_path: Path):
    (tmp_path / "memory.py").write_text(
        '"""Memory per device.\n\nMore of it."""\nif __name__ == "__main__":\n    print()\n'
    )
    (tmp_path / "workloads.py").write_text('"""Imported by the others."""\n')
    (tmp_path / "_private.py").write_text('if __name__ == "__main__":\n    raise SystemExit\n')
    assert programs(tmp_path) == {"memory": "Memory per device."}


def test_a_package_that_runs_is_a_program(tmp_path: Path):
    for name, main in (("cpu", 'if __name__ == "__main__":\n    print()\n'), ("parts", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__main__.py").write_text(f'"""Times.\n\nMore."""\n{main}')
        (tmp_path / name / "table.py").write_text('"""Not a program."""\n')
    assert programs(tmp_path) == {"cpu": "Times."}


def test_programs_and_packages_here_are_listed():
    folder = Path(benchmarks.__file__).parent
    assert {"compile_time", "cpu", "memory", "p3", "push_pull"} <= programs(folder).keys()


def test_figures_are_written_on_request(tmp_path: Path):
    parser = make_parser("Memory per device.\n\nMore of it.")
    assert parser.description == "Memory per device."
    write_figures(parser.parse_args([]).json, [{"seconds": 1.5}])
    assert not any(tmp_path.iterdir())
    write_figures(parser.parse_args(["--json", str(tmp_path / "a.json")]).json, [{"seconds": 1.5}])
    written = json.loads((tmp_path / "a.json").read_text())
    assert written == {"jax": jax.__version__, "rows": [{"seconds": 1.5}]}


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
    by_features = {row.features: row for row in rows}
    assert by_features["default"].median < 0.01 < by_features["edges"].median
    assert by_features["repeat error of the measurement"].percentile_90 == 0.02
    assert {(row.fitted, row.held_out) for row in rows} == {(3, 2)}


def test_graphs_to_predict_are_what_they_are_called():
    by_degree = cost_model.degree_ordered(300, 8, 2.5, 0).in_degrees()
    assert by_degree[:30].min() >= by_degree[-30:].max()
    dense = cost_model.density_blocked(3200, 20, 2.5, 0).in_degrees().reshape(16, -1).sum(1)
    assert 30 < dense[-1] / dense[0] < 130
    assert set(cost_model.grid(8, 1).in_degrees().tolist()) == {8}
    blocks = cost_model.communities(400, 10, 4, 0)
    assert np.mean(blocks.senders // 100 == blocks.receivers // 100) > 0.8


@pytest.mark.parametrize(
    ("wall", "cpu", "is_over"),
    [
        (14.0, 20.0, False),  # on several cores at once
        (60.0, 14.0, False),  # waiting for another program
        (16.0, 20.0, True),
    ],
)
def test_when_a_compilation_is_over_the_goal(wall: float, cpu: float, is_over: bool):
    assert compile_time.Row("GAT", 8, "xla", wall, cpu).is_over is is_over


@pytest.mark.slow
def test_a_model_is_compiled_on_each_number_of_devices(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compile_time, "SHAPE", Shape(40, 160, 8, 3))
    monkeypatch.setattr(compile_time, "LAYERS", 1)
    rows = list(compile_time.measure(["GCN"], [1, 2], ["xla"], "bfloat16"))
    assert [(row.model, row.devices, row.implementation) for row in rows] == [
        ("GCN", 1, "xla"),
        ("GCN", 2, "xla"),
    ]
    assert all(row.cpu_seconds > 0 for row in rows)


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
    row = gpu_steps.describe(compiled, "gat", "sar", "xla", 2, 1.0)
    assert (row.permutes, row.under_kernels, row.share_under_kernels, row.kernels) == (1, 0, 0, 0)
    assert row.blocks == pytest.approx(
        row.gigabytes * 1e9 / (OGBN_PRODUCTS.num_nodes / 2 * 512 * 4)
    )
