"""Parameters drawn by one program for all shapes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgraph import nn, saga
from jaxgraph.graph import Graph
from jaxgraph.nn.parameters import fan_in_kernel, kernel
from tests.tolerance import assert_close


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("shape", [(4, 3), (300, 299)])
@pytest.mark.parametrize(
    ("maker", "initializer"),
    [
        (kernel, nnx.initializers.glorot_uniform()),
        (fan_in_kernel, nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")),
    ],
)
def test_numbers_are_those_of_the_initializer(
    maker: Any, initializer: Any, shape: tuple[int, int], dtype: Any
) -> None:
    """Fewer and more than are drawn at once, and those of a model made under `jit`."""
    made = maker(nnx.Rngs(3), *shape, dtype).get_value()
    expected = initializer(nnx.Rngs(3).params(), shape, dtype)
    traced = jax.jit(lambda: maker(nnx.Rngs(3), *shape, dtype).get_value())()
    assert made.dtype == dtype
    assert_close(made, expected, dtype=dtype)
    assert_close(traced, expected, dtype=dtype)


def test_another_shape_compiles_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rngs = nnx.Rngs(0)
    kernel(rngs, 8, 8)
    with jax.log_compiles():
        kernel(rngs, 7, 9)
        assert "compilation" not in caplog.text
        jax.jit(lambda x: x + 1)(jnp.zeros(3))
    assert "compilation" in caplog.text


def test_habits_that_would_do_nothing_are_errors() -> None:
    graph = Graph.from_edges([0, 1], [1, 0], nodes=np.ones((2, 3)))
    conv = nn.GCNConv(3, 2, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match="positional"):
        conv(graph, graph.nodes, np.ones(2))  # pyright: ignore[reportCallIssue]
    for module in (conv, nn.GCN(3, 4, 2, dropout=0.5, rngs=nnx.Rngs(0))):
        with pytest.raises(ValueError, match="train=True and a random key in the call"):
            module.train()
    with pytest.raises(TypeError, match="positional"):
        nn.GAT(3, 4, 2, 7, rngs=nnx.Rngs(0))  # pyright: ignore[reportCallIssue]
    with pytest.raises(ValueError, match="activation is 'relu'; expected an elementwise function"):
        nn.GAT(3, 4, 2, activation="relu", rngs=nnx.Rngs(0))  # pyright: ignore[reportArgumentType]


HUGE: Any = {
    "gcn": lambda rngs: nn.GCN(4, 10**12, 3, rngs=rngs),
    "sage": lambda rngs: nn.SAGEConv(10**12, 3, rngs=rngs),
    "attention": lambda rngs: nn.TransformerConv(4, 10**12, num_heads=2, rngs=rngs),
    "embedding": lambda rngs: nn.NodeEmbedding(10**12, 4, rngs=rngs),
    "norm": lambda _: nn.BatchNorm(10**13),
    "linear": lambda rngs: nn.Linear(10**6, 10**9, param_dtype=jnp.bfloat16, rngs=rngs),
    "saga": lambda rngs: saga.CommConv(4, 10**12, rngs=rngs),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_parameter_beyond_the_memory_is_refused_before_it_is_drawn(name: str) -> None:
    with pytest.raises(ValueError, match=r"a parameter \[.*0{6}.*\] of .*: needs [\d,]+ bytes"):
        HUGE[name](nnx.Rngs(0))
    shapes = jax.eval_shape(lambda: nnx.split(HUGE[name](nnx.Rngs(0)))[1])
    assert max(leaf.size for leaf in jax.tree.leaves(shapes)) >= 10**12
