"""Routes of rows between parts, and attention where parts share no edge."""

from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import jaxgraph as jg
from jaxgraph.parallel.exchange import (
    FEWER_SEGMENTS_RATIO,
    MOST_SEGMENTS,
    Route,
    halo_route,
    reach_route,
)
from tests.strategies import complete

Units = tuple[tuple[int, ...], ...]


@st.composite
def unit_matrices(draw: st.DrawFn) -> Units:
    parts = draw(st.integers(1, 7))
    count = st.integers(0, draw(st.sampled_from((1, 3, 50))))
    return tuple(tuple(0 if p == q else draw(count) for q in range(parts)) for p in range(parts))


def routes(units: Units, unit: int) -> tuple[Route, Route]:
    manifest = SimpleNamespace(halo_units=units, reach_units=units, halo_unit=unit)
    shard = cast(Any, SimpleNamespace(manifest=manifest, hosts=1))
    return halo_route(shard), reach_route(shard)


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
