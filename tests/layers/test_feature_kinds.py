"""A kind of features that the library does not know goes through its layers and models."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgraph import layers, nn
from jaxgraph.parallel import gather_rows, spmd
from jaxgraph.parallel.feature_protocol import FeatureKind
from pallas_kernels.pytrees import pytree
from tests.layers.neighborhood_cases import WIDE
from tests.strategies import NUM_FEATURES
from tests.tolerance import assert_close
from tests.training import crooked_sharded

RNG = np.random.default_rng(13)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape, np.float32)


TABLE: Any = jnp.asarray(normal(7, NUM_FEATURES))
KEY = jax.random.key(3)


@pytree
class RepeatedRows(FeatureKind):
    """Node i has row index[i] of a table."""

    values: Any
    index: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.index), self.values.shape[1]

    def astype(self, dtype: Any) -> Any:
        return dataclasses.replace(self, values=self.values.astype(dtype))

    def masked(self, nodes: Any) -> Any:
        zero = jnp.zeros_like(self.values[:1])
        index = jnp.where(nodes.node_mask, self.index, len(self.values))
        return RepeatedRows(jnp.concatenate((self.values, zero)), index)

    def times(self, by: str, kernel: jax.Array) -> jax.Array:
        return (self.values @ kernel)[self.index]

    def rows(self, purpose: str) -> jax.Array:
        return self.values[self.index]


def dropped_and_mapped(params: Any, shard: Any, x: Any) -> jax.Array:
    return layers.linear(shard, layers.dropout(shard, x, KEY, rate=0.4), params["kernel"])


VECTORS = {f"attention_{end}": normal(1, 3) for end in ("sender", "receiver")}
KERNEL = {"kernel": normal(NUM_FEATURES, 3)}
LAYERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "dropout": (dropped_and_mapped, KERNEL),
    "gat": (layers.gat_conv, KERNEL | VECTORS),
    "appnp": (lambda params, shard, x: layers.appnp_propagate(shard, x), {}),
}
for name, width in (("narrow", 3), ("wide", WIDE)):
    first, second = normal(NUM_FEATURES, width), normal(NUM_FEATURES, width)
    LAYERS |= {
        f"gcn-{name}": (layers.gcn_conv, {"kernel": first}),
        f"sage-{name}": (layers.sage_conv, {"self_kernel": first, "neighbor_kernel": second}),
        f"gin-{name}": (
            layers.gin_conv,
            {"eps": np.float32(0.5), "first_kernel": first, "second_kernel": normal(width, 2)},
        ),
    }


@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_their_gradients(name: str) -> None:
    layer, params = LAYERS[name]

    def step(params: Any, shard: Any) -> Any:
        def loss(params: Any, x: Any) -> Any:
            y = shard.mask_rows(layer(params, shard, x))
            return shard.sum(jnp.sum(y * jnp.sin(shard.node_ids)[:, None])), y

        x = RepeatedRows(TABLE, shard.node_ids % len(TABLE))
        found = [jax.grad(loss, has_aux=True)(params, each) for each in (x, x.rows("a test"))]
        return [y for _, y in found], [gradient for gradient, _ in found]

    sharded = crooked_sharded(2, "hash", "sar")
    rows, gradients = spmd(step, outputs=("rows", "replicated"))(params, sharded)
    close = partial(assert_close, reduction_length=500)
    close(*(gather_rows(each, sharded) for each in rows))
    jax.tree.map(close, *gradients)


@pytest.mark.parametrize("model", [nn.GCN, nn.GAT, nn.GIN])
def test_models(model: Any) -> None:
    built = model(NUM_FEATURES, 6, 3, norm="layer", dtype=jnp.float32, rngs=nnx.Rngs(0))

    def step(model: Any, shard: Any) -> list[jax.Array]:
        x = RepeatedRows(TABLE, shard.node_ids % len(TABLE))
        return [model(shard, each) for each in (x, x.rows("a test"))]

    sharded = crooked_sharded(2, "hash", "domain")
    y, expected = (
        gather_rows(each, sharded) for each in spmd(step, outputs="rows")(built, sharded)
    )
    assert_close(y, expected, reduction_length=500)
    assert np.abs(y).max() > 0.1
