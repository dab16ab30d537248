"""Blocks of plain arrays, against the references on the graph of both tables."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.layers import gcn_conv
from jaxgraph.parallel import (
    Bipartite,
    bipartite,
    keep_edges,
    propagate,
)
from tests.layers.neighborhood_cases import CASES, EDGE_FEATURES, FEATURED, doubles
from tests.oracles.edges import Edges
from tests.oracles.tape import differentiate
from tests.strategies import NUM_FEATURES
from tests.tolerance import assert_close

SENDERS, RECEIVERS, EDGES = 23, 11, 150
_RNG = np.random.default_rng(3)
FROM = _RNG.integers(0, SENDERS, EDGES)
TO = _RNG.integers(0, RECEIVERS - 1, EDGES)  # no edge enters the last receiver
FROM[:20], TO[:20] = FROM[20:40], TO[20:40]  # repeated edges
FROM[50], TO[50] = 4, 4
X: Any = _RNG.standard_normal((SENDERS, NUM_FEATURES), np.float32)
Y: Any = _RNG.standard_normal((RECEIVERS, NUM_FEATURES), np.float32)
FEATURES = _RNG.standard_normal((EDGES, EDGE_FEATURES), np.float32)
IMPLEMENTATIONS = ["xla", "cpu"]
TWO_TABLES = {name: case for name, case in CASES.items() if not name.startswith("gcn")}
TWO_TABLES |= {f"{name}-edges": case for name, case in FEATURED.items()}


def block(**options: Any) -> Bipartite:
    return bipartite(FROM, TO, num_senders=SENDERS, num_receivers=RECEIVERS, **options)


def close(actual: Any, expected: Any, name: str = "value") -> None:
    assert_close(actual, expected, reduction_length=EDGES * NUM_FEATURES, name=name)


def check(conv: Any, oracle: Any, params: Any, given: Bipartite, x: Any, edges: Edges) -> None:
    """Values and gradients; of the reference's nodes the receivers are the last or the first."""
    adjoint = np.asarray(np.random.default_rng(4).standard_normal((RECEIVERS, 99)), np.float32)

    @jax.jit
    def run(params: Any, given: Bipartite, x: Any) -> Any:
        def loss(params: Any, x: Any) -> Any:
            y = conv(params, given, x)
            return jnp.sum(y * adjoint[:, : y.shape[1]]), y

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, x)

    (_, y), (of_params, of_x) = run(params, given, x)
    rows = np.concatenate(x) if isinstance(x, tuple) else x
    exact = doubles(params), edges, rows.astype(np.float64)
    expected, backward = differentiate(oracle, *exact)
    own = slice(SENDERS, None) if isinstance(x, tuple) else slice(0, RECEIVERS)
    close(y, expected[own], "y")
    full = np.zeros(expected.shape)
    full[own] = adjoint[:, : y.shape[1]]
    expected_of_params, _, expected_of_x = backward(full)
    close(np.concatenate(jax.tree.leaves(of_x)), expected_of_x, "gradient of x")
    for name, gradient in expected_of_params.items():
        close(of_params[name], gradient, name)


