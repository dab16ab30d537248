"""What is predicted without compiling, against the compiled program, in every mode."""

from typing import Any

import jax
import numpy as np
import optax
import pytest
import scipy.sparse
from flax import nnx

from jaxgraph import nn
from jaxgraph.analysis.liveness import temporary_bytes
from jaxgraph.analysis.traced import argument_bytes, live_steps, sent_by_link
from jaxgraph.analysis.traffic import traffic_by_link
from jaxgraph.datasets import load
from jaxgraph.graph import Graph
from jaxgraph.parallel import make_mesh, shard
from jaxgraph.partition import Partition, partition
from jaxgraph.planner.step_cost import TEMPORARY_RANGE, dry_run
from jaxgraph.planner.targets import find_target
from jaxgraph.train.regression import NodeRegression
from jaxgraph.train.step import trace_train_step
from tests.compilation import AS_USERS_DO

PER_HOST = 2
MODES: dict[str, dict[str, Any]] = {
    "domain": {"mode": "domain"},
    "sar": {"mode": "sar"},
    "prefetch": {"mode": "sar", "prefetch": True},
    "p3": {"mode": "p3"},
    "p3-sar-pushed": {"mode": "p3", "rest": "sar", "topology": "pushed", "chunks": 3},
}
FEW = [("gcn", "sar"), ("sage", "domain"), ("gcn", "p3-sar-pushed"), ("sparse", "sar")]
HOSTS = {"sar": 2, "p3": 2}
"""Modes on a mesh of several hosts; the others are on one axis."""
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "gcn": (nn.GCN, {}),
    "sage": (nn.GraphSAGE, {}),
    "gat": (nn.GAT, {"num_heads": 2}),
    "gatv2": (nn.GATv2, {"num_heads": 2}),
    "transformer": (nn.Transformer, {"num_heads": 2}),
    "pna": (nn.PNA, {"delta": 1.0}),
    "appnp": (nn.APPNP, {}),
    "gcnii": (nn.GCNII, {}),
    "gine": (nn.GINE, {"edge_features": 4}),
    "weights": (nn.GCN, {}),
    "named": (nn.GCN, {}),
    "sparse": (nn.GCN, {}),
    "regression": (nn.GraphSAGE, {}),
}
ALL = [
    pytest.param(model, mode, marks=() if (model, mode) in FEW else pytest.mark.slow)
    for index, model in enumerate(MODELS)
    for mode in (MODES if index < 4 else ("domain", "sar", "p3"))
]


def make_graph(model: str) -> Graph:
    graph = load("random", num_nodes=6000, degree=6, num_features=32, num_classes=5, seed=0)
    ones, edges = np.ones((6000, 5), np.float32), np.ones((graph.num_edges, 4), np.float32)
    if model == "sparse":
        kept = np.arange(6000 * 32).reshape(6000, 32) % 10 == 0
        return graph.replace(nodes=scipy.sparse.csr_array(np.where(kept, graph.nodes, 0)))
    changed = {
        "gine": lambda: graph.replace(edges=edges),
        "weights": lambda: graph.replace(edge_weight=edges[:, 0]),
        "named": lambda: graph.with_edges(length=edges),
        "regression": lambda: graph.with_nodes(heat=ones),
    }
    return changed.get(model, lambda: graph)()


@pytest.mark.expensive
@pytest.mark.law(6)
@pytest.mark.parametrize(("model", "mode"), ALL)
def test_arguments_and_bytes_are_exact_and_temporaries_not_above(model: str, mode: str) -> None:
    graph, (kind, options) = make_graph(model), MODELS[model]
    width = 16 if "num_heads" in options else 32
    made = kind(32, width, 5, norm="batch", dropout=0.5, rngs=nnx.Rngs(0), **options)
    task = NodeRegression("heat") if model == "regression" else None
    method = "hash" if model == "gcn" else "metis"
    parts = partition(graph, 4, method=method)
    sharded = shard(graph, parts, make_mesh(4, hosts=HOSTS.get(mode, 1)), **MODES[mode])
    traced, arguments = trace_train_step(made, sharded, optax.adam(1e-2), task=task)
    compiled = traced.lower().compile(compiler_options=AS_USERS_DO)
    memory = compiled.memory_analysis()
    assert memory is not None
    jaxpr = traced.jaxpr.jaxpr
    assert argument_bytes(traced, arguments) == memory.argument_size_in_bytes
    sent = sent_by_link(list(live_steps(jaxpr)), PER_HOST)
    assert sent == traffic_by_link(compiled, PER_HOST)
    assert sent.inside and sent.between
    low, high = TEMPORARY_RANGE
    assert low < temporary_bytes(jaxpr) / memory.temp_size_in_bytes < high


def test_what_no_result_depends_on_is_not_sent() -> None:
    mesh = make_mesh(4)

    def function(x: jax.Array) -> jax.Array:
        jax.lax.psum(x, "graph")
        turns = jax.lax.scan(lambda c, _: (jax.lax.ppermute(c, "graph", [(0, 1)]), c), x, length=3)
        return turns[0] + jax.lax.psum(x, "graph") - jax.lax.psum(x, "graph")

    spec = jax.sharding.PartitionSpec("graph")
    sharded = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec)
    traced = jax.jit(sharded).trace(jax.ShapeDtypeStruct((32,), "float32"))
    sent = sent_by_link(list(live_steps(traced.jaxpr.jaxpr)), 4)
    # Of 8 numbers a device, one of four sends three times; the equal sums are one.
    assert sent.inside == {"collective-permute": 3 * 32 // 4, "all-reduce": 2 * 3 * 32 // 4}
    assert not sent.between


def test_emulated_devices_share_the_work_of_unequal_parts() -> None:
    graph = load("random", num_nodes=4000, degree=6, num_features=8, num_classes=4, seed=0)
    receivers = np.where(np.arange(graph.num_edges) % 2, graph.receivers // 2, graph.receivers)
    graph = graph.replace(receivers=receivers)
    model = nn.GCN(8, 16, 4, rngs=nnx.Rngs(0))
    halves = {"equal": np.arange(4000) % 2, "unequal": np.arange(4000) // 2000}
    seconds = {}
    for name, owner in halves.items():
        sharded = shard(graph, Partition.from_assignment(owner, 2), make_mesh(2), "domain")
        for target in ("cpux2", "h200x2"):
            run = dry_run(model, sharded, optax.sgd(1.0), find_target(target), compile=False)
            seconds[name, target] = run.work.edge_seconds
    assert seconds["unequal", "cpux2"] == pytest.approx(seconds["equal", "cpux2"], rel=0.05)
    assert seconds["unequal", "h200x2"] > 1.4 * seconds["equal", "h200x2"]
