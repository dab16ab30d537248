"""Training under jax's strict settings: no implicit rank promotion, no implicit transfer."""

from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph import nn
from jaxgraph.parallel import make_mesh, shard
from jaxgraph.partition import partition
from jaxgraph.train import evaluate, fit, loss_and_grad, predict
from tests.strategies import NUM_CLASSES
from tests.training import crooked_graph

CASES: dict[str, tuple[str, int, str, dict[str, Any], dict[str, Any]]] = {
    "kernels": ("GraphSAGE", 1, "sar", {"norm": "batch", "dropout": 0.5}, {}),
    "two graphs": ("GCN", 1, "sar", {}, {}),
    "XLA on one device": ("GAT", 1, "sar", {"dropout": 0.5}, {"implementation": "xla"}),
    "XLA on two": ("GATv2", 2, "sar", {"norm": "layer"}, {"implementation": "xla"}),
    "domain": ("GIN", 2, "domain", {"norm": "batch"}, {"implementation": "xla"}),
    "by column": ("GCN", 2, "p3", {}, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_training_under_strict_settings(case: str) -> None:
    name, parts, mode, of_model, of_shard = CASES[case]
    graph = crooked_graph(60)
    assert graph.nodes is not None
    model: Any = getattr(nn, name)(
        graph.nodes.shape[1], 8, NUM_CLASSES, rngs=nnx.Rngs(0), **of_model
    )
    parted = partition(graph, parts, "hash")
    with jax.numpy_rank_promotion("raise"), jax.transfer_guard("disallow"):
        sharded = shard(graph, parted, make_mesh(parts), mode=mode, **of_shard)
        graphs = [sharded, sharded] if case == "two graphs" else sharded
        history = fit(model, graphs, optax.adam(0.1), epochs=1)
        metrics = evaluate(model, graphs)
        outputs = predict(model, sharded)
        loss = float(jax.device_get(loss_and_grad(model, sharded)[0]))
    assert np.isfinite([history.records[-1].loss, metrics["train"]["loss"], loss]).all()
    assert outputs.shape == (graph.num_nodes, NUM_CLASSES)
