"""Rows that travel between parts, compared with a look-up on the host."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxgraph as jg
from jaxgraph.layout.shard_tables import PartTables, tabulate
from jaxgraph.parallel.exchange import (
    FEWER_SEGMENTS_RATIO,
    MOST_SEGMENTS,
    Exchange,
    Route,
    send_rows,
)
from tests.strategies import complete, random_edges, skewed_assignment

Units = tuple[tuple[int, ...], ...]


@st.composite
def unit_matrices(draw: st.DrawFn) -> Units:
    parts = draw(st.integers(1, 7))
    count = st.integers(0, draw(st.sampled_from((1, 3, 50))))
    return tuple(tuple(0 if p == q else draw(count) for q in range(parts)) for p in range(parts))


def routes(units: Units, unit: int) -> tuple[Route, Route]:
    exchange = Exchange(halo_unit=unit, halo_units=units)
    return exchange.halo_route(), exchange.reach_route(units)


def covered(route: Route, step: int) -> dict[tuple[int, int], int]:
    """The number of rows, from the first, that each pair exchanges at a step."""
    rows: dict[tuple[int, int], int] = {}
    for segment in route.steps[step - 1]:
        for pair in segment.pairs:
            assert rows.get(pair, 0) == segment.start
            rows[pair] = segment.stop
    return rows


@given(unit_matrices(), st.sampled_from((1, 16)))
def test_every_pair_exchanges_its_units_and_few_more(units, unit):
    parts = len(units)
    for route, to_part in zip(routes(units, unit), (True, False), strict=True):
        assert len(route.steps) == parts - 1
        assert route.rows == max(unit * max(map(max, units)), 1)
        for step in range(1, parts):
            pairs = {}
            for part in range(parts):
                other = (part - step) % parts
                pairs[(other, part) if to_part else (part, other)] = units[part][other] * unit
            rows = covered(route, step)
            assert rows.keys() == {pair for pair, count in pairs.items() if count}
            kept = set(rows.values())
            assert len(kept) <= MOST_SEGMENTS
            assert max(kept, default=0) == max(pairs.values())
            for pair, count in pairs.items():
                assert not count or rows[pair] == min(level for level in kept if level >= count)
            if len(set(pairs.values()) - {0}) <= MOST_SEGMENTS:
                assert sum(rows.values()) <= FEWER_SEGMENTS_RATIO * sum(pairs.values())


@given(unit_matrices())
def test_each_message_is_a_partial_permutation(units):
    for route in routes(units, 4):
        for step in (*route.steps, *route.answers().steps):
            for segment in step:
                assert 0 <= segment.start < segment.stop
                assert segment.pairs
                for ends in zip(*segment.pairs, strict=True):
                    assert len(set(ends)) == len(ends)


def tables_of(num_parts: int, mode: str) -> PartTables:
    senders, receivers = random_edges(120, 700, seed=num_parts)
    senders[:200] = receivers[200:320] = 3
    graph = complete(senders, receivers, 120, "hubs")
    assignment = (skewed_assignment(120, num_parts) + np.arange(120) % 2) % num_parts
    return tabulate(graph, jg.partition.Partition.from_assignment(assignment, num_parts), mode)


def some_rows(shard: jg.parallel.Shard) -> tuple[jax.Array, jax.Array]:
    """Two arrays of different shapes and types with distinct nodes; NaN in padding rows."""
    ids = shard.node_ids
    wide = jnp.stack([ids, ids * 2, ids**2], axis=1).astype(jnp.float32).reshape(-1, 1, 3)
    return jnp.where(shard.node_mask[:, None, None], wide, jnp.nan), ids


def sent(shard: jg.parallel.Shard, *message: Any) -> Any:
    return send_rows(shard.axis, shard.implementation, *message)


def arrivals(tables: PartTables, table: str, step: int, *, forward: bool) -> list[np.ndarray]:
    """The ids that arrive at each part at a step."""
    found, parts = [], tables.manifest.num_parts
    for part in range(parts):
        source = tables.part((part - step if forward else part + step) % parts)
        own = slice(source[f"{table}/ptr"][step - 1], source[f"{table}/ptr"][step])
        found.append(source["node_ids"][source[f"{table}/rows"][own]])
    return found


@pytest.mark.expensive
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("table", ["send", "reach"])
@pytest.mark.parametrize("num_parts", [2, 3, 8])
def test_send_rows(num_parts, table, traced):
    tables = tables_of(num_parts, "sar")
    sharded = jg.parallel.place(tables, jg.parallel.make_mesh(num_parts))

    def exchange(step, shard):
        own, arrays = shard.exchange, shard.relation().arrays
        if table == "send":
            return sent(shard, own.halo_route(), own.send, some_rows(shard), step)
        route = own.reach_route(arrays.reach_units)
        return sent(shard, route, arrays.reach, some_rows(shard), step)

    for step in range(1, num_parts):
        if traced:
            arrived = jg.parallel.spmd(exchange, outputs="rows")(jnp.int32(step), sharded)
        else:
            arrived = jg.parallel.spmd(partial(exchange, step), outputs="rows")(sharded)
        wide, ids = (np.asarray(a).reshape(num_parts, -1, *a.shape[1:]) for a in arrived)
        for part, expected in enumerate(arrivals(tables, table, step, forward=table == "send")):
            assert ids[part, : len(expected)].tolist() == expected.tolist()
            columns = np.stack([expected, expected * 2, expected**2], axis=1)
            assert np.array_equal(wide[part, : len(expected), 0], columns)
            assert np.array_equal(wide[part].shape[1:], (1, 3))


@pytest.mark.parametrize("num_parts", [2, 5])
def test_answers_arrive_where_the_rows_came_from(num_parts):
    sharded = jg.parallel.place(tables_of(num_parts, "sar"), jg.parallel.make_mesh(num_parts))

    def there_and_back(step, shard):
        route, table = shard.exchange.halo_route(), shard.exchange.send
        arrived = sent(shard, route, table, shard.node_ids, step)
        returned = sent(shard, route.answers(), None, arrived * 10, step)
        position = table.position[step - 1]
        found = returned[jnp.maximum(position, 0)]
        rows = jnp.where(position >= 0, jnp.arange(position.shape[0]), 0)
        expected = shard.node_ids[rows] * 10
        wrong = jnp.sum((position >= 0) & (found != expected))
        return shard.sum((wrong, jnp.sum(position >= 0)))

    checked = 0
    for step in range(1, num_parts):
        wrong, count = jg.parallel.spmd(there_and_back)(jnp.int32(step), sharded)
        assert int(wrong) == 0
        checked += int(count)
    assert checked == sharded.padding().halo_rows_needed > 0


@pytest.mark.parametrize("num_parts", [2, 3, 8])
def test_exchange_all(num_parts):
    tables = tables_of(num_parts, "domain")
    manifest = tables.manifest
    sharded = jg.parallel.place(tables, jg.parallel.make_mesh(num_parts))
    exchange = jg.parallel.spmd(lambda s: s.exchange.all_rows(s, some_rows(s)), outputs="rows")
    wide, ids = (
        np.asarray(a).reshape(num_parts, manifest.sender_rows, *a.shape[1:])
        for a in exchange(sharded)
    )
    for part in range(num_parts):
        arrays = tables.part(part)
        known = sorted(set(arrays["incoming/by_receiver/neighbors"].tolist()))
        expected = arrays["incoming/sender_ids"][known]
        assert ids[part, known].tolist() == expected.tolist()
        assert np.array_equal(wide[part, known, 0, 1], expected * 2.0)
        own = arrays["node_ids"]
        assert ids[part, : len(own)].tolist() == own.tolist()


@pytest.mark.parametrize("num_parts", [2, 3, 8])
def test_gradient_of_exchange_all_returns_to_the_owners(num_parts):
    tables = tables_of(num_parts, "domain")
    manifest = tables.manifest
    sharded = jg.parallel.place(tables, jg.parallel.make_mesh(num_parts))
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((num_parts, manifest.sender_rows, 2)).astype(np.float32)

    def pull(weights, shard):
        mine = weights[jax.lax.axis_index(shard.axis)]
        values = jnp.zeros((shard.num_rows, 2))
        return jax.grad(lambda x: jnp.sum(shard.exchange.all_rows(shard, x) * mine))(
            jax.lax.pcast(values, shard.axis, to="varying")
        )

    found = jg.parallel.gather_rows(
        jg.parallel.spmd(pull, outputs="rows")(weights, sharded), sharded
    )
    expected = np.zeros((120, 2))
    for part in range(num_parts):
        arrays = tables.part(part)
        own = arrays["node_ids"]
        expected[own] += weights[part, : len(own)]
        halos = arrays["incoming/by_receiver/neighbors"]
        halos = np.unique(halos[halos >= manifest.node_rows])
        expected[arrays["incoming/sender_ids"][halos]] += weights[part, halos]
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_attention_where_parts_share_no_edge():
    """The backward at the senders looks up ids of receivers, of which no part has any."""
    graph = complete([0, 1, 2, 2], [1, 0, 2, 2], 4, "apart").replace(edges=None, edge_weight=None)
    graph = graph.replace(edge_type=None)
    rng = np.random.default_rng(0)
    features, found = graph.num_features, []
    params = {
        "kernel": rng.standard_normal((features, 6)).astype(np.float32),
        "attention_sender": rng.standard_normal((2, 3)).astype(np.float32),
        "attention_receiver": rng.standard_normal((2, 3)).astype(np.float32),
    }

    def loss(params, shard):
        y = jg.layers.gat_conv(params, shard, shard.nodes)
        return shard.sum(jnp.sum(shard.mask_rows(jnp.sin(y))))

    for assignment, count in (([0, 0, 0, 0], 1), ([0, 0, 1, 1], 2)):
        parts = jg.partition.Partition.from_assignment(assignment, count)
        mesh = jg.parallel.make_mesh(count)
        sharded = jg.parallel.shard(graph, parts, mesh, "sar", implementation="xla")
        found.append(jg.parallel.spmd(jax.grad(loss))(params, sharded))
    for actual, expected in zip(*map(jax.tree.leaves, found), strict=True):
        assert np.allclose(actual, expected, rtol=1e-5, atol=1e-6)
