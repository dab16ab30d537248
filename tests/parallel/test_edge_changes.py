"""Edge data that is replaced on a shard takes along what follows from it."""

import dataclasses
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgraph as jg
from jaxgraph.parallel import make_mesh, shard, spmd
from jaxgraph.train.aggregates import aggregate_once
from tests.oracles import convolutions
from tests.oracles.edges import Edges
from tests.oracles.tape import differentiate
from tests.strategies import random_edges
from tests.tolerance import assert_close
from tests.training import oracle_edges

NODES, EDGES, SCALE = 20, 90, 0.3
PLACES = [(1, 1, "sar"), (3, 3, "sar"), (3, 3, "domain"), (4, 2, "sar")]
"""Parts, devices and mode."""


@cache
def graph() -> jg.Graph:
    senders, receivers = random_edges(NODES, EDGES, seed=2)
    rng = np.random.default_rng(0)
    return jg.Graph(
        senders=senders,
        receivers=receivers,
        num_nodes=NODES,
        nodes=rng.normal(size=(NODES, 4)).astype(np.float32),
        edge_weight=rng.uniform(0.5, 1.5, EDGES).astype(np.float32),
        labels=rng.integers(0, 3, NODES),
        train_mask=np.ones(NODES, bool),
    )


def placed(parts: int, devices: int, mode: str) -> Any:
    partition = jg.partition.partition(graph(), parts, method="hash", seed=0)
    return shard(graph(), partition, make_mesh(devices), mode)


def changed(weight: Any, scale: Any, module: Any = jnp) -> Any:
    return weight * (1 + scale * module.sin(weight))


def total(scale: Any, params: Any) -> Any:
    """The sum of squares of GCN in float64, with weights that depend on a scale."""
    edges = oracle_edges(graph())
    edges = Edges.of(edges.senders, edges.receivers, NODES, changed(edges.weight, scale, np))
    y = convolutions.gcn(params, edges, np.asarray(graph().nodes, float))
    return (y**2).sum()


@pytest.mark.expensive
@pytest.mark.parametrize(("parts", "devices", "mode"), PLACES)
def test_degrees_and_gradients_follow_new_weights(parts: int, devices: int, mode: str) -> None:
    conv = jg.nn.GCNConv(4, 3, rngs=nnx.Rngs(0))
    kernel, bias = (np.asarray(each, float) for each in (conv.kernel[...], conv.bias[...]))

    def explained(scale: Any, own: Any) -> Any:
        def loss(scale: Any) -> Any:
            y = conv(own.replace(edge_weight=changed(own.edge_weight, scale)), own.nodes)
            return own.sum(jnp.sum(own.mask_rows(y) ** 2))

        return jax.value_and_grad(loss)(scale)

    found = spmd(explained)(jnp.float32(SCALE), placed(parts, devices, mode))
    expected, backward = differentiate(total, np.asarray(SCALE), {"kernel": kernel, "bias": bias})
    assert_close(found[0], expected, reduction_length=EDGES)
    assert_close(found[1], backward(1.0)[0], reduction_length=EDGES)


class Reweighted(nnx.Module):
    """A GCN on other weights, or on none."""

    def __init__(self, keep: bool) -> None:
        self.conv, self.keep = jg.nn.GCN(4, 8, 3, num_layers=1, rngs=nnx.Rngs(0)), keep

    @property
    def first_aggregation(self) -> Any:
        return self.conv.first_aggregation

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
        weight = changed(shard.edge_weight, SCALE) if self.keep else None
        return self.conv(shard.replace(edge_weight=weight), x)


@pytest.mark.expensive
@pytest.mark.parametrize("keep", [True, False])
def test_sums_made_before_are_not_used(keep: bool) -> None:
    weight = changed(graph().edge_weight, SCALE, np) if keep else None
    model, given = Reweighted(keep), graph().replace(edge_weight=weight)
    expected = jg.train.predict(model.conv, given)
    once = aggregate_once(model.conv, placed(3, 3, "sar"))
    for each in (graph(), once, placed(3, 1, "stream")):
        assert_close(jg.train.predict(model, each), expected, reduction_length=EDGES)


def on_shard(function: Any, mode: str = "sar") -> Any:
    return spmd(lambda own: function(own).degree, outputs="rows")(placed(2, 2, mode))


def test_fields_that_others_follow_from_are_not_replaced_alone() -> None:
    replace = dataclasses.replace
    with pytest.raises(TypeError, match="edge_weight"):
        on_shard(lambda own: replace(own, edge_weight=2 * own.edge_weight))


def test_what_cannot_be_replaced_is_refused() -> None:
    with pytest.raises(ValueError, match="replaces edges, edge_weight, edge_type, and got 'nodes'"):
        on_shard(lambda own: own.replace(nodes=own.nodes))
    with pytest.raises(
        ValueError, match=r"edge_weight has shape \[2\]; expected an entry for each"
    ):
        on_shard(lambda own: own.replace(edge_weight=jnp.ones(2)))


class Doubled(nnx.Module):
    """A convolution on doubled weights, of columns or of rows."""

    def __init__(self, of_rows: bool) -> None:
        self.conv, self.of_rows = jg.nn.GCNConv(4, 3, rngs=nnx.Rngs(0)), of_rows

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
        x = shard.to_nodes(x) if self.of_rows else x
        return self.conv(shard.replace(edge_weight=2 * shard.edge_weight), x)


def test_columns_of_p3_take_no_other_data() -> None:
    given, model = placed(2, 2, "p3"), Doubled(True)
    with pytest.raises(ValueError, match="replace no edge data of the shard before its first"):
        jg.train.predict(Doubled(False), given)
    weight = graph().edge_weight
    assert weight is not None
    expected = model.conv(graph().replace(edge_weight=2 * weight), graph().nodes)
    assert_close(jg.train.predict(model, given), expected, reduction_length=EDGES)
