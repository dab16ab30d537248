"""Training of the library's own models."""

from typing import Any

import jax
import optax
import pytest
from flax import nnx

from jaxgraph import nn
from jaxgraph.train import fit, predict
from tests.tolerance import assert_close
from tests.train.small_model import CLASSES, FEATURES, on_devices, small_graph

OPTIMIZER = optax.adam(0.01)


class Both(nnx.Module):
    """Features and a row of a table of every node."""

    def __init__(self, num_nodes: int) -> None:
        self.embedding = nn.NodeEmbedding(num_nodes, FEATURES, rngs=nnx.Rngs(0))
        self.first = nn.GINConv(FEATURES, FEATURES, rngs=nnx.Rngs(1))
        self.model = nn.GCN(FEATURES, 8, CLASSES, rngs=nnx.Rngs(0))

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> jax.Array:
        x = jax.nn.tanh(self.first(shard, x)) + self.embedding(shard)
        return self.model(shard, x, key=key, train=train)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GIN", "GATv2", "DeepGCN", "GCN", "GraphSAGE", "GAT"])
def test_batch_norm_leaves_adam_no_rounding_to_step_by(name: str) -> None:
    """Compares outputs, not losses, which a bias that the norm cancels does not change."""
    graph, found = small_graph(), []
    for parts in (1, 4):
        # With this seed no hidden unit of GIN is on for all nodes: its bias would shift all alike.
        model = getattr(nn, name)(FEATURES, 8, CLASSES, norm="batch", rngs=nnx.Rngs(1))
        sharded = on_devices(graph, parts)
        fit(model, sharded, OPTIMIZER, epochs=4)
        found.append(predict(model, sharded))
    assert_close(found[1], found[0], reduction_length=240)


@pytest.mark.slow
def test_devices_that_share_slices_of_features_train_the_same_model() -> None:
    """On a mesh of two axes; a variable with a row per node among the parameters."""
    graph = small_graph()
    whole = on_devices(graph, 1)
    shared = on_devices(graph, 4, mode="p3", rest="sar", topology="pushed", feature_budget=4900)
    schedule = shared.manifest.columns
    assert schedule is not None and (schedule.groups, schedule.replicas) == (2, 2)
    models = [Both(graph.num_nodes), Both(graph.num_nodes)]
    alone = fit(models[0], whole, OPTIMIZER, epochs=5)
    together = fit(models[1], shared, OPTIMIZER, epochs=5)
    assert_close(together.loss, alone.loss, reduction_length=60)
    found = [predict(model, shared) for model in models]
    assert_close(found[1], found[0], reduction_length=60)


def test_a_model_that_cannot_start_on_columns_is_named() -> None:
    class Normalised(nnx.Module):
        def __init__(self) -> None:
            self.norm = nn.BatchNorm(FEATURES)
            self.model = nn.GCN(FEATURES, 8, CLASSES, rngs=nnx.Rngs(0))

        def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
            return self.model(shard, self.norm(shard, x, train=train), key=key, train=train)

    sharded = on_devices(small_graph(), 2, mode="p3")
    message = r"first layer of Normalised cannot be split .* batch normalisation needs"
    with pytest.raises(ValueError, match=message):
        fit(Normalised(), sharded, OPTIMIZER, epochs=1)
    wide = nn.GCN(FEATURES + 1, 8, CLASSES, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=f"in_features={FEATURES + 1}, but the nodes"):
        fit(wide, sharded, OPTIMIZER, epochs=1)
