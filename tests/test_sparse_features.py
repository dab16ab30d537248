"""Sparse features: what is computed of them equals the oracle's, which has them dense."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

from jaxgraph import Graph
from jaxgraph.parallel import make_mesh, shard
from jaxgraph.partition import Partition, partition
from tests.oracles.models import Model
from tests.training import (
    P3_MODES,
    crooked_graph,
    gradient_errors,
    module_of,
    oracle_pass,
    random_params,
    sharded_pass,
)

TOLERANCE = 2e-5
WIDE = 29


class Case(NamedTuple):
    conv: str
    parts: int
    devices: int
    mode: str
    dropout: float
    implementation: str


QUICK = (
    Case("gcn", 1, 1, "domain", 0.4, "cpu"),
    Case("sage", 4, 4, "domain", 0.4, "xla"),
    Case("gin", 6, 2, "sar", 0.4, "cpu"),
    Case("gat", 4, 4, "prefetch", 0.0, "cpu"),
    Case("gatv2", 2, 2, "sar", 0.4, "xla"),
    Case("sage", 4, 4, "p3-sar", 0.4, "cpu"),
    Case("gat", 4, 4, "p3-domain-pushed", 0.4, "cpu"),
)
FULL = [
    Case(conv, parts, devices, mode, dropout, implementation)
    for conv in ("gcn", "sage", "gat", "gatv2", "gin")
    for parts, devices in ((1, 1), (2, 2), (4, 4), (6, 2))
    for mode in ("sar", "domain", *P3_MODES)
    for dropout in (0.0, 0.4)
    for implementation in ("cpu", "xla")
    if parts == devices or mode not in P3_MODES
]


def sparse_features(num_nodes: int, columns: int = WIDE, share: float = 0.12) -> np.ndarray:
    """Random ones; a node and a column are without."""
    rng = np.random.default_rng(9)
    values = rng.standard_normal((num_nodes, columns)).astype(np.float32)
    values *= rng.random(values.shape) < share
    values[5], values[:, 7 % columns] = 0, 0
    return values


def options_of(mode: str) -> dict[str, Any]:
    if mode == "prefetch":
        return {"mode": "sar", "prefetch": True}
    return {"mode": "p3", **P3_MODES[mode]} if mode in P3_MODES else {"mode": mode}


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id="-".join(map(str, c))) for c in QUICK]
    + [
        pytest.param(c, id="-".join(map(str, c)), marks=pytest.mark.full)
        for c in FULL
        if c not in QUICK
    ],
)
def test_training_equals_the_oracle(case: Case) -> None:
    graph = crooked_graph(edge_weight=case.conv == "gcn")
    parts = partition(graph, case.parts, method="hash", seed=0)
    check(case, graph, parts, sparse_features(graph.num_nodes))


def check(case: Case, graph: Graph, parts: Partition, features: np.ndarray) -> None:
    heads = 2 if case.conv in ("gat", "gatv2") else 1
    model = Model(case.conv, heads, norm="batch", dropout=case.dropout, activation="elu")
    width = features.shape[1]
    params = random_params(model, num_features=width)
    expected = oracle_pass(model, params, graph.replace(nodes=features))
    sharded = shard(
        graph.replace(nodes=sp.csr_array(features)),
        parts,
        make_mesh(case.devices),
        implementation=case.implementation,
        **options_of(case.mode),
    )
    errors = gradient_errors(sharded_pass(module_of(model, params, width), sharded), expected)
    worst = max(errors, key=lambda name: errors[name])
    assert errors[worst] <= TOLERANCE, f"{worst}: {errors[worst]:.3g}"
