"""Closed-over values become arguments, computed once outside of the loops."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.rewriting.hoist import hoist
from jaxgraph.parallel.mesh import make_mesh

FEATURES = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
WEIGHT = jnp.asarray(np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32))


def message(weight, scale):
    def evaluate(rows):
        mixed = jax.nn.relu(jnp.einsum("ij,jk->ik", rows, weight * 2 + 1))
        chosen = jnp.where(rows > 0, weight[0], rows)
        return {"mixed": mixed @ weight.T, "chosen": chosen * scale}

    return evaluate


def test_the_loop_body_holds_no_collective():
    mesh = make_mesh(2)

    def body(weight, rows):
        converted, params = hoist(message(weight, 3.0), match_variation(jnp.zeros_like(rows), rows))
        # Inside the chunk loops: the pullback with respect to the parameters.
        _, pull = jax.vjp(lambda p: converted(p, rows), params)
        inner = jax.make_jaxpr(lambda: pull(converted(params, rows)))()
        assert "psum" not in str(inner)
        return jax.lax.psum(jnp.sum(rows), "graph")

    mapped = jax.shard_map(body, mesh=mesh, in_specs=(P(), P("graph")), out_specs=P())
    jax.jit(mapped)(WEIGHT, jnp.asarray(FEATURES))


def test_functions_of_closed_over_values_alone_are_evaluated_once():
    converted, params = hoist(lambda x: x @ jnp.exp(WEIGHT), jnp.zeros((4, 3)))
    assert any(np.allclose(param, np.exp(WEIGHT)) for param in params)
    assert "exp" not in str(jax.make_jaxpr(converted)(params, jnp.ones((4, 3))))