@pytest.mark.expensive
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", TWO_TABLES)
def test_two_tables(name: str, implementation: str) -> None:
    case, data = TWO_TABLES[name], FEATURES if name.endswith("edges") else None
    edges = Edges.of(FROM, TO + SENDERS, SENDERS + RECEIVERS, features=data)
    loops = {"add_self_loops": False} if name.startswith("gat") else {}
    check(
        lambda params, n, x: case.conv(params, n, x),
        lambda params, edges, x: case.oracle(params, edges, x, **loops),
        case.params,
        block(implementation=implementation, edges=data),
        (X, Y),
        edges,
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", CASES)
def test_receivers_among_the_senders(name: str, implementation: str) -> None:
    """A sample of neighbours: one array, degrees of the whole graph, missing self-loops added."""
    edges = Edges.of(FROM, TO, SENDERS)
    degree = edges.sum_by_receiver(np.ones(EDGES))
    # A node that is no receiver has no edges here: its degree must show a missing self-loop.
    of_senders = degree + (np.arange(SENDERS) >= RECEIVERS)
    given = block(
        receivers_first=True,
        sender_degree=of_senders,
        receiver_degree=degree[:RECEIVERS],
        implementation=implementation,
    )
    case = CASES[name]
    check(case.conv, case.oracle, case.params, given, X, edges)


@pytest.mark.parametrize("weighted", [False, True])
def test_gcn_divides_by_the_degrees_of_both_tables(weighted: bool) -> None:
    rng = np.random.default_rng(4)
    weights = rng.random(EDGES).astype(np.float32) if weighted else None
    matrix = np.zeros((RECEIVERS, SENDERS))
    np.add.at(matrix, (TO, FROM), 1.0 if weights is None else weights)
    degrees = matrix.sum(1), matrix.sum(0)
    norms = [np.where(d > 0, np.where(d > 0, d, 1) ** -0.5, 0) for d in degrees]
    kernel: Any = rng.standard_normal((NUM_FEATURES, 3)).astype(np.float32)
    y = gcn_conv({"kernel": kernel}, block(edge_weight=weights), (X, Y))
    close(y, (norms[0][:, None] * matrix * norms[1]) @ X @ kernel)
    with pytest.raises(ValueError, match=r"no in_degree: .* Use \.degree"):
        _ = block(edge_weight=weights).senders.in_degree


def test_messages_of_ones_own_and_edges_in_their_order() -> None:
    weights = np.random.default_rng(5).random(EDGES).astype(np.float32)
    given = block(edge_weight=weights)

    def message(sender: Any, receiver: Any, weight: Any) -> Any:
        return jnp.sin(sender) * receiver * weight[:, None]

    y = propagate(given, message, X, Y, given.edge_weight)
    expected = np.zeros((RECEIVERS, NUM_FEATURES))
    messages = np.sin(X.astype(np.float64))[FROM] * Y[TO] * weights[:, None]
    np.add.at(expected, TO, messages)
    close(y, expected)
    np.testing.assert_array_equal(given.by_edge(given.by_slot(weights)), weights)
    np.testing.assert_array_equal(given.by_edge(given.edge_weight), weights)


def test_kept_edges_depend_on_ids_alone() -> None:
    key, given = jax.random.key(0), block()
    swap = np.random.default_rng(0).permutation(RECEIVERS)
    ids = np.empty(RECEIVERS, int)
    ids[swap] = np.arange(RECEIVERS)
    moved = bipartite(
        FROM, swap[TO], num_senders=SENDERS, num_receivers=RECEIVERS, receiver_ids=ids
    )
    kept = [np.asarray(b.by_edge(keep_edges(b, key, 0.5))) for b in (given, moved)]
    assert 0 < kept[0].sum() < EDGES
    np.testing.assert_array_equal(kept[1], kept[0])


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"num_senders": 0}, "num_senders is 0"),
    ({"num_receivers": True}, "num_receivers is True"),
    ({"senders": FROM[:-1]}, "one of each for every edge"),
    ({"senders": FROM.astype(float)}, "expected integers"),
    ({"senders": FROM + 1}, "expected 0 to 22"),
    ({"receivers": TO - 1}, "receivers holds -1"),
    ({"edge_weight": np.ones(3)}, r"expected real numbers \[150\]"),
    ({"sender_ids": np.arange(3)}, r"sender_ids has shape \[3\]"),
    ({"receivers_first": True, "num_senders": 23, "num_receivers": 24}, "first of 23"),
    ({"edge_weight": np.ones((EDGES, 2))}, "edge_weight has shape"),
    ({"edge_weight": np.full(EDGES, "a")}, "edge_weight has .*type"),
    ({"edge_weight": np.ones(EDGES, complex)}, "edge_weight has .*type"),
    ({"edges": np.full(EDGES, None)}, "edges has .*type"),
    ({"sender_ids": np.arange(SENDERS) + 0.5}, "sender_ids has .*type"),
    ({"sender_ids": np.arange(SENDERS) - 1}, "sender_ids holds -1"),
    ({"receiver_ids": np.arange(RECEIVERS) + 2**33}, "receiver_ids holds"),
    ({"sender_degree": np.full(SENDERS, "a")}, "sender_degree has .*type"),
    ({"sender_degree": np.full(SENDERS, np.nan)}, "sender_degree: 23 of 23 values are NaN"),
    ({"edge_weight": np.where(np.arange(EDGES) == 4, np.inf, 1)}, r"edge_weight: 1 .* at \[4\]"),
    ({"edge_type": np.ones(EDGES)}, "edge_type: .*float64"),
    ({"receivers_first": "no"}, "receivers_first is 'no'"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_bad_arguments_are_named(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"senders": FROM, "receivers": TO}
    given |= {"num_senders": SENDERS, "num_receivers": RECEIVERS}
    with pytest.raises(ValueError, match=message):
        bipartite(**given | changes)
