"""One training pass of a row of the law: expected by the oracle, found in any mode."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp
from flax import nnx
from jax.sharding import Mesh

from jaxgraph import Graph
from jaxgraph.parallel import ShardedGraph, shard
from jaxgraph.parallel.streaming.graph import StreamedGraph
from jaxgraph.partition import Partition, partition
from jaxgraph.train.classification import NodeClassification
from jaxgraph.train.objective import split_model
from jaxgraph.train.passes import StreamedPasses
from tests.oracles.models import Model
from tests.training import (
    SEED,
    Pass,
    by_layer,
    crooked_graph,
    gradient_errors,
    mode_options,
    module_of,
    oracle_pass,
    random_params,
    sharded_pass,
)

TOLERANCE = 2e-5
WIDE = 29
"""Features: some counts of devices map them before they aggregate under P3, others after it."""


def sparse_features(num_nodes: int, columns: int = WIDE, share: float = 0.12) -> np.ndarray:
    """Random features, most of them zero; a node and a column are without any."""
    rng = np.random.default_rng(9)
    values = rng.standard_normal((num_nodes, columns)).astype(np.float32)
    values *= rng.random(values.shape) < share
    values[5], values[:, 7 % columns] = 0, 0
    return values


@cache
def graph_of(weights: bool = False, edges: bool = False, sparse: bool = False) -> Graph:
    """The crooked graph with these data; mostly zero features where they are to be sparse."""
    graph = crooked_graph(edge_weight=weights, edges=edges, num_features=WIDE)
    return graph.replace(nodes=sparse_features(graph.num_nodes)) if sparse else graph


@cache
def parts_of(num_parts: int, method: str) -> Partition:
    """By a method of `partition`, or by hash with the nodes of each part in another order."""
    order = "rcm" if method == "reordered" else None
    method = "hash" if method == "reordered" else method
    return partition(crooked_graph(), num_parts, method=method, seed=0, order=order)


@cache
def expected_pass(
    model: Model, graph: Graph, num_features: int, num_layers: int | None
) -> tuple[Any, Pass]:
    """Parameters, and the oracle's pass."""
    params = random_params(model, num_layers, num_features)
    return params, oracle_pass(model, params, graph)


def check(
    model: Model,
    graph: Graph,
    parts: Partition,
    mesh: Mesh,
    mode: str,
    *,
    sparse: bool = False,
    num_layers: int | None = None,
    implementation: str | None = None,
) -> None:
    """Loss, gradients and running statistics of one pass in a mode are the oracle's.

    Sparse: the library gets the graph's features, which are dense, as a sparse matrix.
    """
    given = graph.replace(nodes=sp.csr_array(np.asarray(graph.nodes))) if sparse else graph
    options = mode_options(mode)
    sharded = shard(given, parts, mesh, implementation=implementation, **options)
    check_pass(model, graph, sharded, num_layers)


def check_pass(
    model: Model, graph: Graph, sharded: ShardedGraph, num_layers: int | None = None
) -> None:
    """One pass on a sharded graph equals the oracle's on the graph."""
    width = np.shape(graph.nodes)[1]
    params, expected = expected_pass(model, graph, width, num_layers)
    found = pass_of(module_of(model, params, width), sharded)
    errors = gradient_errors(found, expected)
    worst = max(errors, key=lambda name: errors[name])
    assert errors[worst] <= TOLERANCE, f"{worst}: {errors[worst]:.3g}"


def pass_of(module: Any, sharded: ShardedGraph) -> Pass:
    """One pass in training: by `spmd`, or streamed."""
    if not isinstance(sharded, StreamedGraph):
        return sharded_pass(module, sharded)
    key, task = jax.random.key(SEED), NodeClassification()
    split = split_model(module)
    run = StreamedPasses(sharded).gradient(split, key, task, True)
    (loss, _, statistics), gradients = run.value_and_grad(*split[1:], key)
    nnx.update(module, gradients, statistics)
    running = [layer["norm"] for layer in by_layer(module, nnx.BatchStat) if layer]
    return Pass(float(loss), by_layer(module, nnx.Param), running)
