"""Every layer under every schedule equals the float64 oracle: loss, gradients, running statistics.

The default run has a case for every pair of values of different factors, `--full` one for every
three: all 1,400 take about five hours of a core, and a fault that needs four values to show is rare
(Kuhn, Wallace and Gallo, IEEE TSE 30(6), 2004).
"""

from itertools import product
from typing import Any, NamedTuple

import pytest

from jaxgraph.ops.cpu.library import missing
from tests.covering import cover, meetings
from tests.oracles.models import Model
from tests.strategies import NUM_FEATURES
from tests.training import (
    MODES,
    P3_MODES,
    crooked_graph,
    crooked_sharded,
    gradient_errors,
    module_of,
    oracle_pass,
    random_params,
    sharded_pass,
)

TOLERANCE = 2e-5
WIDE = 29
"""Features for P3: some counts of devices map them before they aggregate, others after it."""


class Case(NamedTuple):
    conv: str
    num_parts: int
    method: str
    mode: str
    dropout: float
    implementation: str


FACTORS = (
    ("gcn", "sage", "gat", "gatv2", "gin"),
    (1, 2, 3, 4, 8),
    ("hash", "metis"),
    MODES,
    (0.4, 0.0),
    ("cpu", "xla"),
)


CASES = [Case(*values) for values in product(*FACTORS)]
PAIRS = cover(CASES, 2)
TRIPLES = cover(CASES, 3, first=PAIRS)


def parameters(cases: list[Case], quick: list[Case]) -> list[Any]:
    return [
        pytest.param(
            case,
            id="-".join(map(str, case)),
            marks=() if case in quick else pytest.mark.full,
        )
        for case in cases
    ]


@pytest.mark.parametrize("case", parameters(TRIPLES, PAIRS))
def test_training_equals_the_oracle(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("implementation", ["cpu", pytest.param("xla", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("conv", "num_parts"),
    [
        ("sage", 4),
        ("gat", 4),
        *(pytest.param(c, 1, marks=pytest.mark.full) for c in ("gat", "gatv2")),
    ],
)
def test_three_layers_equal_the_oracle(conv: str, num_parts: int, implementation: str) -> None:
    check(Case(conv, num_parts, "hash", "sar", 0.4, implementation), num_layers=3)


EDGE_CASES = [
    Case(conv, 3, "hash", mode, dropout, implementation)
    for conv in ("gine", "gat", "gatv2")
    for mode, dropout, implementation in product(MODES, (0.4, 0.0), ("cpu", "xla"))
]
EDGE_QUICK = [Case("gine", 3, "hash", "p3-sar-pushed", 0.4, "cpu")]


@pytest.mark.parametrize("case", parameters(cover(EDGE_CASES, 3, first=EDGE_QUICK), EDGE_QUICK))
def test_training_on_features_of_edges_equals_the_oracle(case: Case) -> None:
    check(case, edge_features=2)


def check(case: Case, num_layers: int = 2, edge_features: int = 0) -> None:
    if case.implementation == "cpu" and missing():
        pytest.skip(missing())
    weighted = case.conv == "gcn" or (case.conv in ("sage", "gin") and case.method == "metis")
    heads = 2 if case.conv in ("gat", "gatv2") else 1
    model = Model(
        case.conv,
        heads,
        norm="batch",
        dropout=case.dropout,
        activation="elu",
        edge_features=edge_features,
    )
    features = WIDE if case.mode in P3_MODES else NUM_FEATURES
    params = random_params(model, num_layers, features)
    edges = edge_features > 0
    graph = crooked_graph(edge_weight=weighted, num_features=features, edges=edges)
    expected = oracle_pass(model, params, graph)
    sharded = crooked_sharded(
        case.num_parts, case.method, case.mode, weighted, case.implementation, features, edges
    )
    actual = sharded_pass(module_of(model, params, features), sharded)
    errors = gradient_errors(actual, expected)
    worst = max(errors, key=lambda name: errors[name])
    assert errors[worst] <= TOLERANCE, f"{worst}: {errors[worst]:.3g}"


@pytest.mark.parametrize(("cases", "size", "part"), [(PAIRS, 2, 1 / 8), (TRIPLES, 3, 1 / 4)])
def test_the_cases_cover_every_few_values(cases: list[Case], size: int, part: float) -> None:
    """Every layer meets every mode, partitioner and number of parts; there is little else."""
    everything = set().union(*(meetings(case, size) for case in CASES))
    assert set().union(*(meetings(case, size) for case in cases)) == everything
    assert len(cases) < part * len(CASES)
