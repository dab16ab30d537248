"""Features with their aggregate: its values, the layers that read it, and equal results."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.layers import dropout, gcn_conv, linear
from jaxgraph.layers.aggregated import AggregatedFeatures, aggregate_by_columns, plain_features
from jaxgraph.layers.aggregations import NeighborReduction, SymmetricSum
from jaxgraph.layers.dense import require_rows
from jaxgraph.parallel import gather_rows, spmd
from tests.compilation import AS_USERS_DO
from tests.layers.convolution_cases import TERMS, check_layers, refused
from tests.layers.neighborhood_cases import CASES as CONVOLUTIONS
from tests.layers.neighborhood_cases import WIDE, Case, of
from tests.oracles import convolutions
from tests.strategies import NUM_FEATURES
from tests.tolerance import assert_close
from tests.training import crooked_graph, crooked_sharded, oracle_edges, poisoned

MEAN, SUM, MAX = (NeighborReduction(name) for name in ("mean", "sum", "max"))

# ------------------------------------------------------------------ the aggregate


def expected_aggregate(aggregation: Any) -> np.ndarray:
    """The aggregation of the crooked graph's features, in float64."""
    graph = crooked_graph(edge_weight=True)
    edges, x = oracle_edges(graph), np.asarray(graph.nodes, np.float64)
    one, nothing = np.eye(NUM_FEATURES), np.zeros((NUM_FEATURES, NUM_FEATURES))
    if isinstance(aggregation, SymmetricSum):
        return convolutions.gcn({"kernel": one}, edges, x, aggregation.add_self_loops)
    params = {"self_kernel": nothing, "neighbor_kernel": one}
    return convolutions.sage(params, edges, x, aggregation.reduce)


@pytest.mark.expensive
@pytest.mark.parametrize("mode", ["sar", "domain"])
@pytest.mark.parametrize("aggregation", [SymmetricSum(), SymmetricSum(False), MEAN, SUM, MAX])
def test_the_aggregate_is_that_of_the_reference(aggregation: Any, mode: str) -> None:
    """All columns at once, and a few at a time; 0 in padding, which is NaN in the features."""
    widths = (NUM_FEATURES, NUM_FEATURES - 2)
    assert NUM_FEATURES % widths[1]

    def step(shard: Any) -> list[jax.Array]:
        aggregate = partial(aggregate_by_columns, shard, shard.nodes, aggregation)
        return [aggregate(width=width) for width in widths]

    sharded = poisoned(crooked_sharded(4, "hash", mode, edge_weight=True))
    padding = ~np.asarray(sharded.shards.node_mask).reshape(-1)
    expected = expected_aggregate(aggregation)
    for found in spmd(step, outputs="rows")(sharded):
        assert_close(gather_rows(found, sharded), expected, reduction_length=TERMS)
        np.testing.assert_array_equal(np.asarray(found)[padding], 0)


def test_a_few_columns_at_a_time_take_less_memory() -> None:
    """Under domain, where the rows of all other parts are held at once."""
    sharded = crooked_sharded(4, "hash", "domain")

    def temporary(width: int) -> int:
        def step(shard: Any) -> jax.Array:
            x = jnp.tile(shard.nodes, (1, 64))
            return aggregate_by_columns(shard, x, SUM, width=width)

        compiled = spmd(step, outputs="rows").lower(sharded).compile(compiler_options=AS_USERS_DO)
        memory = compiled.memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    assert temporary(8) < temporary(64 * NUM_FEATURES) / 2


# ------------------------------------------------------------------ layers that read it


def aggregated(shard: Any, x: Any, aggregation: Any, *, behind: bool = False) -> AggregatedFeatures:
    own, aggregate = shard.mask_rows(x), aggregation(shard, x)
    return carrying(own, aggregate, aggregation, behind=behind)


def carrying(x: Any, aggregate: Any, aggregation: Any, *, behind: bool) -> AggregatedFeatures:
    aggregate = jnp.concatenate((x, aggregate), axis=1) if behind else aggregate
    return AggregatedFeatures(x, aggregate, aggregation)


CASES: dict[str, tuple[Case, Any]] = {
    "gcn": (CONVOLUTIONS["gcn-narrow"], SymmetricSum()),
    "gcn-no-loops": (of("gcn", WIDE, biased=False, add_self_loops=False), SymmetricSum(False)),
    "sage-mean": (CONVOLUTIONS["sage-mean-narrow"], MEAN),
    "sage-max": (CONVOLUTIONS["sage-max"], MAX),
    "gin-wide": (of("gin", hidden=WIDE, biased=False), SUM),
    "gin-narrow": (of("gin", biased=False), SUM),
    "of-another-layer": (CONVOLUTIONS["sage-mean-narrow"], SymmetricSum()),
}


@pytest.mark.expensive
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("behind", [False, True])
def test_values_and_gradients(behind: bool, weighted: bool) -> None:
    """Compares with references that know no aggregate; gradients of x flow through it too."""

    def of_aggregated(case: Case, aggregation: Any, params: Any, shard: Any, x: Any) -> jax.Array:
        return case.conv(params, shard, aggregated(shard, x, aggregation, behind=behind))

    given = {
        name: Case(partial(of_aggregated, case, aggregation), case.oracle, case.params)
        for name, (case, aggregation) in CASES.items()
    }
    check_layers(given, data="edge_weight" if weighted else None)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_layer_takes_the_aggregate_that_is_its_own(name: str, behind: bool) -> None:
    """An aggregate of 0 changes the output of a layer if, and only if, the layer reads it."""
    case, aggregation = CASES[name]

    def step(shard: Any) -> Any:
        x = shard.mask_rows(shard.nodes)
        wrong = carrying(x, jnp.zeros_like(x), aggregation, behind=behind)
        return case.conv(case.params, shard, wrong), case.conv(case.params, shard, x)

    sharded = crooked_sharded(2, "hash", "sar")
    of_wrong, of_x = (gather_rows(y, sharded) for y in spmd(step, outputs="rows")(sharded))
    takes_it = name not in ("gin-narrow", "of-another-layer")
    assert np.allclose(of_wrong, of_x, atol=1e-5) != takes_it


def test_attention_maps_and_dropout_take_the_features() -> None:
    case = CONVOLUTIONS["gat"]

    def step(shard: Any) -> Any:
        x = shard.mask_rows(shard.nodes)
        both, key = AggregatedFeatures(x, jnp.zeros_like(x), MEAN), jax.random.key(0)
        return [
            (
                case.conv(case.params, shard, each),
                linear(shard, each, case.params["kernel"]),
                dropout(shard, each, key, rate=0.5),
                require_rows(each, "a test"),
                plain_features(each),
            )
            for each in (both, x)
        ]

    of_both, of_x = spmd(step, outputs="rows")(crooked_sharded(2, "hash", "sar"))
    jax.tree.map(np.testing.assert_array_equal, of_both, of_x)


def test_dropout_of_nothing_keeps_the_aggregate() -> None:
    def step(shard: Any) -> jax.Array:
        x = aggregated(shard, shard.nodes, MEAN)
        assert dropout(shard, x, None, rate=0.0) is x
        return shard.node_mask

    spmd(step, outputs="rows")(crooked_sharded(2, "hash", "sar"))


def test_aggregates_of_other_widths_are_refused() -> None:
    params: dict[str, Any] = {"kernel": np.ones((NUM_FEATURES + 1, 3), np.float32)}

    def step(shard: Any) -> jax.Array:
        return gcn_conv(params, shard, aggregated(shard, shard.nodes, SymmetricSum()))

    refused(ValueError, f"in_features={NUM_FEATURES}", step)
