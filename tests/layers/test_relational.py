"""R-GCN: values and gradients against float64, on one device and several, and what it refuses."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.layers import relational, rgcn_conv
from jaxgraph.parallel import gather_rows, make_mesh, shard, spmd
from jaxgraph.typed_graph import TypedGraph
from tests.layers.convolution_cases import adjoint
from tests.oracles.tape import Value, differentiate, sum_at
from tests.parallel.typed_shards import scattered
from tests.tolerance import assert_close

NODES, OTHERS, EDGES, TYPES, IN, OUT = 53, 31, 400, 7, 6, 4


def typed_graph(*, within: bool, weighted: bool = False) -> TypedGraph:
    rng = np.random.default_rng(1)
    senders = NODES if within else OTHERS
    edges = {
        "senders": rng.integers(0, senders, EDGES),
        "receivers": rng.integers(0, NODES, EDGES),
        "edge_type": rng.choice([0, 1, 2, 3, 6], EDGES),  # 4 and 5 have no edge.
    }
    edges["receivers"][: EDGES // 4] = 3  # A hub, and equal edges.
    if weighted:
        edges["edge_weight"] = rng.uniform(0.5, 2, EDGES)
    nodes = {"b": {"nodes": rng.normal(size=(NODES, IN))}}
    if not within:
        nodes = {"a": {"nodes": rng.normal(size=(OTHERS, IN))}} | nodes
    return TypedGraph(nodes, {("b" if within else "a", "knows", "b"): edges})


def params_of(kind: str) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    shapes: dict[str, Any] = {
        "kernel": {"kernel": (TYPES, IN, OUT)},
        "bases": {"bases": (3, IN, OUT), "coefficients": (TYPES, 3)},
        "blocks": {"blocks": (TYPES, 2, IN // 2, OUT // 2)},
    }
    found = shapes[kind] | {"self_kernel": (IN, OUT), "bias": (OUT,)}
    return {n: rng.normal(size=s).astype(np.float32) for n, s in found.items()}


def oracle(edges: Any, params: Any, x: Any) -> Any:
    """The sum over the edges of each type, its matrix, and the own rows; x has both ends' rows."""
    of_senders, of_receivers = x
    weight = np.ones(EDGES) if edges.edge_weight is None else edges.edge_weight.astype(float)
    y = of_receivers @ params["self_kernel"] + params["bias"]
    for kind in range(TYPES):
        own = np.flatnonzero(edges.edge_type == kind)
        receivers = edges.receivers[own]
        counts = np.maximum(np.bincount(receivers, minlength=NODES), 1)[:, None]
        sent = of_senders[edges.senders[own]] * weight[own][:, None]
        mean = sum_at(receivers, sent, NODES) * (1 / counts)
        if "kernel" in params:
            y = y + mean @ params["kernel"][kind]
        elif "bases" in params:
            for basis in range(3):
                mapped = mean @ params["bases"][basis]
                y = y + mapped * params["coefficients"][kind][basis]
        else:
            half = IN // 2
            for block in range(2):
                columns = np.eye(OUT)[block * 2 : block * 2 + 2]
                part = mean @ np.eye(IN)[:, block * half : (block + 1) * half]
                y = y + part @ params["blocks"][kind][block] @ columns
    return y


@pytest.mark.expensive
@pytest.mark.parametrize(("mode", "parts"), [("sar", 1), ("sar", 3), ("domain", 3), ("sar", 4)])
@pytest.mark.parametrize("kind", ["kernel", "bases", "blocks"])
@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
def test_layer_equals_the_oracle(
    mode: str, parts: int, kind: str, within: bool, weighted: bool
) -> None:
    graph, params = typed_graph(within=within, weighted=weighted), params_of(kind)
    sharded = shard(graph, scattered(graph, parts), make_mesh(parts), mode)

    def step(params: Any, shard: Any) -> Any:
        relation = shard.relation("knows")
        tables = [relation.senders, relation.receivers]
        x = [jnp.where(t.node_mask[:, None], t.nodes, jnp.nan) for t in tables]

        def loss(params: Any, x: Any) -> Any:
            y = rgcn_conv(params, relation, x[0] if within else tuple(x))
            weighed = y * adjoint(relation.receivers.node_ids, OUT)
            return relation.sum(jnp.sum(relation.receivers.mask_rows(weighed))), y

        run = jax.value_and_grad(loss, (0, 1), has_aux=True)
        (_, y), (of_params, of_x) = run(params, x)
        return y, of_params, [t.mask_rows(g) for t, g in zip(tables, of_x, strict=True)]

    y, of_params, of_x = spmd(step, outputs=("rows", "replicated", "rows"))(params, sharded)
    edges, names = next(iter(graph.edge_sets.values())), ("b" if within else "a", "b")
    doubles = {name: np.float64(value) for name, value in params.items()}
    given = [np.float64(graph.node_sets[name].nodes) for name in names]
    rows, pull = differentiate(partial(oracle, edges), doubles, given)
    grads, of_ends = pull(adjoint(np.arange(NODES), OUT))
    assert_close(gather_rows(y, sharded, "b"), rows, reduction_length=EDGES)
    for name, gradient in grads.items():
        assert_close(of_params[name], gradient, reduction_length=EDGES, name=name)
    if within:
        of_ends, of_x = [of_ends[0] + of_ends[1]], of_x[:1]
    for name, found, gradient in zip(names, of_x, of_ends, strict=False):
        assert_close(gather_rows(found, sharded, name), gradient, reduction_length=EDGES)


