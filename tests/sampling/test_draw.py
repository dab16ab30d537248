"""Drawn neighbors: which edges are drawn and how often, in every implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from jaxgraph.sampling.neighbors import Draws, Neighbors, neighbors_of
from tests.sampling.batches import compiled, edges_of, in_numpy, layers

SAMPLERS: dict[str, Callable[[Neighbors, Draws], Any]] = {"numpy": in_numpy, "compiled": compiled}
DEGREE, FANOUT, TRIALS = 12, 5, 2000


@pytest.fixture(params=SAMPLERS)
def make(request: pytest.FixtureRequest) -> Callable[[Neighbors, Draws], Any]:
    return SAMPLERS[request.param]


def stars(weights: np.ndarray | None = None) -> Neighbors:
    """Nodes with an edge from each of the same `DEGREE` senders."""
    senders = np.tile(np.arange(DEGREE), TRIALS)
    receivers = np.repeat(np.arange(TRIALS) + DEGREE, DEGREE)
    weights = None if weights is None else np.tile(weights, TRIALS).astype(np.float32)
    return neighbors_of(TRIALS + DEGREE, senders, receivers, weights)


def drawn_of(sampler: Any, key: int = 3) -> np.ndarray:
    """How often each star has each of its senders, [TRIALS, DEGREE]."""
    seeds = np.arange(DEGREE, TRIALS + DEGREE, dtype=np.int32)
    senders, receivers, _ = edges_of(sampler, sampler.draw(seeds, key))[0]
    counts = np.zeros((TRIALS, DEGREE), int)
    np.add.at(counts, (receivers - DEGREE, senders), 1)
    return counts


def check_proportions(counts: np.ndarray, expected: np.ndarray) -> None:
    """The chi-square of counts; a right implementation fails for one key in 10,000."""
    expected = expected / expected.sum() * counts.sum()
    assert stats.chisquare(counts, expected).pvalue > 1e-4


def test_every_neighbor_and_every_pair_is_drawn_equally_often(make: Callable) -> None:
    counts = drawn_of(make(stars(), layers(FANOUT)))
    assert counts.max() == 1 and (counts.sum(axis=1) == FANOUT).all()
    check_proportions(counts.sum(axis=0), np.ones(DEGREE))
    pairs = (counts.T @ counts)[np.triu_indices(DEGREE, 1)]
    check_proportions(pairs, np.ones(len(pairs)))


def test_neighbors_are_drawn_again_with_replacement(make: Callable) -> None:
    counts = drawn_of(make(stars(), layers(FANOUT, replace=True)))
    assert counts.max() > 1 and (counts.sum(axis=1) == FANOUT).all()
    check_proportions(counts.sum(axis=0), np.ones(DEGREE))


@pytest.mark.parametrize("replace", [False, True])
def test_one_neighbor_is_drawn_in_proportion_to_its_weight(make: Callable, replace: bool) -> None:
    weights = np.arange(DEGREE) ** 2.0
    counts = drawn_of(make(stars(weights), layers(1, replace=replace))).sum(axis=0)
    assert counts[0] == 0
    check_proportions(counts[1:], weights[1:])


def test_the_second_neighbor_is_drawn_by_the_weights_of_the_rest(make: Callable) -> None:
    weights = np.asarray([8, 4, 2, 1] + [0] * (DEGREE - 4))
    counts = drawn_of(make(stars(weights), layers(2)))
    assert counts.max() == 1 and (counts.sum(axis=1) == 2).all()
    share = weights[:4] / weights.sum()
    pairs = share[:, None] * share / (1 - share[:, None])
    found, upper = counts.T @ counts, np.triu_indices(4, 1)
    check_proportions(found[upper], (pairs + pairs.T)[upper])


def test_all_neighbors_of_positive_weight_are_taken_where_they_are_few(make: Callable) -> None:
    weights = np.arange(DEGREE) % 3
    for fanout in (-1, DEGREE):
        counts = drawn_of(make(stars(weights), layers(fanout)))
        assert (counts == (weights > 0)).all()
    assert (drawn_of(make(stars(), layers(-1))) == 1).all()


def test_receivers_share_the_numbers_of_their_senders(make: Callable) -> None:
    total = np.zeros(DEGREE)
    sampler = make(stars(), layers(FANOUT, method="labor"))
    for key in range(300):
        counts = drawn_of(sampler, key)
        assert (counts == counts[0]).all()
        total += counts[0]
    expected = 300 * FANOUT / DEGREE
    spread = np.sqrt(expected * (1 - FANOUT / DEGREE))
    assert (abs(total - expected) < 4 * spread).all()


def test_layers_keys_and_receivers_have_draws_of_their_own(make: Callable) -> None:
    counts = drawn_of(make(stars(), layers(FANOUT)))
    assert len(np.unique(counts, axis=0)) > 500
    assert (drawn_of(make(stars(), layers(FANOUT)), key=4) != counts).any()
    # The first of two layers has the receivers of the last, and their senders, which have no edges.
    sampler = make(stars(), layers(FANOUT, FANOUT))
    seeds = np.arange(DEGREE, TRIALS + DEGREE, dtype=np.int32)
    (first, _, _), (last, _, _) = edges_of(sampler, sampler.draw(seeds, 3))
    assert (first != last).any()


def test_draws_depend_on_no_other_receiver(make: Callable) -> None:
    sampler = make(stars(), layers(FANOUT))
    counts = drawn_of(sampler)
    seeds = np.asarray([DEGREE + 7, DEGREE + 3], np.int32)
    senders, receivers, _ = edges_of(sampler, sampler.draw(seeds, 3))[0]
    for seed in seeds:
        found = np.bincount(senders[receivers == seed], minlength=DEGREE)
        assert (found == counts[seed - DEGREE]).all()
