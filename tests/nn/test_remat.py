"""Policies of saved residuals: they change memory and no value; defaults; invalid ones."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph import nn
from jaxgraph.layers import ACTIVATED, INPUT, LAYER_INPUT, MAPPED, STATISTICS, RematPolicy
from jaxgraph.nn.protocol import Declaration
from jaxgraph.nn.remat import Facts, default_policy
from jaxgraph.nn.stack import Stack
from jaxgraph.parallel import KEPT, make_mesh, propagate, shard, spmd
from jaxgraph.train import compile_train_step
from tests.oracles.edge_ops import aggregate
from tests.oracles.models import Model
from tests.strategies import NUM_CLASSES, NUM_FEATURES
from tests.tolerance import assert_close
from tests.training import (
    crooked_graph,
    crooked_sharded,
    gradient_errors,
    module_of,
    oracle_edges,
    oracle_pass,
    random_params,
    sharded_pass,
)

NAMED = (STATISTICS, *KEPT, MAPPED, LAYER_INPUT, ACTIVATED)
POLICIES = {
    "save by name": RematPolicy(save=(LAYER_INPUT, ACTIVATED)),
    "recompute": RematPolicy(rest="recompute"),
    "offload": RematPolicy((STATISTICS,), offload=NAMED[1:], rest="recompute"),
    "by convolution": RematPolicy(recompute=(INPUT, MAPPED), rest="recompute"),
}


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("name", "conv", "num_parts", "mode"),
    [
        ("save by name", "gat", 1, "sar"),
        ("recompute", "gin", 1, "sar"),
        ("offload", "gcn", 2, "sar"),
        ("by convolution", "gat", 2, "domain"),
        ("by convolution", "gcn", 1, "sar"),
    ],
)
def test_a_policy_changes_no_value(name: str, conv: str, num_parts: int, mode: str) -> None:
    """Also not where a convolution, or the schedule, cannot follow it."""
    model = Model(conv, 2 if conv == "gat" else 1, norm="batch", dropout=0.3)
    params = random_params(model)
    module = module_of(model, params, policy=POLICIES[name])
    actual = sharded_pass(module, crooked_sharded(num_parts, "hash", mode))
    errors = gradient_errors(actual, oracle_pass(model, params, crooked_graph()))
    assert max(errors.values()) <= 2e-5, errors


@pytest.mark.slow
def test_a_policy_decides_what_is_saved() -> None:
    """3 more layers of attention: inputs and products of each, or neither."""
    nodes, width = 2000, 64
    graph = crooked_graph(nodes, num_features=width)
    sharded = shard(graph, None, make_mesh(1))

    def arrays(policy: RematPolicy) -> float:
        options: dict[str, Any] = {"num_layers": 5, "num_heads": 2, "rngs": nnx.Rngs(0)}
        model = nn.GAT(width, width // 2, NUM_CLASSES, policy=policy, **options)
        memory = compile_train_step(model, sharded, optax.sgd(0.1)).memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes / (nodes * width * 4)

    again = arrays(RematPolicy(recompute=(INPUT, MAPPED)))
    assert arrays(RematPolicy()) - again > 3 * 1.5


class Mean(nnx.Module):
    """A convolution without declarations, known only by its call."""

    def __call__(self, neighborhood: Any, x: jax.Array, *, key: Any, train: bool) -> jax.Array:
        return propagate(neighborhood, lambda sender, receiver, edge: sender, x, reduce="mean")


@pytest.mark.parametrize("policy", [None, POLICIES["by convolution"]])
def test_any_callable_is_a_convolution(policy: RematPolicy | None) -> None:
    widths = [NUM_FEATURES] * 4
    options: Any = {"dropout": 0.0, "norm": None, "activation": jnp.tanh, "rngs": nnx.Rngs(0)}
    model = Stack([Mean(), Mean(), Mean()], widths, policy=policy, **options)
    assert model.first_aggregation is None
    graph = crooked_graph()
    x, edges = np.asarray(graph.nodes, np.float64), oracle_edges(graph)
    for layer in range(3):
        x = aggregate(edges, np.tanh(x) if layer else x, edges.weight, "mean")
    found = spmd(lambda shard: model(shard, shard.nodes), outputs="rows")(
        crooked_sharded(1, "hash", "sar")
    )
    assert_close(found[: graph.num_nodes], x, reduction_length=3 * graph.num_nodes)


def test_recomputed_features_are_of_the_type_of_the_convolution() -> None:
    """A stack without a type, with a convolution that has one."""

    def outputs(policy: RematPolicy) -> jax.Array:
        rngs = nnx.Rngs(0)
        convolutions = [nn.GATConv(NUM_FEATURES, 8, dtype=jnp.bfloat16, rngs=rngs)]
        options: Any = {"dropout": 0.0, "norm": None, "activation": jax.nn.relu, "rngs": rngs}
        model = Stack(convolutions, [NUM_FEATURES, 8], policy=policy, **options)
        sharded = crooked_sharded(1, "hash", "sar")
        return spmd(lambda shard: model(shard, shard.nodes), outputs="rows")(sharded)

    plain, again = outputs(RematPolicy()), outputs(RematPolicy(recompute=(INPUT, MAPPED)))
    assert plain.dtype == again.dtype == jnp.bfloat16
    assert_close(again, plain, reduction_length=NUM_FEATURES, dtype=jnp.bfloat16)


SUM, ATTENTION = Declaration(), Declaration(mapped_features=64)
FACTS: dict[str, Any] = {
    "convolution": SUM,
    "previous": SUM,
    "is_last": False,
    "has_norm": True,
    "num_parts": 1,
    "is_16_bits": False,
    "train": True,
    "drops": True,
    "in_features": 100,
    "has_sums": False,
}
SENT = (STATISTICS, *KEPT)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, RematPolicy((LAYER_INPUT,))),
        ({"has_norm": False}, RematPolicy((ACTIVATED,))),
        ({"train": False}, RematPolicy()),
        ({"num_parts": 2}, RematPolicy(SENT, rest="recompute")),
        ({"is_16_bits": True}, RematPolicy((*SENT, MAPPED), rest="recompute")),
        ({"num_parts": 2, "previous": None, "drops": False}, RematPolicy()),
        ({"convolution": ATTENTION}, RematPolicy((LAYER_INPUT,), recompute=(INPUT, MAPPED))),
        ({"previous": ATTENTION, "has_norm": True}, RematPolicy()),
        ({"convolution": ATTENTION, "previous": None}, RematPolicy(recompute=(INPUT,))),
        (
            {"convolution": ATTENTION, "previous": None, "drops": False, "in_features": 9},
            RematPolicy(recompute=(MAPPED,)),
        ),
        (
            {"convolution": ATTENTION, "is_last": True, "num_parts": 2},
            RematPolicy(SENT, recompute=(INPUT,), rest="recompute"),
        ),
    ],
)
def test_defaults(facts: dict[str, Any], expected: RematPolicy) -> None:
    assert default_policy(Facts(**FACTS | facts)) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rest": "keep"}, "rest is 'keep'; expected one of save, recompute"),
        ({"save": MAPPED}, "save is 'mapped_features'; expected a tuple of names"),
        ({"save": (MAPPED,), "recompute": (MAPPED,)}, "name a tensor twice"),
        ({"recompute": (LAYER_INPUT,)}, "a convolution recomputes convolution_input and"),
        ({"offload": KEPT}, "pass rest='recompute'"),
    ],
)
def test_policies_that_contradict_themselves_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        RematPolicy(**options)


def test_policies_that_do_not_fit_a_model_are_refused() -> None:
    def make(policy: Any) -> nn.GCN:
        return nn.GCN(4, 4, 2, policy=policy, rngs=nnx.Rngs(0))

    assert make([RematPolicy()] * 2).policy == (RematPolicy(),) * 2
    with pytest.raises(ValueError, match="policy has 3 entries for 2 layers"):
        make([RematPolicy()] * 3)
    with pytest.raises(TypeError, match="policy is 'save'; expected"):
        make("save")
    with pytest.raises(TypeError, match="one for each layer"):
        make([None, None])
