import io
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from rich.console import Console

from jaxgraph.cli.summary import cost_summary, result_summary, summary_table
from jaxgraph.layout.manifest import Padding
from jaxgraph.parallel import make_mesh
from jaxgraph.train import EpochRecord, History


def metrics(epoch: int) -> dict[str, dict[str, float]]:
    return {"test": {"accuracy": 0.3125 * epoch}, "train": {"accuracy": 0.4375 * epoch}}


HISTORY = History(
    tuple(
        EpochRecord(epoch, loss, loss, seconds, metrics(epoch), epoch < 3)
        for epoch, (loss, seconds) in enumerate([(2.0, 0.25), (1.5, 0.5), (1.0, 9.0)], 1)
    ),
    compile_seconds=3.0,
)
PADDING = Padding(
    nodes=10, node_rows=12, edges=20, edge_slots=25, halo_rows_needed=8, halo_rows_sent=16
)


def on_hosts(hosts: int) -> SimpleNamespace:
    """What a summary reads of a sharded graph."""
    shards, mesh = SimpleNamespace(hosts=hosts), make_mesh(2, hosts=hosts)
    return SimpleNamespace(padding=lambda: PADDING, shards=shards, mesh=mesh)


def summed_over_two_devices() -> jax.stages.Compiled:
    """A program whose only communication is the all-reduce of 256 floats over two devices."""
    mesh = make_mesh(2)
    inputs = jax.ShapeDtypeStruct(
        (2, 256), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("graph"))
    )
    summed = jax.shard_map(
        lambda x: jax.lax.psum(x[0], "graph"),
        mesh=mesh,
        in_specs=PartitionSpec("graph"),
        out_specs=PartitionSpec(),
    )
    return jax.jit(summed).lower(inputs).compile()


def test_result_summary():
    summary = result_summary(HISTORY)
    assert summary["median_epoch_seconds"] == 0.5
    assert (summary["epochs"], summary["best_epoch"], summary["compile_seconds"]) == (3, 2, 3.0)
    assert summary["history"]["best_epoch"] == 2
    assert summary["evaluation"] == {"train": {"accuracy": 0.875}, "test": {"accuracy": 0.625}}
    assert summary["history"]["loss"] == [2.0, 1.5, 1.0]


PLAIN = SimpleNamespace(needs=None)


def test_cost_summary_measures_the_compiled_program():
    summary = cost_summary([summed_over_two_devices()], on_hosts(1), PLAIN)
    assert summary["memory_per_device"]["arguments"] == 256 * 4
    assert summary["memory_per_device"]["total"] >= 2 * 256 * 4
    # 2 (N - 1) / N of the array leaves each of N = 2 devices.
    assert summary["bytes_sent_per_epoch"] == 256 * 4
    assert summary["padding"]["edge_ratio"] == pytest.approx(1.25)
    assert summary["padding"]["halo_ratio"] == pytest.approx(2.0)
    assert "bytes_between_hosts" not in summary
    assert (
        cost_summary([summed_over_two_devices()], on_hosts(2), PLAIN)["bytes_between_hosts"]
        == 256 * 4
    )


def test_the_cost_of_a_streamed_run_is_that_of_its_rehearsal():
    needs = SimpleNamespace(device=1000, host=500, sent=300, returned=30)
    streamed = SimpleNamespace(padding=on_hosts(1).padding)
    found = cost_summary([], streamed, SimpleNamespace(needs=needs))
    assert found["traffic"] == {"to the device": 300, "back": 30}
    assert found["memory_per_device"] == {"total": 1000} and found["memory_on_host"] == 500


def test_the_table_shows_all_of_it():
    result = {
        "options": {
            "model": "gat",
            "layers": 3,
            "dtype": "bfloat16",
            "parts": 2,
            "mode": "sar",
            "prefetch": True,
            "epochs": 10,
        },
        "interrupted": True,
        "graph": {"name": "karate", "nodes": 34, "edges": 156},
        **result_summary(HISTORY),
        **cost_summary([summed_over_two_devices()], on_hosts(1), PLAIN),
    }
    console = Console(file=io.StringIO(), width=140)
    console.print(summary_table(result))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for shown in (
        "karate: 34 nodes",
        "gat, 3 layers, bfloat16",
        "2, sar with prefetch",
        "accuracy 0.6250",
        "3, the best one is number 2; interrupted before 10",
        "500.0 ms",
        "3.00 s",
        "1.0 kB",
        "edges 1.250, halo rows 2.000, nodes 1.200",
    ):
        assert shown in text, shown
