from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxgraph.cli.summary import cost_summary, result_summary
from jaxgraph.layout.manifest import Padding
from jaxgraph.parallel import make_mesh
from jaxgraph.train import EpochRecord, History

PADDING = Padding(
    nodes=10, node_rows=12, edges=20, edge_slots=25, halo_rows_needed=8, halo_rows_sent=16
)


def on_hosts(hosts: int) -> SimpleNamespace:
    """What a summary reads of a sharded graph."""
    shards, mesh = SimpleNamespace(hosts=hosts), make_mesh(2, hosts=hosts)
    return SimpleNamespace(padding=lambda: PADDING, shards=shards, mesh=mesh)


def summed_over_two_devices() -> jax.stages.Compiled:
    """A program whose only communication is the all-reduce of 256 floats over two devices."""
    mesh, spec = make_mesh(2), PartitionSpec("graph")
    inputs = jax.ShapeDtypeStruct((2, 256), jnp.float32, sharding=NamedSharding(mesh, spec))
    summed = jax.shard_map(
        lambda x: jax.lax.psum(x[0], "graph"), mesh=mesh, in_specs=spec, out_specs=PartitionSpec()
    )
    return jax.jit(summed).lower(inputs).compile()


def test_the_result_is_that_of_the_best_epoch():
    found = [(2.0, 0.25, True), (1.5, 0.5, True), (1.0, 9.0, False)]
    records = [
        EpochRecord(epoch, loss, loss, seconds, {"test": {"accuracy": epoch / 4}}, is_best)
        for epoch, (loss, seconds, is_best) in enumerate(found, 1)
    ]
    summary = result_summary(History(tuple(records), compile_seconds=3.0))
    assert (summary["epochs"], summary["best_epoch"], summary["compile_seconds"]) == (3, 2, 3.0)
    assert summary["median_epoch_seconds"] == 0.5
    assert summary["evaluation"] == {"test": {"accuracy": 0.5}}


def test_costs_are_those_of_the_compiled_program():
    history = SimpleNamespace(needs=None)
    summary = cost_summary([summed_over_two_devices()], on_hosts(1), history)
    assert summary["memory_per_device"]["arguments"] == 256 * 4
    assert summary["memory_per_device"]["total"] >= 2 * 256 * 4
    # 2 (N - 1) / N of the array leaves each of N = 2 devices.
    assert summary["bytes_sent_per_epoch"] == 256 * 4
    assert summary["padding"]["edge_ratio"] == pytest.approx(1.25)
    assert summary["padding"]["halo_ratio"] == pytest.approx(2.0)
    assert "bytes_between_hosts" not in summary
    summary = cost_summary([summed_over_two_devices()], on_hosts(2), history)
    assert summary["bytes_between_hosts"] == 256 * 4


def test_the_cost_of_a_streamed_run_is_that_of_its_rehearsal():
    needs = SimpleNamespace(device=1000, host=500, sent=300, returned=30)
    found = cost_summary([], on_hosts(1), SimpleNamespace(needs=needs))
    assert found["traffic"] == {"to the device": 300, "back": 30}
    assert found["memory_per_device"] == {"total": 1000} and found["memory_on_host"] == 500
