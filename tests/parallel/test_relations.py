"""Several relations of one exchange, and two tables: values, gradients and what is sent."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.analysis import traffic
from jaxgraph.layers.attention import gat_stages
from jaxgraph.layers.convolutions import gcn_stages, sage_stages
from jaxgraph.parallel import ShardedGraph, bipartite, spmd
from jaxgraph.parallel.conv_stages import run_together
from tests.layers.convolution_cases import adjoint
from tests.layers.neighborhood_cases import CASES, doubles
from tests.oracles.edges import Edges as OracleEdges
from tests.oracles.tape import differentiate
from tests.parallel.typed_shards import Edges, typed_shards
from tests.strategies import NUM_FEATURES
from tests.tolerance import assert_close

NODES, OTHERS = 61, 40
STAGES: dict[str, Any] = {
    "gcn-narrow": partial(gcn_stages, dtype=np.float32),
    "sage-mean-wide": partial(sage_stages, dtype=np.float32, reduce="mean"),
    "gat": gat_stages,
}


def ends(seed: int, senders: int, receivers: int, count: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    found = np.stack([rng.integers(0, senders, count), rng.integers(0, receivers, count)])
    found[1, : count // 4] = 3  # A hub, and equal edges.
    return found.astype(np.int32)


def features(seed: int, nodes: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(nodes, NUM_FEATURES)).astype(np.float32)


ONE_TABLE = {"near": ends(1, NODES, NODES, 300), "far": ends(2, NODES, NODES, 90)}
X = features(3, NODES)


def one_table(mode: str, parts: int, names: Any = ONE_TABLE, by: str | None = None) -> ShardedGraph:
    edges = {name: Edges("all", "all", ONE_TABLE[name]) for name in names}
    return typed_shards({"all": X}, edges, mode, parts, by)


def in_order(rows: Any, table: Any, count: int) -> np.ndarray:
    ids, mask = (np.asarray(x).reshape(-1) for x in (table.node_ids, table.node_mask))
    found = np.zeros((count, rows.shape[-1]))
    found[ids[mask]] = np.asarray(rows).reshape(-1, rows.shape[-1])[mask]
    return found


def step(name: str, names: Any, *, together: bool) -> Any:
    """The sum of a convolution on each relation, its loss and its gradients."""
    case = CASES[name]

    def on_shard(params: Any, shard: Any) -> Any:
        table = shard.table()

        def loss(params: Any, x: Any) -> Any:
            relations = [shard.relation(each) for each in names]
            if together:
                calls = [
                    (STAGES[name](own), own, relation, x)
                    for own, relation in zip(params, relations, strict=True)
                ]
                y: Any = sum(run_together(calls))
            else:
                pairs = zip(params, relations, strict=True)
                y = sum(case.conv(own, relation, x) for own, relation in pairs)
            weighed = y * adjoint(table.node_ids, y.shape[1])
            return table.sum(jnp.sum(table.mask_rows(weighed))), y

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, table.nodes)

    return spmd(on_shard, outputs=(("replicated", "rows"), ("replicated", "rows")))


def params_of(name: str, names: Any) -> list[Any]:
    return [
        jax.tree.map(lambda a, s=s: a * s, CASES[name].params) for s in range(1, len(names) + 1)
    ]


@pytest.mark.expensive
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("mode", "parts"), [("sar", 1), ("sar", 3), ("domain", 3)])
@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("by", [None, "xla"])
def test_two_relations_over_one_table_equal_the_oracle(
    name: str, mode: str, parts: int, together: bool, by: str | None
) -> None:
    sharded, params = one_table(mode, parts, by=by), params_of(name, ONE_TABLE)
    (_, y), (of_params, of_x) = step(name, ONE_TABLE, together=together)(params, sharded)
    table, expected, expected_of_x = sharded.shards.table(), 0.0, 0.0
    for own, edges, found in zip(params, ONE_TABLE.values(), of_params, strict=True):
        given = doubles(own), OracleEdges.of(edges[0], edges[1], NODES), np.float64(X)
        rows, pull = differentiate(CASES[name].oracle, *given)
        grads, _, grad_x = pull(adjoint(np.arange(NODES), rows.shape[1]))
        expected, expected_of_x = expected + rows, expected_of_x + grad_x
        for key, gradient in grads.items():
            assert_close(found[key], gradient, reduction_length=2000, name=key)
    assert_close(in_order(y, table, NODES), expected, reduction_length=200)
    assert_close(in_order(of_x, table, NODES), expected_of_x, reduction_length=2000)


@pytest.mark.parametrize("mode", ["sar", "domain"])
def test_rows_that_two_relations_read_travel_once(mode: str) -> None:
    def sent(names: Any, *, together: bool) -> int:
        params, sharded = params_of("sage-mean-wide", names), one_table(mode, 3, names)
        run = step("sage-mean-wide", names, together=together)
        return sum(traffic(jax.jit(run).lower(params, sharded).compile()).values())

    # Both relations read the rows themselves.
    apart, joined = sent(ONE_TABLE, together=False), sent(ONE_TABLE, together=True)
    alone = [sent([name], together=True) for name in ONE_TABLE]
    assert joined < 0.75 * apart and joined < sum(alone)


@pytest.mark.expensive
@pytest.mark.parametrize(("mode", "parts"), [("sar", 1), ("sar", 3), ("domain", 3)])
@pytest.mark.parametrize("name", STAGES)
def test_edges_between_two_tables_equal_a_block_on_one_device(
    name: str, mode: str, parts: int
) -> None:
    case, edges = CASES[name], ends(4, OTHERS, NODES, 250)
    others = features(5, OTHERS)
    nodes, given = {"a": others, "b": X}, {"writes": Edges("a", "b", edges)}
    sharded = typed_shards(nodes, given, mode, parts)

    def loss(params: Any, relation: Any, x: Any) -> Any:
        y = case.conv(params, relation, x)
        rows = y * adjoint(relation.receivers.node_ids, y.shape[1])
        return relation.sum(jnp.sum(relation.receivers.mask_rows(rows))), y

    def on_shard(params: Any, shard: Any) -> Any:
        x = shard.table("a").nodes, shard.table("b").nodes
        run = jax.value_and_grad(loss, (0, 2), has_aux=True)
        return run(params, shard.relation(), x)

    outputs = (("replicated", "rows"), ("replicated", "rows"))
    (_, y), (of_params, of_x) = spmd(on_shard, outputs=outputs)(case.params, sharded)
    block = bipartite(*edges, num_senders=OTHERS, num_receivers=NODES)
    run = jax.jit(jax.value_and_grad(loss, (0, 2), has_aux=True))
    (_, expected), (params, x) = run(case.params, block, (jnp.asarray(others), jnp.asarray(X)))
    tables = sharded.shards.tables
    assert_close(in_order(y, tables["b"], NODES), expected, reduction_length=200)
    for table, found, gradient, count in zip("ab", of_x, x, (OTHERS, NODES), strict=True):
        assert_close(in_order(found, tables[table], count), gradient, reduction_length=2000)
    for key, gradient in params.items():
        assert_close(of_params[key], gradient, reduction_length=2000, name=key)


def test_a_shard_of_several_tables_names_them() -> None:
    shards = typed_shards(
        {"a": X, "b": X}, {"writes": Edges("a", "b", ONE_TABLE["far"])}, "sar", 2
    ).shards
    with pytest.raises(ValueError, match=r"'a', 'b'.*none was named"):
        _ = shards.nodes
    with pytest.raises(ValueError, match=r"'writes'.*'reads'"):
        shards.relation("reads")
