"""Edge data that a layer would ignore is refused, with advice."""

from typing import Any

import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph import nn
from jaxgraph.parallel import make_mesh, place, propagate
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.train import compile_train_step, fit, predict
from tests.train.small_model import (
    CLASSES,
    FEATURES,
    SmallNet,
    on_devices,
    small_graph,
)

EDGES = small_graph().num_edges
DATA: dict[str, Any] = {
    "edge_weight": np.full(EDGES, 0.5, np.float32),
    "edges": np.ones((EDGES, 2), np.float32),
    "edge_type": np.zeros(EDGES, np.int32),
}
USED = ("GCN", "DeepGCN", "GraphSAGE", "GIN")
"""The models that use `edge_weight`."""


def make(name: str) -> nnx.Module:
    return getattr(nn, name)(FEATURES, 4, CLASSES, rngs=nnx.Rngs(0))


@pytest.mark.expensive
@pytest.mark.parametrize("field", DATA)
@pytest.mark.parametrize(
    "name", ["GCN", "DeepGCN", "GraphSAGE", "GIN", "GAT", "GATv2", "Transformer"]
)
def test_models_use_edge_data_or_refuse_it(name: str, field: str) -> None:
    graph, model = small_graph(), make(name)
    given = on_devices(graph.replace(**{field: DATA[field]}), 2)
    if field == "edge_weight" and name in USED:
        plain = predict(model, on_devices(graph, 2))
        assert np.abs(predict(model, given) - plain).max() > 1e-3
        return
    message = rf"does not use {field} of the graph.*graph\.replace\({field}=None\)"
    with pytest.raises(ValueError, match=message):
        fit(model, given, optax.sgd(0.1), epochs=100)
    with pytest.raises(ValueError, match=message):
        predict(model, given)
    abstract = place(AbstractSource(given.manifest), make_mesh(2))
    with pytest.raises(ValueError, match=message):
        compile_train_step(model, abstract, optax.sgd(0.1))


def test_columns_of_features_are_refused_alike() -> None:
    given = on_devices(small_graph(edge_weight=DATA["edge_weight"]), 2, mode="p3")
    with pytest.raises(ValueError, match=r"gat_conv does not use edge_weight.* use edge_weight"):
        fit(make("GAT"), given, optax.sgd(0.1), epochs=100)


def test_one_layer_of_a_model_can_be_given_a_shard_without() -> None:
    """A layer that uses `propagate` is not asked."""

    class Mixed(nnx.Module):
        def __init__(self) -> None:
            self.sage = nn.SAGEConv(FEATURES, CLASSES, rngs=nnx.Rngs(0))

        def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
            weighted = propagate(
                shard, lambda s, r, e: s * e[:, None], x, edge=shard.edge_weight, reduce="sum"
            )
            return self.sage(shard.replace(edge_weight=None), weighted)

    graph = small_graph(edge_weight=DATA["edge_weight"])
    assert predict(Mixed(), on_devices(graph, 2)).shape == (graph.num_nodes, CLASSES)
    predict(SmallNet(), on_devices(graph, 2))
