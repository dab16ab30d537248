"""The module of R-GCN: its parameters, what it computes, and what it refuses."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from jaxgraph.layers import rgcn_conv
from jaxgraph.nn import RGCNConv
from jaxgraph.nn.parameters import values
from jaxgraph.parallel import make_mesh, shard, spmd
from tests.layers.test_relational import IN, OUT, TYPES, typed_graph
from tests.parallel.typed_shards import scattered

SIZES: dict[str, Any] = {"in_features": IN, "out_features": OUT, "num_types": TYPES}


@pytest.mark.expensive
@pytest.mark.parametrize("matrices", [{}, {"num_bases": 3}, {"num_blocks": 2}])
def test_module_is_the_function_of_its_parameters(matrices: dict[str, Any]) -> None:
    graph = typed_graph(within=True)
    sharded = shard(graph, scattered(graph, 2), make_mesh(2))
    module = RGCNConv(**SIZES, **matrices, reduce="sum", rngs=nnx.Rngs(0))

    def found(module: Any, shard: Any) -> jax.Array:
        return module(shard.relation("knows"), shard.table("b").nodes)

    def expected(params: Any, shard: Any) -> jax.Array:
        return rgcn_conv(params, shard.relation("knows"), shard.table("b").nodes, reduce="sum")

    y = spmd(found, outputs="rows")(module, sharded)
    np.testing.assert_array_equal(y, spmd(expected, outputs="rows")(values(module), sharded))


def test_every_matrix_is_drawn_as_one_alone() -> None:
    module = RGCNConv(8, 8, num_types=200, rngs=nnx.Rngs(0))
    kernel = np.asarray(module.kernel.get_value())
    assert kernel.shape == (200, 8, 8)
    limit = np.sqrt(6 / 16)
    assert np.abs(kernel).max() <= limit and kernel.std() == pytest.approx(limit / 3**0.5, rel=0.02)
    traced = jax.jit(lambda: nnx.state(RGCNConv(8, 8, num_types=3, rngs=nnx.Rngs(0))))()
    assert traced["kernel"].get_value().shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("sizes", "match"),
    [
        ({"num_types": 0}, "num_types"),
        ({"num_bases": 0}, "num_bases"),
        ({"num_bases": 2, "num_blocks": 2}, "num_bases=2 and num_blocks=2"),
        ({"num_blocks": 5}, r"num_blocks=5 does not divide in_features=6"),
    ],
)
def test_wrong_numbers_are_named(sizes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        RGCNConv(**(SIZES | sizes), rngs=nnx.Rngs(0))
