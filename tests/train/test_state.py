"""Variables on the mesh and back."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph.parallel.spmd import collect_rows
from jaxgraph.train import initial_state
from jaxgraph.train.fit_state import abstract_state, restore
from jaxgraph.train.objective import split_model
from tests.train.small_model import SmallNet, TableNet, on_devices, small_graph

OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "adam": optax.adam(0.1),
    "adafactor": optax.adafactor(0.1, min_dim_size_to_factor=2),
    "clipped": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1)),
    "lookahead": optax.contrib.schedule_free_adamw(0.1),
}


def models() -> dict[str, nnx.Module]:
    return {"replicated": SmallNet(), "rows": TableNet(60)}


def described(tree: Any) -> list[tuple[Any, ...]]:
    return [(leaf.shape, leaf.dtype, leaf.sharding) for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["replicated", "rows"])
def test_the_abstract_state_describes_the_real_one(kind: str, name: str) -> None:
    model, sharded = models()[kind], on_devices(small_graph(), 4)
    state = initial_state(model, sharded, OPTIMIZERS[name])
    abstract = abstract_state(model, OPTIMIZERS[name], sharded)
    assert jax.tree.structure(state) == jax.tree.structure(abstract)
    assert described(state) == described(abstract)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("parts", [1, 4])
def test_the_state_is_no_alias_of_the_model(parts: int) -> None:
    model, sharded = SmallNet(), on_devices(small_graph(), parts)
    state = initial_state(model, sharded, optax.contrib.schedule_free_adamw(0.1))
    doubled = jax.jit(lambda tree: jax.tree.map(lambda x: x + x, tree), donate_argnums=0)(state)
    jax.block_until_ready(doubled)
    assert np.isfinite(np.asarray(model.first.kernel[...])).all()


@pytest.mark.parametrize("parts", [1, 3])
def test_restore_undoes_the_placing(parts: int) -> None:
    sharded = on_devices(small_graph(), parts)
    for kind, model in models().items():
        before = [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(model))]
        state = initial_state(model, sharded, optax.sgd(0.1))
        _, params, _ = split_model(model)
        nnx.update(model, jax.tree.map(jnp.zeros_like, params))
        restore(model, *collect_rows((state.params, state.statistics), sharded))
        after = jax.tree.leaves(nnx.state(model))
        for old, new in zip(before, after, strict=True):
            np.testing.assert_array_equal(old, np.asarray(new), err_msg=kind)
            assert len(new.devices()) == 1, kind
