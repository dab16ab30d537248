"""Sparse features: what is computed of them equals the oracle's, which has them dense."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse as sp
from flax import nnx

import jaxgraph as jg
from jaxgraph import Graph, layers, nn
from jaxgraph.layout.placed import placed_part
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel import (
    ShardedGraph,
    SparseFeatures,
    common_shapes,
    gather_rows,
    make_mesh,
    place,
    propagate,
    ptags,
    shard,
    spmd,
)
from jaxgraph.parallel.assembly import assemble
from jaxgraph.parallel.part_alone import part_alone
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.partition import Partition, partition
from jaxgraph.train.aggregates import with_aggregates
from pallas_kernels.teams import Launch
from tests.law.passes import check, sparse_features
from tests.oracles.models import Model
from tests.pallas_kernels.graphs import in_interpreter
from tests.tolerance import assert_close
from tests.training import crooked_graph, mode_options

WIDE = 29


@cache
def pair(
    parts: int, devices: int, mode: str, node_dtype: Any = None
) -> tuple[ShardedGraph, ShardedGraph]:
    """The same graph with sparse features, and with dense ones."""
    graph = crooked_graph()
    features = sparse_features(graph.num_nodes)
    split, mesh = partition(graph, parts, method="hash", seed=0), make_mesh(devices)
    options = mode_options(mode) | {"node_dtype": node_dtype}
    sparse, dense = (
        shard(graph.replace(nodes=nodes), split, mesh, **options)
        for nodes in (sp.csr_array(features), features)
    )
    return sparse, dense


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("parts", "devices", "mode"), [(1, 1, "sar"), (6, 2, "domain"), (4, 4, "p3-sar")]
)
def test_what_dropout_keeps_is_what_it_keeps_of_dense_features(
    parts: int, devices: int, mode: str
) -> None:
    """Bit by bit, in both orders: the map by ones counts, and its gradient sums columns."""

    def step(key: jax.Array, kernel: jax.Array, own: Any) -> Any:
        def loss(kernel: jax.Array) -> Any:
            y = layers.linear(own, layers.dropout(own, own.nodes, key, rate=0.4), kernel)
            return own.sum(jnp.sum(own.mask_rows(y))), y

        (_, y), of_kernel = jax.value_and_grad(loss, has_aux=True)(kernel)
        return y, of_kernel

    run = spmd(step, outputs=("rows", "replicated"))
    sparse, dense = pair(parts, devices, mode)
    key, kernel = jax.random.key(5), jnp.eye(WIDE)
    y, of_kernel = run(key, kernel, sparse)
    expected, of_dense = run(key, kernel, dense)
    np.testing.assert_array_equal(gather_rows(y, sparse), gather_rows(expected, dense))
    assert_close(of_kernel, of_dense, reduction_length=120)
    kept = np.count_nonzero(np.asarray(y)) / np.count_nonzero(sparse_features(120))
    assert 0.5 < kept < 0.7


def narrow(columns: int, zero: bool = False) -> np.ndarray:
    return sparse_features(120, columns) * (not zero)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sar", "p3-domain"])
@pytest.mark.parametrize(
    "features",
    [narrow(2), narrow(9, zero=True), 1 + np.random.default_rng(0).random((120, 3), np.float32)],
    ids=["two-columns", "no-non-zeros", "all-non-zeros"],
)
def test_special_features_and_a_part_without_nodes(features: np.ndarray, mode: str) -> None:
    graph = crooked_graph().replace(nodes=features)
    parts = Partition.from_assignment(np.zeros(120, np.int32), 2)
    check(
        Model("sage", norm="batch", activation="elu"), graph, parts, make_mesh(2), mode, sparse=True
    )


@pytest.mark.slow
def test_a_plain_graph_takes_its_own_matrix_and_any_other() -> None:
    graph, features = crooked_graph(), sparse_features(120)
    sparse = graph.replace(nodes=sp.csr_array(features))
    conv: Any = nn.GATConv(WIDE, 4, rngs=nnx.Rngs(0))
    for x, dense in ((sparse.nodes, features), (sp.coo_matrix(2 * features), 2 * features)):
        assert_close(conv(sparse, x), conv(graph, dense), reduction_length=1000)
    kernel = jnp.ones((WIDE, 2))
    gcn: Any = layers.gcn_conv
    loss = jax.jit(lambda k: jnp.sum(gcn({"kernel": k}, sparse, sparse.nodes) ** 2))
    expected = jax.grad(lambda k: jnp.sum(gcn({"kernel": k}, graph, features) ** 2))(kernel)
    assert_close(jax.grad(loss)(kernel), expected, reduction_length=1000)
    # Of a square, the product of its Hessian with the point is its gradient there.
    product = jax.jvp(jax.grad(loss), (kernel,), (kernel,))[1]
    assert_close(product, expected, reduction_length=1000)


def test_values_of_16_bits_are_rounded_as_dense_ones() -> None:
    sparse, dense = pair(2, 2, "sar", jnp.bfloat16)
    assert isinstance(sparse.shards.nodes, SparseFeatures)
    assert sparse.shards.nodes.dtype == jnp.bfloat16
    kernel = jnp.linspace(-1, 1, WIDE * 3).reshape(WIDE, 3)
    run = spmd(lambda own, k: layers.linear(own, own.nodes, k), outputs="rows")
    y, expected = (run(each, kernel) for each in (sparse, dense))
    assert y.dtype == jnp.bfloat16
    assert_close(y, expected, dtype=jnp.bfloat16)


def test_no_array_of_all_features_is_made() -> None:
    """Of nodes and features: not by the step, in 16 bits or with dropout, nor as an argument."""
    graph, columns = crooked_graph(1000), 509
    features = sp.random_array((1000, columns), density=0.01, rng=np.random.default_rng(0))
    graph = graph.replace(nodes=features)
    dense = graph.replace(nodes=features.toarray())
    held = []
    for each, dtype in ((graph, None), (graph, jnp.bfloat16), (dense, None)):
        model = nn.GraphSAGE(columns, 8, 3, norm="batch", dtype=dtype, rngs=nnx.Rngs(0))
        sharded = shard(each, partition(each, 2, method="hash"), make_mesh(2))
        step: Any = jg.train.compile_train_step(model, sharded, optax.sgd(0.1))
        memory, rows = step.memory_analysis(), sharded.shards.manifest.node_rows
        size = memory.argument_size_in_bytes + memory.temp_size_in_bytes
        held.append((f"{rows},{columns}]" in step.as_text(), size < rows * columns * 4))
    assert held == [(False, True), (False, True), (True, False)]


def test_shapes_are_shared_and_compile_without_data() -> None:
    graph = crooked_graph()
    matrix = sp.csr_array(sparse_features(120))
    more = sp.csr_array(sparse_features(120, share=0.3))
    graphs = [graph.replace(nodes=nodes) for nodes in (matrix, more)]
    split, mesh = partition(graph, 2, method="hash"), make_mesh(2)
    shapes = common_shapes(*((each, split) for each in graphs), headroom=0.1)
    run: Any = jax.jit(spmd(lambda own, k: own.nodes @ k, outputs="rows"))
    kernel = jnp.eye(WIDE, 3)
    for each in graphs:
        sharded = shard(each, split, mesh, pad_to=shapes)
        expected = present(each.nodes).toarray()[:, :3]
        np.testing.assert_array_equal(gather_rows(run(sharded, kernel), sharded), expected)
    assert run._cache_size() == 1
    run.lower(place(AbstractSource(shapes), mesh), kernel).compile()
    with pytest.raises(ValueError, match=r"does not fit into pad_to: .*features/"):
        shard(graphs[1], split, mesh, pad_to=shard(graphs[0], split, mesh))
    with pytest.raises(ValueError, match=r"sparse features and one without.*toarray"):
        shard(graph, split, mesh, pad_to=shapes)
    with pytest.raises(ValueError, match="sparse features have 7 columns in one graph and 29"):
        shard(graph.replace(nodes=matrix[:, :7]), split, mesh, pad_to=shapes)


def test_a_part_alone_has_its_own_rows() -> None:
    sparse, dense = pair(2, 2, "domain")
    part, other = (part_alone(each, 1).receivers for each in (sparse, dense))
    assert isinstance(part.nodes, SparseFeatures)
    y = jax.jit(lambda nodes: nodes @ jnp.eye(WIDE))(part.nodes)
    np.testing.assert_array_equal(y, other.nodes)


def present(nodes: Any) -> sp.csr_array:
    assert isinstance(nodes, sp.csr_array)
    return nodes


ROWS_NEEDED: dict[str, Callable[[Any, Any], Any]] = {
    "reduce='max' needs": lambda own, x: layers.sage_conv(
        {"self_kernel": jnp.ones((WIDE, 2)), "neighbor_kernel": jnp.ones((WIDE, 2))},
        own,
        x,
        reduce="max",
    ),
    "propagate: sender needs": lambda own, x: propagate(own, lambda s, r, e: s, x),
    "scatter needs": lambda own, x: ptags.scatter(own, x),
    "to_nodes needs": lambda own, x: own.to_nodes(x),
    "layer normalisation needs": lambda own, x: nn.LayerNorm(WIDE)(own, x),
    "a residual connection needs": lambda own, x: nn.GCN(
        WIDE, WIDE, 2, residual=True, rngs=nnx.Rngs(0)
    )(own, x),
}


@pytest.mark.parametrize("mode", ["sar", "p3-sar"])
@pytest.mark.parametrize("name", ROWS_NEEDED)
def test_where_rows_are_needed_the_error_says_what_to_do(name: str, mode: str) -> None:
    sharded = pair(1, 1, mode)[0]
    with pytest.raises(TypeError, match=r"nn\.Linear first") as error:
        spmd(lambda own: ROWS_NEEDED[name](own, own.nodes), outputs="rows")(sharded)
    assert name in str(error.value) and "graph.nodes.toarray()" in str(error.value)


def test_other_misuse() -> None:
    sharded, _ = pair(1, 1, "sar")
    graph, linear = crooked_graph(), cast("Any", layers.linear)
    with pytest.raises(ValueError, match=r"x is a SciPy matrix.*pass shard\.nodes"):
        spmd(lambda own: linear(own, sp.eye_array(3), jnp.eye(3)))(sharded)
    with pytest.raises(ValueError, match="x has 29 features, but the kernel has shape"):
        spmd(lambda own: linear(own, own.nodes, jnp.eye(3)))(sharded)
    with pytest.raises(ValueError, match="x is a SparseFeatures; expected an array"):
        spmd(lambda own: jg.ops.aggregate(own, own.nodes), outputs="rows")(sharded)
    with pytest.raises(ValueError, match=r"got shape \[3, 3\]; expected \[120, any\]"):
        linear(graph, sp.eye_array(3), jnp.eye(3))
    model = nn.GCN(WIDE, 4, 3, rngs=nnx.Rngs(0))
    assert with_aggregates(model, (sharded,), 1000) == (sharded,)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["GCN", "GAT"])
def test_cora_trains_as_with_dense_features(model: str, data_dir: Path) -> None:
    graph = jg.datasets.load("cora", data_dir=data_dir)
    nodes = present(graph.nodes)
    curves = []
    for x in (nodes, nodes.toarray()):
        sharded = shard(graph.replace(nodes=x), None, make_mesh(1))
        net = getattr(nn, model)(graph.num_features, 16, 7, dropout=0.5, rngs=nnx.Rngs(0))
        curves.append(list(jg.train.fit(net, sharded, optax.adam(0.01), epochs=4).loss))
    np.testing.assert_allclose(curves[0], curves[1], rtol=2e-5)


@pytest.mark.slow
def test_kernels_of_a_gpu_sum_over_the_non_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Pallas' interpreter: the map and its gradient, whose values come in the other order."""
    monkeypatch.setattr(Launch, "here", in_interpreter)
    features = sparse_features(40, 9)
    graph = Graph.from_edges([0], [1], nodes=sp.csr_array(features))
    source = tabulate(graph, partition(graph, 1), "sar")
    arrays: Any = placed_part(source, source.manifest, 0, "mosaic_gpu")
    x = assemble(arrays, source.manifest, (), False, "mosaic_gpu", 1).nodes
    assert isinstance(x, SparseFeatures)
    kernel, gradient = jnp.asarray(features[:9, :8]), jnp.asarray(features[:, :8])
    y, pull = jax.vjp(lambda kernel: x @ kernel, kernel)
    assert_close(y, features @ kernel, reduction_length=9)
    assert_close(pull(gradient)[0], features.T @ gradient, reduction_length=40)
