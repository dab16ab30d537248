"""Runs within a limit of memory: the policy that is taken, and what it does not change."""

import importlib.util
import re
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import jaxgraph as jg
from jaxgraph.analysis import compilations
from jaxgraph.layers import RematPolicy
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.planner import GraphCounts, Option, Plan
from jaxgraph.planner.degree_model import counted_manifest
from jaxgraph.planner.policy_search import MemoryPlan, Needed, cheapest_fitting
from jaxgraph.planner.targets import find_target
from tests.train.small_model import CLASSES, FEATURES, SmallNet, small_graph

WIDTH = 32


def make_model(**options: Any) -> jg.nn.GAT:
    """Attention that saves everything, where a policy lowers memory on CPU as well."""
    given: dict[str, Any] = {"num_layers": 4, "num_heads": 2, "dropout": 0.2, "norm": "batch"}
    given |= {"policy": RematPolicy(), "rngs": nnx.Rngs(0)} | options
    return jg.nn.GAT(FEATURES, WIDTH // 2, CLASSES, **given)


def fit(model: nnx.Module, graph: jg.Graph, **options: Any) -> jg.train.History:
    return jg.train.fit(model, graph, optax.adam(1e-2), epochs=3, **options)


def plan_of(history: jg.train.History) -> MemoryPlan:
    assert history.memory_plan is not None
    return history.memory_plan


@pytest.mark.slow
def test_a_limit_changes_what_is_saved_and_no_result() -> None:
    graph = small_graph(2000)
    free, wide = fit(make_model(), graph), fit(make_model(), graph, memory_limit="16GB")
    assert wide.loss == free.loss and plan_of(wide).policy is None
    with compilations() as compiled, pytest.raises(ValueError) as raised:
        fit(make_model(), graph, memory_limit=1)
    assert len(compiled) <= 4
    named = re.search(r"limit is 1 bytes .* the least that works is ([\d,]+), ", str(raised.value))
    assert named and "On CPU nothing is offloaded" in str(raised.value)
    least = int(named[1].replace(",", ""))
    assert least < 0.9 * plan_of(wide).needed.total
    model, whole = make_model(), make_model()
    limited = fit(model, graph, memory_limit=least)
    plan = plan_of(limited)
    assert plan.needed.total == least and plan.policy is not None and model.policy != plan.policy
    assert "recomputes the rest" in plan.lines()[1]
    np.testing.assert_allclose(limited.loss, free.loss, rtol=1e-5)
    with pytest.raises(ValueError, match="the least that works is"):
        fit(make_model(), graph, memory_limit=least - 1)
    planned = fit(whole, graph, plan=make_plan(plan.policy))
    assert planned.loss == limited.loss and planned.memory_plan is None


@pytest.mark.slow
def test_several_graphs_share_a_limit() -> None:
    graphs = [small_graph(60), small_graph(90)]
    free, limited = (
        jg.train.fit(SmallNet(), graphs, optax.sgd(0.1), epochs=2, memory_limit=limit)
        for limit in (None, "1GB")
    )
    assert limited.loss == free.loss
    arrays = [jg.parallel.shard(graph, None, jg.parallel.make_mesh(1)).shards for graph in graphs]
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(arrays))
    assert held < plan_of(limited).needed.arguments < 2 * held


def make_plan(policy: tuple[RematPolicy, ...] | None) -> Plan:
    numbers = dict.fromkeys(
        ("hosts", "memory_limit", "arguments", "temporary", "host", "inside", "between"), 1
    )
    option = Option("sar", "hash")
    return Plan(option, "cpux1", **numbers, seconds=1.0, compiled_for=None, policy=policy)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins") is None,
    reason="compiling for H200 needs the CUDA plugin of jax: pip install 'jaxgraph[cuda]'",
)
def test_what_is_offloaded_is_on_the_host_of_a_gpu() -> None:
    nodes, width = 100_000, 256
    manifest = counted_manifest(GraphCounts(nodes, 10 * nodes, width, 16), 1, "sar", "hash")
    mesh = find_target("h200x1").mesh(emulate=False)
    sharded = jg.parallel.place(AbstractSource(manifest), mesh)

    def needs(model: nnx.Module) -> Needed:
        found = jg.train.compile_train_step(model, sharded, optax.sgd(0.1)).memory_analysis()
        assert found is not None
        sizes = found.argument_size_in_bytes, found.temp_size_in_bytes
        return Needed(*sizes, found.host_temp_size_in_bytes)

    model = jg.nn.GCN(width, width, 16, num_layers=4, norm="batch", rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="the least that works is") as raised:
        cheapest_fitting(model, sharded, 1, needs)
    named = re.search(r"the least that works is ([\d,]+)", str(raised.value))
    assert named
    least = int(named[1].replace(",", ""))
    _, plan = cheapest_fitting(model, sharded, least, needs)
    assert plan.needed.total == least < 0.9 * needs(model).total
    waiting = RematPolicy(("batch_statistics",), ("layer_input",), rest="recompute")
    assert needs(model.with_policy(waiting)).host > 2 * nodes * width * 4
