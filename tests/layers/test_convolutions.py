"""GCN, GraphSAGE and GIN as functions, against the float64 references."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from jaxgraph.layers import gcn_conv, gin_conv, sage_conv
from jaxgraph.parallel import gather_rows, make_mesh, shard, spmd
from jaxgraph.partition import Partition
from tests.layers.convolution_cases import (
    SPECIAL_GRAPHS,
    TERMS,
    WIDE,
    check_convolution,
    columns_match_rows,
    draws,
    refused,
)
from tests.oracles import convolutions
from tests.strategies import NUM_FEATURES, skewed_assignment
from tests.tolerance import assert_close
from tests.training import crooked_graph, crooked_sharded, oracle_edges

normal = draws(8)


def gcn_params(width: int) -> dict[str, Any]:
    return {"kernel": normal(NUM_FEATURES, width), "bias": normal(width)}


def sage_params(width: int) -> dict[str, Any]:
    kernels = {f"{end}_kernel": normal(NUM_FEATURES, width) for end in ("self", "neighbor")}
    return kernels | {"bias": normal(width)}


def gin_params(hidden: int) -> dict[str, Any]:
    return {
        "eps": normal(),
        "first_kernel": normal(NUM_FEATURES, hidden),
        "first_bias": normal(hidden),
        "second_kernel": normal(hidden, 3),
        "second_bias": normal(3),
    }


def without_bias(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if not name.endswith("bias")}


# Wider than the input: mapped after the sum; otherwise before.
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, Any]]] = {
    "gcn-narrow": (gcn_conv, convolutions.gcn, gcn_params(3)),
    "gcn-wide": (gcn_conv, convolutions.gcn, gcn_params(WIDE)),
    "gcn-no-loops-no-bias": (
        partial(gcn_conv, add_self_loops=False),
        partial(convolutions.gcn, add_self_loops=False),
        without_bias(gcn_params(3)),
    ),
    "sage-mean-narrow": (sage_conv, convolutions.sage, sage_params(3)),
    "sage-mean-wide": (sage_conv, convolutions.sage, sage_params(WIDE)),
    "sage-sum": (
        partial(sage_conv, reduce="sum"),
        partial(convolutions.sage, reduce="sum"),
        without_bias(sage_params(3)),
    ),
    "sage-max": (
        partial(sage_conv, reduce="max"),
        partial(convolutions.sage, reduce="max"),
        sage_params(3),
    ),
    "gin-narrow": (gin_conv, convolutions.gin, gin_params(4)),
    "gin-wide-no-bias": (gin_conv, convolutions.gin, without_bias(gin_params(WIDE))),
    # Last, as the parameters of the others are drawn before.
    "sage-min": (
        partial(sage_conv, reduce="min"),
        partial(convolutions.sage, reduce="min"),
        sage_params(3),
    ),
}


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("gcn-no")])
def test_values_and_gradients(name: str) -> None:
    check_convolution(*CASES[name])


@pytest.mark.expensive
@pytest.mark.parametrize("name", [name for name in CASES if name != "gin-wide-no-bias"])
def test_weighted_edges(name: str) -> None:
    """Of GCN, whose degrees hold the weights as well, without their gradient."""
    check_convolution(*CASES[name], edge_data="edge_weight", constant=name.startswith("gcn"))


def test_integers_are_weighted_as_numbers() -> None:
    conv, oracle, params = CASES["sage-mean-wide"]
    graph = crooked_graph(edge_weight=True)
    x = np.arange(graph.num_nodes * NUM_FEATURES).reshape(graph.num_nodes, -1) % 7
    expected, _ = oracle(params, oracle_edges(graph), x.astype(np.float64))
    assert_close(conv(params, graph, x), expected, reduction_length=TERMS)


def test_weights_that_a_shard_has_lost() -> None:
    """Rows are summed without them, and columns, whose edges have them, are refused."""
    conv, _, params = CASES["sage-mean-wide"]

    def lost(shard: Any) -> jax.Array:
        return conv(params, shard.replace(edge_weight=None), shard.nodes)

    plain = spmd(lambda s: conv(params, s, s.nodes), outputs="rows")
    rows = spmd(lost, outputs="rows")(crooked_sharded(2, "hash", "sar", True))
    assert_close(rows, plain(crooked_sharded(2, "hash", "sar")), reduction_length=TERMS)
    with pytest.raises(ValueError, match="replace no edge data of the shard"):
        spmd(lost, outputs="rows")(crooked_sharded(4, "hash", "p3-sar", True))


@pytest.mark.expensive
@pytest.mark.parametrize("graph", SPECIAL_GRAPHS, ids=lambda graph: graph.name)
def test_degrees_of_special_graphs(graph: Any) -> None:
    """One part is empty, another has half of the graph."""
    params, of_sage = gcn_params(3), sage_params(3)

    def step(shard: Any) -> list[jax.Array]:
        loops = [gcn_conv(params, shard, shard.nodes, add_self_loops=add) for add in (True, False)]
        return [*loops, sage_conv(of_sage, shard, shard.nodes)]

    parts = Partition(skewed_assignment(graph.num_nodes, 3), 3, "skewed")
    sharded = shard(graph, parts, make_mesh(3))
    edges, x = oracle_edges(graph), graph.nodes.astype(np.float64)
    expected = [convolutions.gcn(params, edges, x, add)[0] for add in (True, False)]
    expected.append(convolutions.sage(of_sage, edges, x)[0])
    for actual, reference in zip(spmd(step, outputs="rows")(sharded), expected, strict=True):
        assert_close(gather_rows(actual, sharded), reference, reduction_length=300)


def test_weights_that_cancel_leave_the_bias() -> None:
    """Degrees that are not positive have no inverse root."""
    graph = crooked_graph(edge_weight=True)
    assert graph.edge_weight is not None
    graph = graph.replace(edge_weight=-graph.edge_weight)
    params = gcn_params(3)

    def step(shard: Any) -> jax.Array:
        return gcn_conv(params, shard, shard.nodes, add_self_loops=False)

    sharded = shard(graph, None, make_mesh(1))
    actual = gather_rows(spmd(step, outputs="rows")(sharded), sharded)
    np.testing.assert_array_equal(actual, np.broadcast_to(params["bias"], actual.shape))


@pytest.mark.expensive
@pytest.mark.parametrize(
    "name", ["gcn-wide", "sage-mean-wide", "sage-max", "sage-min", "gin-narrow"]
)
def test_columns_give_what_rows_give(name: str) -> None:
    conv, _, params = CASES[name]
    columns_match_rows(conv, params, edge_weight=name in ("sage-mean-wide", "sage-max"))


def test_an_unknown_reduction_is_refused() -> None:
    message = "reduce is 'median'; expected one of sum, mean, max, min"
    refused(ValueError, message, lambda s: sage_conv(sage_params(3), s, s.nodes, reduce="median"))