def test_a_sum_is_a_mean_without_its_count() -> None:
    graph = typed_graph(within=True)
    sharded = shard(graph, None, make_mesh(1))
    kernel = jnp.eye(IN)[None].repeat(TYPES, 0)

    def layer(shard: Any) -> Any:
        return rgcn_conv({"kernel": kernel}, shard.relation(), shard.table("b").nodes, reduce="sum")

    found = gather_rows(spmd(layer, outputs="rows")(sharded), sharded, "b")
    (edges,) = graph.edge_sets.values()
    expected = np.zeros((NODES, IN))
    np.add.at(expected, edges.receivers, graph.node_sets["b"].nodes[edges.senders])
    assert_close(found, expected, reduction_length=EDGES)


def dense(graph: TypedGraph, reduce: str) -> np.ndarray:
    """[types, nodes, nodes], the weights of the rows of senders in those of receivers."""
    (edges,) = graph.edge_sets.values()
    found = np.zeros((TYPES, NODES, NODES))
    assert edges.edge_type is not None
    np.add.at(found, (edges.edge_type, edges.receivers, edges.senders), 1)
    counts = np.maximum(found.sum(axis=2, keepdims=True), 1)
    return found / counts if reduce == "mean" else found


@pytest.mark.expensive
@pytest.mark.parametrize(("mode", "parts"), [("sar", 3), ("domain", 2)])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("shape", [(TYPES, 1, 7, 5), (TYPES, 2, 3, 4)])
def test_rows_of_pairs_are_mapped_some_columns_at_a_time(
    mode: str, parts: int, reduce: str, shape: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relational, "_COLUMNS", 2)
    graph = typed_graph(within=True)
    sharded = shard(graph, scattered(graph, parts), make_mesh(parts), mode)
    types, blocks, width, out = shape
    rng = np.random.default_rng(5)
    matrices = rng.normal(size=shape).astype(np.float32)
    x = rng.normal(size=(NODES, blocks * width)).astype(np.float32)

    def step(matrices: Any, shard: Any) -> Any:
        table = shard.table("b")
        rows = jnp.asarray(x)[table.node_ids]

        def loss(matrices: Any, rows: Any) -> Any:
            params = {"blocks": matrices}
            y = rgcn_conv(params, shard.relation("knows"), rows, reduce=reduce)
            weighed = y * adjoint(table.node_ids, blocks * out)
            return table.sum(jnp.sum(table.mask_rows(weighed))), y

        (_, y), grads = jax.value_and_grad(loss, (0, 1), has_aux=True)(matrices, rows)
        return y, grads[0], table.mask_rows(grads[1])

    y, of_matrices, of_x = spmd(step, outputs=("rows", "replicated", "rows"))(matrices, sharded)
    weights, g = dense(graph, reduce), adjoint(np.arange(NODES), blocks * out)
    summed = (weights @ x).reshape(types, NODES, blocks, width)
    expected = np.einsum("tnbi,tbio->nbo", summed, matrices).reshape(NODES, -1)
    assert_close(gather_rows(y, sharded, "b"), expected, reduction_length=EDGES)
    by_block = np.asarray(g, np.float64).reshape(NODES, blocks, out)
    expected = np.einsum("tnbi,nbo->tbio", summed, by_block)
    assert_close(of_matrices, expected, reduction_length=EDGES)
    pulled = np.einsum("tnm,nbo,tbio->mbi", weights, by_block, matrices).reshape(NODES, -1)
    assert_close(gather_rows(of_x, sharded, "b"), pulled, reduction_length=EDGES)


def test_the_backward_saves_no_row_of_a_pair() -> None:
    graph = typed_graph(within=True)
    sharded, params = shard(graph, None, make_mesh(1)), params_of("kernel")
    saved = []

    def step(params: Any, shard: Any) -> Any:
        relation, x = shard.relation("knows"), shard.table("b").nodes
        _, pull = jax.vjp(lambda params, x: rgcn_conv(params, relation, x), params, x)
        saved.extend(leaf.shape for leaf in jax.tree.leaves(pull))
        return len(relation.pairs.types)

    pairs = int(spmd(lambda p, s: jnp.asarray(step(p, s)), outputs="replicated")(params, sharded))
    assert (sharded.shards.table("b").num_rows, IN) in {shape[-2:] for shape in saved}
    assert not [shape for shape in saved if pairs in shape and len(shape) > 1]


