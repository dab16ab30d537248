"""Models of 64 bits compute in 64 bits, and are refused where JAX would compute in 32."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxgraph import nn
from jaxgraph.parallel import make_mesh, shard
from jaxgraph.partition import partition
from tests.law.table import OTHER_MODELS
from tests.oracles.models import Model
from tests.strategies import NUM_CLASSES, NUM_FEATURES
from tests.training import (
    crooked_graph,
    gradient_errors,
    module_of,
    oracle_pass,
    random_params,
    sharded_pass,
)

MODELS = {name: model for name, model in OTHER_MODELS.items() if not model.edge_features}
MODELS |= {"gcn-weighted": Model("gcn", norm="layer"), "gat": Model("gat", 2, dropout=0.3)}
DOUBLE: dict[str, Any] = {"dtype": "float64", "param_dtype": "float64"}


@pytest.fixture
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


QUICK = ("gcn-weighted", "gat")
CASES = [(name, "sar") for name in MODELS] + [("gcn-weighted", "p3")]
MARKED = [pytest.param(*case, marks=() if case[0] in QUICK else pytest.mark.slow) for case in CASES]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), MARKED)
@pytest.mark.usefixtures("x64")
def test_errors_are_those_of_64_bits(name: str, mode: str) -> None:
    model, graph = MODELS[name], crooked_graph(edge_weight=name == "gcn-weighted")
    params = random_params(model)
    parts = partition(graph, 3, "hash")
    sharded = shard(graph, parts, make_mesh(3), mode, node_dtype="float64")
    module = module_of(model, params, **DOUBLE)
    for train in (True, False):
        actual = sharded_pass(module, sharded, train)
        errors = gradient_errors(actual, oracle_pass(model, params, graph, train))
        assert max(errors.values()) < 1e-12, errors


@pytest.mark.usefixtures("x64")
def test_a_graph_padded_to_another_has_sums_of_weights_of_64_bits_too() -> None:
    graph = crooked_graph(edge_weight=True)
    parts = partition(graph, 2, "hash")
    first = shard(graph, parts, make_mesh(2))
    second = shard(graph, parts, make_mesh(2), pad_to=first)
    assert first.shards.weighted_in_degree is not None
    assert first.shards.weighted_in_degree.dtype == jnp.float64
    assert jax.tree.structure(first.shards) == jax.tree.structure(second.shards)


@pytest.mark.parametrize("name", ["dtype", "param_dtype"])
def test_64_bits_are_refused_where_jax_would_compute_in_32(name: str) -> None:
    message = rf"^{name} is float64, .*jax_enable_x64"
    options: dict[str, Any] = {name: "float64"}
    for make in (nn.GCN, nn.GAT, nn.GIN):
        with pytest.raises(ValueError, match=message):
            make(NUM_FEATURES, 4, NUM_CLASSES, rngs=nnx.Rngs(0), **options)
    with pytest.raises(ValueError, match=message):
        nn.BatchNorm(3, **options)
    with pytest.raises(ValueError, match=r"node_dtype is float64, .*jax_enable_x64"):
        shard(crooked_graph(), None, make_mesh(1), node_dtype=jnp.float64)
