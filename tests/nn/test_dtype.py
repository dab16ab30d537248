"""16-bit models: the arrays stored in 16 bits, the arrays that are not, and equal results."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxgraph as jg
from jaxgraph import nn
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel import ShardedGraph, make_mesh, place, spmd
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.partition import partition
from jaxgraph.train import compile_train_step, loss_and_grad, predict
from tests.compilation import equations
from tests.nn.test_convolutions import MODULES as CONVOLUTIONS
from tests.nn.test_convolutions import make
from tests.oracles.models import Model
from tests.strategies import NUM_CLASSES, NUM_FEATURES
from tests.tolerance import tolerance
from tests.training import (
    SEED,
    Pass,
    by_layer,
    crooked_graph,
    crooked_sharded,
    gradient_errors,
    module_of,
    oracle_pass,
    random_params,
)

SHORT = jnp.bfloat16
NODES = 8192
"""Width of the graph whose memory is counted."""
MODELS = {
    "gcn": Model("gcn", residual=True, norm="layer"),
    "sage": Model("sage", dropout=0.3),
    "sage-max": Model("sage", reduce="max"),
    "gat": Model("gat", 2, norm="layer", activation="elu"),
    "gat-dropout": Model("gat", 2, activation="elu", dropout=0.3),
    "gatv2": Model("gatv2", 2),
    "gin": Model("gin", residual=True),
    "transformer": Model("transformer", 2),
    "appnp": Model("appnp"),
    "gcnii": Model("gcnii", activation="elu", jumping="cat"),
    "pna": Model("pna"),
}


# ------------------------------------------------------------------ values and gradients


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("name", "num_parts", "mode"),
    [
        ("gcn", 1, "sar"),
        ("gat-dropout", 1, "sar"),
        ("sage", 3, "domain"),
        ("sage-max", 3, "domain"),
        ("gatv2", 3, "domain"),
        ("gin", 3, "sar"),
        ("gat", 3, "sar"),
        ("gcn", 3, "prefetch"),
        *(
            pytest.param(name, 3, "sar", marks=pytest.mark.slow)
            for name in ("transformer", "appnp", "gcnii", "pna")
        ),
    ],
)
def test_gradients_are_of_32_bits_and_near_the_reference(
    name: str, num_parts: int, mode: str
) -> None:
    model = MODELS[name]
    params = random_params(model)
    module = module_of(model, params, dtype=SHORT)
    sharded = crooked_sharded(num_parts, "hash", mode)
    loss, gradients = loss_and_grad(module, sharded, seed=SEED, train=True)
    described = [jax.tree.map(describe, tree) for tree in (gradients, nnx.state(module, nnx.Param))]
    assert described[0] == described[1]
    assert {dtype for _, dtype in jax.tree.leaves(described[0], is_leaf=is_pair)} == {"float32"}
    graphdef, _, rest = nnx.split(module, nnx.Param, ...)
    gradient = by_layer(nnx.merge(graphdef, gradients, rest), nnx.Param)
    expected = replace(oracle_pass(model, params, crooked_graph()), statistics=[])
    errors = gradient_errors(Pass(float(loss), gradient, []), expected)
    for index, layer in enumerate(expected.gradients):
        # A term that a receiver adds to all its logits hardly changes a softmax: this gradient is
        # the small difference of terms as large as those of the senders.
        sender, receiver = (layer["conv"].get(f"attention_{end}") for end in ("sender", "receiver"))
        if receiver is not None and sender is not None:
            errors[f"{index}/conv/attention_receiver"] *= (
                np.abs(receiver).max() / np.abs(sender).max()
            )
    # Activations are rounded after each of the four products of a pass, and must be.
    assert 1e-4 < max(errors.values()) <= tolerance(SHORT, 4), errors


def describe(leaf: Any) -> tuple[tuple[int, ...], str]:
    return leaf.shape, leaf.dtype.name


def is_pair(part: Any) -> bool:
    return isinstance(part, tuple)


def test_outputs_are_of_32_bits_for_the_loss() -> None:
    wide, short = (model_of("GAT", dtype=dtype) for dtype in (None, SHORT))
    sharded = crooked_sharded(2, "hash", "sar")
    rows = predict(short, sharded)
    assert rows.dtype == np.float32
    exact = np.abs(rows - predict(wide, sharded)).max()
    assert 0 < exact <= tolerance(SHORT)


def model_of(name: str, **options: Any) -> Any:
    own: dict[str, Any] = {"num_heads": 2} if name.startswith("GAT") else {}
    own |= {"delta": 1.0} if name == "PNA" else {}
    own |= {"num_layers": 2} if name == "GCNII" else {}
    return getattr(nn, name)(
        NUM_FEATURES, 4, NUM_CLASSES, rngs=nnx.Rngs(0), **own | {"norm": "layer"} | options
    )


@pytest.mark.expensive
@pytest.mark.parametrize(
    "name",
    [
        *("GCN", "GraphSAGE", "GIN", "GAT", "GATv2", "DeepGCN"),
        *("Transformer", "APPNP", "GCNII", "PNA"),
    ],
)
def test_without_a_type_a_model_computes_in_that_of_its_input(name: str) -> None:
    graphdef, state = nnx.split(model_of(name))

    def step(state: Any, shard: Any) -> list[jax.Array]:
        model = nnx.merge(graphdef, state)
        return [model(shard, shard.nodes.astype(dtype)) for dtype in (SHORT, jnp.float32)]

    outputs = jax.eval_shape(spmd(step, outputs="rows"), state, crooked_sharded(2, "hash", "sar"))
    assert [rows.dtype for rows in outputs] == [SHORT, jnp.float32]


# ------------------------------------------------------------------ what is stored and sent


@pytest.mark.expensive
@pytest.mark.parametrize("mode", ["domain", "sar"])
@pytest.mark.parametrize("name", ["GCN", "GraphSAGE", "GIN", "GATv2"])
def test_rows_are_sent_in_16_bits_and_sums_over_devices_taken_in_32(name: str, mode: str) -> None:
    """Counted in the program as written: the CPU compiler sends 16 bits as 32."""
    graphdef, params = nnx.split(model_of(name, num_layers=3, dtype=SHORT))

    def step(params: Any, shard: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            y = nnx.merge(graphdef, params)(shard, shard.nodes)
            return shard.sum(jnp.sum(shard.mask_rows(y) ** 2))

        return jax.grad(loss)(params)

    traced = jax.jit(spmd(step)).trace(params, crooked_sharded(3, "hash", mode))
    summed, sent = set(), set()
    for equation in equations(traced.jaxpr.jaxpr):
        name, arrays = equation.primitive.name, [variable.aval for variable in equation.invars]
        floating = [each for each in arrays if jnp.issubdtype(each.dtype, jnp.floating)]
        if name.startswith("psum"):
            summed |= {each.dtype for each in floating}
        elif name in ("ppermute", "all_to_all"):
            sent |= {each.dtype for each in floating if each.shape[-1] >= 4}
    assert summed == {jnp.dtype(jnp.float32)}
    assert sent == {jnp.dtype(SHORT)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_parts", "mode"),
    [("GraphSAGE", 1, "sar"), ("GCN", 4, "domain")],
)
def test_a_layer_keeps_half_the_memory(name: str, num_parts: int, mode: str) -> None:
    """A deeper model saves more residuals; in 16 bits the increase is half as large.

    Within a layer, CPU computes products in 32 bits, whatever their type.
    """
    wide, short = (
        temporary_bytes(name, 5, dtype, num_parts, mode)
        - temporary_bytes(name, 3, dtype, num_parts, mode)
        for dtype in (None, SHORT)
    )
    block = NODES // num_parts * 64 * 4
    assert wide >= 1.9 * block
    assert short <= 0.6 * wide


@pytest.mark.slow
def test_attention_keeps_little_memory() -> None:
    """In 32 bits one array per layer; in 16 bits two, which differ by the bias, and wider ones."""

    def per_layer(dtype: Any) -> float:
        deep, shallow = (temporary_bytes("GAT", layers, dtype, 1, "sar") for layers in (5, 3))
        return (deep - shallow) / 2 / (NODES * 64 * 4)

    assert per_layer(None) < 1.6
    assert per_layer(SHORT) < 2


def temporary_bytes(name: str, num_layers: int, dtype: Any, num_parts: int, mode: str) -> int:
    """The bytes of temporary memory of a compiled train step on each device."""
    heads = {"num_heads": 4} if name == "GAT" else {}
    model = getattr(nn, name)(
        64,
        16 if heads else 64,
        8,
        num_layers=num_layers,
        norm="batch",
        dtype=dtype,
        rngs=nnx.Rngs(0),
        **heads,
    )
    compiled = compile_train_step(model, wide_graph(num_parts, mode), optax.sgd(0.1))
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


@cache
def wide_graph(num_parts: int, mode: str) -> ShardedGraph:
    """Shapes of a graph with 64 features."""
    graph = jg.datasets.load("random", num_nodes=NODES, degree=8, num_features=64, seed=0)
    parts = partition(graph, num_parts, method="hash", seed=0)
    source = AbstractSource(tabulate(graph, parts, mode).manifest)
    return place(source, make_mesh(num_parts), mode)


# ------------------------------------------------------------------ parameters

MODULES: dict[str, Any] = {name: partial(make, name) for name in CONVOLUTIONS}
MODULES |= {
    "NodeEmbedding": partial(nn.NodeEmbedding, 5, 3),
    "GCN": partial(nn.GCN, 4, 6, 3, norm="batch", residual=True),
    "GAT": partial(nn.GAT, 4, 6, 3, norm="layer", residual=True),
    "DeepGCN": partial(nn.DeepGCN, 4, 6, 3, norm="batch"),
}


@pytest.mark.parametrize("name", MODULES)
def test_the_type_of_parameters(name: str) -> None:
    make_it = MODULES[name]
    rngs: Any = {} if name in CONVOLUTIONS else {"rngs": nnx.Rngs(0)}
    for param_dtype in (jnp.float32, jnp.float16):
        module = make_it(param_dtype=param_dtype, **rngs)
        params = jax.tree.leaves(nnx.state(module, nnx.Param))
        assert {leaf.dtype for leaf in params} == {jnp.dtype(param_dtype)}
        statistics = jax.tree.leaves(nnx.state(module, nnx.BatchStat))
        assert all(leaf.dtype == jnp.float32 for leaf in statistics)
    short = make_it(dtype=SHORT, **rngs)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(nnx.state(short))} == {"float32"}


@pytest.mark.parametrize("norm", [nn.BatchNorm, nn.LayerNorm])
def test_norms_learn_in_32_bits(norm: Any) -> None:
    assert norm(4, dtype=SHORT).scale.get_value().dtype == jnp.float32
    assert norm(4, param_dtype=SHORT).scale.get_value().dtype == SHORT


@pytest.mark.parametrize("name", ["GCN", "NodeEmbedding", "DeepGCN"])
def test_types_that_are_not_floating_are_refused(name: str) -> None:
    make_it, rngs = MODULES[name], nnx.Rngs(0)
    for wrong in ("int8", "bfloat", 16):
        with pytest.raises(ValueError, match=r"^dtype is .*; expected None, .* floating type"):
            make_it(dtype=wrong, rngs=rngs)
    with pytest.raises(ValueError, match="param_dtype is None; expected a floating type"):
        make_it(param_dtype=None, rngs=rngs)


def test_an_embedding_is_read_in_16_bits() -> None:
    embedding = nn.NodeEmbedding(120, 3, dtype=SHORT, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(embedding)
    placed = jg.parallel.place_rows(state, crooked_sharded(2, "hash", "sar"))

    def rows(state: Any, shard: Any) -> jax.Array:
        return nnx.merge(graphdef, state)(shard)

    read = spmd(rows, outputs="rows")(placed, crooked_sharded(2, "hash", "sar"))
    assert read.dtype == SHORT
