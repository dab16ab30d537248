"""Parts in a folder, placed on devices: the same shards as those of the graph."""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxgraph as jg
from tests.interpreter import run_alone
from tests.layout.part_folders import fast_disk, of_kind
from tests.strategies import complete, random_edges


@pytest.mark.parametrize(
    ("mode", "options", "kind", "devices"),
    [
        ("sar", {}, "dense", 3),
        ("sar", {}, "multilabel", 3),
        ("domain", {}, "sparse", 3),
        ("domain", {}, "plain", 3),
        ("p3", {"rest": "sar", "topology": "pushed", "chunks": 2}, "dense", 3),
        ("p3", {"feature_budget": 10**6}, "sparse", 3),
    ],
)
def test_placed_parts_are_the_shards_of_the_graph(
    mode: str, options: dict[str, Any], kind: str, devices: int, tmp_path: Path
):
    senders, receivers = random_edges(50, 250, 0)
    graph = of_kind(complete(senders, receivers, 50, "any", edge_data=True), kind)
    parts = jg.partition.partition(graph, 3, method="hash")
    seen: list[int] = []
    with fast_disk():
        jg.parallel.write_parts(graph, parts, tmp_path, mode, **options, on_part=seen.append)
    mesh, folder = jg.parallel.make_mesh(devices), jg.parallel.open_parts(tmp_path)
    found = jg.parallel.place(folder, mesh, mode)
    expected = jg.parallel.shard(graph, parts, mesh, mode, **options)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert found.counts == expected.counts and seen == [0, 1, 2]
    for own, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert own.sharding == other.sharding and own.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(own), np.asarray(other))


@pytest.mark.expensive
@pytest.mark.parametrize(("mode", "kind"), [("sar", "sparse"), ("domain", "dense")])
@pytest.mark.parametrize("devices", [1, 2])
def test_parts_are_merged_where_there_are_fewer_devices(
    mode: str, kind: str, devices: int, tmp_path: Path
):
    senders, receivers = random_edges(50, 250, 0)
    graph = of_kind(complete(senders, receivers, 50, "any", edge_data=True), kind)
    parts, mesh = jg.partition.partition(graph, 4, method="hash"), jg.parallel.make_mesh(devices)
    with fast_disk():
        jg.parallel.write_parts(graph, parts, tmp_path, mode)
    found = jg.parallel.place(jg.parallel.open_parts(tmp_path), mesh, mode)
    expected = jg.parallel.shard(graph, parts, mesh, mode)
    assert found.counts == expected.counts and found.num_parts == devices

    def loss(kernel: jax.Array, shard: Any, key: jax.Array) -> jax.Array:
        x: Any = jg.nn.dropout(shard, shard.nodes, rate=0.5, key=key)
        keep = jg.parallel.keep_edges(shard, key, 0.5)
        message = lambda s, r, e: s * e[0][:, None] * e[1][:, None] + e[2][:, :1]  # noqa: E731
        data = (keep, shard.edge_weight, shard.edges)
        sent = jg.parallel.propagate(shard, message, x @ kernel, edge=data)
        return shard.sum(shard.mask_rows(jax.numpy.tanh(sent) * shard.degree[:, None]).sum())

    kernel = np.random.default_rng(1).normal(size=(graph.num_features, 3)).astype(np.float32)
    run = jax.value_and_grad(jg.parallel.spmd(loss))
    own, other = (run(kernel, each, jax.random.key(0)) for each in (found, expected))
    for leaf, like in zip(jax.tree.leaves(own), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(leaf, like, rtol=2e-4, atol=1e-4)


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path):
    graph = jg.datasets.load("karate")
    parts, folder = jg.partition.partition(graph, 2), tmp_path / "parts"
    for arguments, message in {
        (parts, graph, folder): "write_parts",
        (graph, parts, folder, "p4"): "mode is 'p4'",
        (graph, parts, folder, "p3"): "the graph has none",
        (graph, None, folder): "partition is of type NoneType",
    }.items():
        with pytest.raises(ValueError, match=message):
            jg.parallel.write_parts(*arguments)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="rest: for mode='p3' only"):
        jg.parallel.write_parts(graph, parts, folder, rest="sar")
    assert not list(tmp_path.iterdir())


PLACING = """
import os
import jax
from benchmarks.cpu.resident import peak_bytes, reset_peak, resident_bytes, settle
from jaxgraph.parallel import emulate_devices, make_mesh, open_parts, place

emulate_devices(2)
small, large = (open_parts(os.environ[name]) for name in ("SMALL", "LARGE"))
place(small, make_mesh(2))
settle()
assert reset_peak()
before = resident_bytes()
sharded = jax.block_until_ready(place(large, make_mesh(2)))
held = sum(leaf.nbytes for leaf in jax.tree.leaves(sharded))
print((peak_bytes() - before) / held)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel reports peaks of memory on Linux")
def test_a_process_holds_what_it_places_once(tmp_path: Path) -> None:
    """Neither pages of mapped files nor copies on the host stay beside the arrays on devices."""
    folders = {"SMALL": str(tmp_path / "small"), "LARGE": str(tmp_path / "large")}
    for nodes, folder in zip((100, 60_000), folders.values(), strict=True):
        graph = jg.datasets.load("random", num_nodes=nodes, degree=4, num_features=256, seed=0)
        parts = jg.partition.partition(graph, 2, method="hash")
        with fast_disk():
            jg.parallel.write_parts(graph, parts, folder, "domain")
    found = run_alone(PLACING, **folders)
    assert found.returncode == 0, found.stderr
    # One part is placed while the other's features, nearly all of it, are copied from their file.
    assert 0.9 < float(found.stdout) < 1.6, found.stdout
