"""Digests of models, tasks and optimizers: by what they are, in every process alike."""

import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph.layers import RematPolicy
from jaxgraph.nn import GCN, NodeEmbedding
from jaxgraph.train import NodeClassification
from jaxgraph.train.identity import definition, differing, of_run
from tests.conftest import ROOT
from tests.train.small_model import SmallNet

OPTIMIZER = optax.adam(1e-2)


def net(**options: Any) -> GCN:
    return GCN(4, 8, 3, **{"dropout": 0.5, "rngs": nnx.Rngs(0)} | options)


def found(model: Any = None, optimizer: Any = OPTIMIZER, task: Any = None) -> dict[str, str]:
    return of_run(model or net(), optimizer, task or NodeClassification())


def power(exponent: int) -> Any:
    return lambda x: x**exponent


@pytest.mark.parametrize(
    ("other", "names"),
    [
        ({"model": net(dropout=0.9)}, ["model.dropout"]),
        ({"model": net(activation=jnp.tanh)}, ["model.activation"]),
        ({"model": net(activation=lambda x: x)}, ["model.activation"]),
        ({"task": NodeClassification(label_smoothing=0.1)}, ["task.label_smoothing"]),
        ({"task": NodeClassification((1.0, 2.0, 1.0))}, ["task.class_weights"]),
        ({"optimizer": optax.adamw(1e-2)}, ["optimizer"]),
        ({"optimizer": optax.nadam(1e-2)}, ["optimizer"]),
        ({"optimizer": optax.chain(optax.clip(1.0), OPTIMIZER)}, ["optimizer"]),
    ],
)
def test_what_differs_is_named(other: dict[str, Any], names: list[str]) -> None:
    assert differing(found(), found(**other)) == names


def test_the_type_of_activations_is_named() -> None:
    assert "model.dtype" in differing(found(), found(net(dtype=jnp.bfloat16)))


def test_the_set_of_learned_rows_is_named() -> None:
    one, other = (NodeEmbedding(5, 2, table=name, rngs=nnx.Rngs(0)) for name in ("a", "b"))
    assert differing(found(one), found(other)) == ["model.rows"]


@pytest.mark.parametrize(
    "other",
    [
        {"model": net(rngs=nnx.Rngs(5))},
        {"model": net(policy=RematPolicy())},
        {"optimizer": optax.adam(0.3, b1=0.8)},
        {"optimizer": optax.adam(jnp.float32(0.3))},
    ],
)
def test_what_may_change_does_not_count(other: dict[str, Any]) -> None:
    assert not differing(found(), found(**other))


def test_a_schedule_is_a_learning_rate() -> None:
    one, other = optax.cosine_decay_schedule(0.1, 5), optax.exponential_decay(0.2, 5, 0.5)
    assert not differing(found(optimizer=optax.adam(one)), found(optimizer=optax.adam(other)))


def test_functions_without_a_name_count_by_their_code() -> None:
    assert definition(power(2)) == definition(power(2)) != definition(power(3))
    assert definition(lambda x: x * 2) == definition(lambda x: x * 2)
    assert definition(lambda x: x * 2) != definition(lambda x: x + 2)
    assert definition(jax.jit(lambda x: x * 2)) != definition(jax.jit(lambda x: x + 2))


def test_numbers_and_arrays_count_by_their_bits() -> None:
    assert len({definition(x) for x in (0, 0.0, -0.0, np.float32(0), False, "0")}) == 6
    assert definition(np.zeros(2)) != definition(np.zeros(3))
    assert definition(np.zeros(2, np.float32)) == definition(jnp.zeros(2))
    assert definition(jax.random.key(0)) != definition(jax.random.key(1))


PROGRAM = """
import jax.numpy as jnp, optax
from flax import nnx
from jaxgraph.train.identity import definition
from tests.train.test_identity import found, net, power
model = net(activation=power(2))
model.names = frozenset(("one", "two", "three", "four"))
optimizer = optax.adam(optax.cosine_decay_schedule(0.1, 5))
print(found(model), definition(optimizer), definition([nnx.relu, jnp.tanh, object()]))
"""


def test_digests_are_the_same_in_every_process() -> None:
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    runs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env=environment | {"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        )
        for seed in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout and "model.names" in runs[0].stdout


def test_a_class_of_its_own_counts_by_its_name() -> None:
    assert differing(found(SmallNet()), found(SmallNet(dropout=0.5))) == ["model.dropout"]
    assert "model" in differing(found(SmallNet()), found(net()))
