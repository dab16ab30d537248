"""Optimizers made alike are equal, compile once and leave nothing behind; others are not equal."""

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxgraph.train import fit
from jaxgraph.train.epoch import programs_of
from jaxgraph.train.fit_state import _fresh
from jaxgraph.train.identity import comparable
from tests.times import compilations
from tests.train.small_model import SmallNet, on_devices, small_graph


def schedule(count: Any) -> Any:
    return 0.1 / (1 + count)


ALIKE: dict[str, Callable[[], Any]] = {
    "adam": lambda: optax.adam(1e-3, mu_dtype=jnp.bfloat16),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2)),
    "schedule": lambda: optax.sgd(optax.warmup_cosine_decay_schedule(0, 1e-2, 10, 100)),
    "steps": lambda: optax.sgd(optax.piecewise_constant_schedule(1e-2, {10: 0.1})),
    "groups": lambda: optax.multi_transform({"a": optax.adam(0.1), "b": optax.sgd(0.1)}, "a"),
    "injected": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
    "plateau": lambda: optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau()),
    "one function": lambda: optax.adam(schedule),
}


@pytest.mark.parametrize("name", ALIKE)
def test_made_alike_they_are_equal(name: str) -> None:
    first, second = (comparable(ALIKE[name]()) for _ in range(2))
    assert first == second and hash(first) == hash(second)
    assert first.transformation is not second.transformation


RATE: Any = np.full(1, 0.1)
ONE: Any = np.float32(1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: optax.adam(1e-3), lambda: optax.adam(1e-2)),
        (lambda: optax.adam(1e-3), lambda: optax.adamax(1e-3)),
        (lambda: optax.sgd(1), lambda: optax.sgd(1.0)),
        (lambda: optax.sgd(0.0), lambda: optax.sgd(-0.0)),
        (lambda: optax.sgd(ONE), lambda: optax.sgd(1.0)),
        (lambda: optax.sgd(0.1, momentum=0.0), lambda: optax.sgd(0.1, nesterov=True, momentum=0.0)),
        (
            lambda: optax.chain(optax.adam(0.1), optax.sgd(0.1)),
            lambda: optax.chain(optax.sgd(0.1), optax.adam(0.1)),
        ),
        # Made twice of code that could read other globals the second time.
        (lambda: optax.sgd(lambda count: RATE), lambda: optax.sgd(lambda count: RATE)),
        (lambda: optax.sgd(RATE), lambda: optax.sgd(2 * RATE)),
    ],
)
def test_others_differ(one: Callable[[], Any], other: Callable[[], Any]) -> None:
    assert comparable(one()) != comparable(other())


@functools.wraps(optax.constant_schedule)
def dressed(count: Any) -> Any:
    """A user's function under the name of one of optax."""
    return RATE


def test_a_function_of_the_users_is_never_taken_for_another() -> None:
    def made() -> Any:
        return optax.adam(lambda count: RATE)

    assert comparable(made()) != comparable(made())
    constant: Any = optax.constant_schedule
    assert comparable(optax.adam(dressed)) != comparable(optax.adam(constant))
    optimizer = made()
    assert comparable(optimizer) == comparable(optimizer)


@pytest.mark.slow
def test_one_made_anew_compiles_nothing_and_leaves_nothing_behind() -> None:
    graph = on_devices(small_graph(), 1)
    first = fit(SmallNet(), graph, optax.adam(0.05), epochs=2)
    sizes = [cache.cache_info().currsize for cache in (programs_of, _fresh)]
    optimizer, model = optax.adam(0.05), SmallNet()
    alive = [weakref.ref(optimizer.update), weakref.ref(model)]
    with compilations() as compiled:
        second = fit(model, graph, optimizer, epochs=2)
    assert not compiled
    assert second.loss == first.loss
    assert fit(SmallNet(), graph, optax.adam(0.01), epochs=2).loss[1] != first.loss[1]
    del optimizer, model
    gc.collect()
    assert [each() for each in alive] == [None, None]
    fit(SmallNet(), graph, optax.adam(0.05), epochs=1)
    grown = [cache.cache_info().currsize for cache in (programs_of, _fresh)]
    assert all(after - before <= 1 for before, after in zip(sizes, grown, strict=True))