@pytest.mark.parametrize("implementation", [None, "xla"])
def test_forward_mode_of_the_gradient(implementation: Any) -> None:
    graph = typed_graph(within=True)
    sharded = shard(graph, None, make_mesh(1), implementation=implementation)
    params = params_of("kernel")
    direction = jax.tree.map(np.ones_like, params)

    @spmd
    def loss(params: Any, shard: Any) -> Any:
        table = shard.table("b")
        y = rgcn_conv(params, shard.relation("knows"), table.nodes)
        return table.sum(jnp.sum(table.mask_rows(jnp.tanh(y / 9)) ** 2))

    gradient = jax.grad(loss)
    found = jax.jvp(lambda p: gradient(p, sharded), (params,), (direction,))[1]
    step = 1e-2
    ends = [
        gradient(jax.tree.map(lambda p, d, s=s: p + s * d, params, direction), sharded)
        for s in (step, -step)
    ]
    for name, value in found.items():
        difference = (ends[0][name] - ends[1][name]) / (2 * step)
        np.testing.assert_allclose(value, difference, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(("mode", "parts"), [("sar", 1), ("domain", 3)])
def test_without_edges_rows_are_mapped_alone(mode: str, parts: int) -> None:
    nodes, params = typed_graph(within=True).node_sets, params_of("kernel")
    nothing = {"senders": [], "receivers": [], "edge_type": np.zeros(0, np.int32)}
    graph = TypedGraph(nodes, {("b", "knows", "b"): nothing})
    sharded = shard(graph, scattered(graph, parts), make_mesh(parts), mode)

    def layer(shard: Any) -> Any:
        return rgcn_conv(params, shard.relations["knows"], shard.tables["b"].nodes)

    found = gather_rows(spmd(layer, outputs="rows")(sharded), sharded, "b")
    expected = nodes["b"].nodes @ params["self_kernel"] + params["bias"]
    assert_close(found, expected, reduction_length=IN)


def test_the_compiled_step_has_no_array_of_all_edges() -> None:
    graph = typed_graph(within=True)
    sharded = shard(graph, scattered(graph, 2), make_mesh(2))
    params = params_of("kernel")

    @spmd
    def loss(params: Any, shard: Any) -> Any:
        table = shard.table("b")
        y = rgcn_conv(params, shard.relation("knows"), table.nodes)
        return table.sum(jnp.sum(table.mask_rows(y) ** 2))

    text = str(jax.jit(jax.grad(loss)).lower(params, sharded).compile().as_text())
    slots = sharded.shards.relation("knows").edge_slots
    assert f"f32[{slots},{IN}]" not in text and f"f32[{slots},{OUT}]" not in text


def test_mistakes_are_named() -> None:
    graph, params = typed_graph(within=True), params_of("kernel")
    shards: Any = shard(graph, None, make_mesh(1)).shards
    x, relation = shards.table("b").nodes, shards.relation("knows")
    few = params | {"kernel": params["kernel"][:5]}
    with pytest.raises(ValueError, match=r"the edges have 7 types.*matrices for 5.*num_types=7"):
        rgcn_conv(few, relation, x)
    with pytest.raises(ValueError, match="expected kernel, or bases and coefficients, or blocks"):
        rgcn_conv({"bias": params["bias"]}, relation, x)
    with pytest.raises(ValueError, match="reduce is 'max'"):
        rgcn_conv(params, relation, x, reduce="max")
    edges = {"senders": [0], "receivers": [1]}
    plain = TypedGraph({"b": {"nodes": np.ones((2, IN))}}, {("b", "knows", "b"): edges})
    with pytest.raises(ValueError, match=r"edges have types.*edge_type=.*shard.relation"):
        rgcn_conv(params, shard(plain, None, make_mesh(1)).shards.relation(), x)


def test_the_tape_is_that_of_numpy() -> None:
    """The oracle itself, on numbers: a guard against a gradient that only the tape has."""
    graph = typed_graph(within=True)
    (edges,) = graph.edge_sets.values()
    doubles = {name: np.float64(value) for name, value in params_of("bases").items()}
    x = [np.float64(graph.node_sets["b"].nodes)] * 2
    plain: Any = oracle(edges, doubles, x)
    rows, _ = differentiate(partial(oracle, edges), doubles, x)
    assert not isinstance(plain, Value)
    np.testing.assert_allclose(plain, rows)
