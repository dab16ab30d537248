"""Meshes of hosts and their devices: the order of visits, the results, and the links in use."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from jaxgraph.parallel import make_mesh, shard
from jaxgraph.parallel.exchange import RingOrder
from jaxgraph.partition import partition
from tests.law.passes import check_pass
from tests.oracles.models import Model
from tests.training import (
    crooked_graph,
)

WIDE = 29
ORDERS = [(1, 1), (2, 1), (2, 2), (5, 1), (6, 3), (8, 2), (8, 8), (12, 2), (16, 4)]
"""Parts, and hosts."""


@pytest.mark.parametrize(("parts", "hosts"), ORDERS)
class TestRingOrder:
    def test_every_part_visits_every_other_once(self, parts: int, hosts: int) -> None:
        order, steps = RingOrder(parts, hosts), range(1, parts)
        for part in range(parts):
            visited = [order.behind(part, step) for step in steps]
            assert sorted([*visited, part]) == list(range(parts))
            groups = [order.arriving(part, step) for step in steps]
            assert sorted(groups) == list(steps)
            assert [(part - group) % parts for group in groups] == visited

    def test_both_ends_of_a_step_agree(self, parts: int, hosts: int) -> None:
        order = RingOrder(parts, hosts)
        for step in range(1, parts):
            assert {order.ahead(part, step) for part in range(parts)} == set(range(parts))
            for part in range(parts):
                ahead = order.ahead(part, step)
                assert order.behind(ahead, step) == part
                assert order.leaving(part, step) == order.arriving(ahead, step)

    def test_the_own_host_comes_first(self, parts: int, hosts: int) -> None:
        order, size = RingOrder(parts, hosts), parts // hosts
        for step in range(1, parts):
            inside = {order.behind(p, step) // size == p // size for p in range(parts)}
            assert inside == {step < size}


def test_feature_columns_on_several_rows_of_devices_equal_the_oracle() -> None:
    graph = crooked_graph(num_features=WIDE)
    parts = partition(graph, 4, method="hash", seed=0)
    options: dict[str, Any] = {"mode": "p3", "rest": "sar", "feature_budget": 30_000}
    sharded = shard(graph, parts, make_mesh(4, hosts=2), **options)
    assert (
        sharded.mesh.axis_names == ("graph_replicas", "graph")
        and sharded.shards.exchange.hosts == 2
    )
    model = Model("gcn", norm="batch", dropout=0.4, activation="elu")
    check_pass(model, graph, sharded)


class TestMakeMesh:
    def test_hosts_have_consecutive_devices(self) -> None:
        mesh = make_mesh(6, hosts=2)
        assert mesh.axis_names == ("graph_hosts", "graph")
        assert mesh.devices.tolist() == [jax.devices()[:3], jax.devices()[3:6]]

    @pytest.mark.parametrize("hosts", [0, -1, 1.5, True, "2"])
    def test_refuses_what_is_no_number(self, hosts: Any) -> None:
        with pytest.raises(ValueError, match=r"^hosts must be"):
            make_mesh(4, hosts=hosts)

    def test_refuses_hosts_that_do_not_divide(self) -> None:
        with pytest.raises(ValueError, match="hosts=3 do not have equally many of 4"):
            make_mesh(4, hosts=3)
