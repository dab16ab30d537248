"""Law 1 of message flow: layers that compute what the loss needs have the oracle's gradients."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from flax import nnx

from jaxgraph import Graph, train
from jaxgraph.parallel import ShardedGraph, make_mesh, shard
from tests.law.passes import TOLERANCE, WIDE, expected_pass, graph_of, parts_of
from tests.law.table import one_mode_each
from tests.oracles.models import Model
from tests.training import SEED, Pass, by_layer, gradient_errors, mode_options, module_of

MODELS = {
    "gcn": Model("gcn", dropout=0.4, activation="elu"),
    "gcn-residual": Model("gcn", residual=True, norm="layer", dropout=0.2),
    "gcn-jumping": Model("gcn", jumping="cat", residual=True, dropout=0.2),
    "sage": Model("sage"),
    "sage-max": Model("sage", reduce="max", residual=True),
    "gat": Model("gat", 2, dropout=0.4, activation="elu"),
    "gat-layer-norm": Model("gat", 3, residual=True, norm="layer", activation="elu", dropout=0.3),
    "gin": Model("gin", dropout=0.3),
    "gatv2": Model("gatv2", 2, dropout=0.3, norm="layer"),
    "gat-edges": Model("gat", 2, edge_features=2),
    "gine": Model("gine", dropout=0.4, activation="elu", edge_features=2),
    "transformer": Model("transformer", 2, residual=True, dropout=0.3),
    "pna": Model("pna", residual=True, dropout=0.2),
    "gcnii": Model("gcnii", dropout=0.2, activation="elu"),
}
LAYERS = {"gcn-jumping": 3, "gcnii": 4}
"""With the linear maps, which read no edges."""
TRAINED = [10, 50, 90, 117]


@cache
def with_few_trained(edges: bool, sparse: bool = False) -> Graph:
    """The crooked graph, of which few nodes have a loss."""
    graph = graph_of(edges=edges, sparse=sparse)
    mask = np.zeros(graph.num_nodes, bool)
    mask[TRAINED] = True
    return graph.replace(train_mask=mask, val_mask=None, test_mask=None)


def check(name: str, graph: Graph, sharded: ShardedGraph) -> None:
    """Loss and gradients of a step are the oracle's of all nodes."""
    params, expected = expected_pass(MODELS[name], graph, WIDE, LAYERS.get(name))
    module = module_of(MODELS[name], params, WIDE)
    loss, gradients = train.loss_and_grad(module, sharded, seed=SEED, train=True)
    nnx.update(module, gradients)
    found = Pass(float(loss), by_layer(module, nnx.Param), [])
    errors = gradient_errors(found, expected)
    worst = max(errors, key=lambda name: errors[name])
    assert errors[worst] <= TOLERANCE, f"{worst}: {errors[worst]:.3g}"


@pytest.mark.expensive
@pytest.mark.law(1)
@pytest.mark.parametrize(
    ("name", "mode"), one_mode_each([*MODELS], ["sar-3", "domain-2", "sar-1", "prefetch-3"])
)
def test_gradients(name: str, mode: str) -> None:
    model, (schedule, _, parts) = MODELS[name], mode.partition("-")
    graph, count = with_few_trained(model.edge_features > 0), int(parts)
    options, parts_of_graph = mode_options(schedule), parts_of(count, "hash")
    sharded = shard(graph, parts_of_graph, make_mesh(count), message_flow=2, **options)
    check(name, graph, sharded)


@pytest.mark.law(1)
@pytest.mark.parametrize("mode", ["sar", pytest.param("domain", marks=pytest.mark.slow)])
def test_gradients_of_sparse_features(mode: str) -> None:
    graph = with_few_trained(edges=False, sparse=True)
    given = graph.replace(nodes=sp.csr_array(np.asarray(graph.nodes)))
    sharded = shard(given, parts_of(3, "metis"), make_mesh(3), mode, message_flow=2)
    check("gcn", graph, sharded)
