"""First layers of models with a known aggregate, and the traffic and memory of their steps."""

from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph import nn
from jaxgraph.analysis import traffic
from jaxgraph.analysis.hlo import num_bytes, parse
from jaxgraph.layers.aggregated import FirstAggregation
from jaxgraph.layers.aggregations import NeighborReduction, SymmetricSum
from jaxgraph.nn.layer import layer_keys
from jaxgraph.parallel import ShardedGraph, make_mesh, shard
from jaxgraph.partition import partition
from jaxgraph.train import compile_inference, compile_train_step
from jaxgraph.train.aggregates import aggregate_once
from tests.cpu_kernels import needs_kernels
from tests.strategies import NUM_CLASSES, NUM_FEATURES
from tests.training import crooked_graph, crooked_sharded

MEAN, MAX = NeighborReduction("mean"), NeighborReduction("max")
WIDE = 2 * NUM_FEATURES
WIDE_NODES, WIDTH, HEADS = 2000, 64, 2


def make(name: str, hidden: int = 3, **options: Any) -> Any:
    return getattr(nn, name)(NUM_FEATURES, hidden, NUM_CLASSES, rngs=nnx.Rngs(0), **options)


@pytest.mark.parametrize(
    ("name", "options", "aggregation", "width"),
    [
        ("GCN", {}, SymmetricSum(), 3),
        ("GCN", {"hidden": WIDE, "add_self_loops": False}, SymmetricSum(False), NUM_FEATURES),
        ("DeepGCN", {}, SymmetricSum(), 3),
        ("GraphSAGE", {}, MEAN, 3),
        ("GraphSAGE", {"reduce": "max"}, MAX, NUM_FEATURES),
        ("GIN", {"hidden": WIDE}, NeighborReduction("sum"), NUM_FEATURES),
    ],
)
def test_aggregations_without_parameters(
    name: str, options: dict[str, Any], aggregation: Any, width: int
) -> None:
    maps_follow = name != "GIN"
    for dropout, in_training in ((0.0, True), (0.1, False)):
        found = make(name, **options, dropout=dropout).first_aggregation
        behind = name == "GraphSAGE" and in_training
        assert found == FirstAggregation(aggregation, width, in_training, maps_follow, behind)


@pytest.mark.parametrize(
    ("name", "hidden"), [("GAT", 3), ("GATv2", 3), ("GIN", 3), ("GIN", NUM_FEATURES)]
)
def test_models_that_save_nothing(name: str, hidden: int) -> None:
    """Attention has parameters; GIN would map its own features apart from the sum."""
    assert make(name, hidden=hidden).first_aggregation is None


def halo_bytes(compiled: Any) -> float:
    """The bytes of features and their gradients that a program sends."""
    return sum(value for name, value in traffic(compiled).items() if name != "all-reduce")


def sent(model: Any, sharded: ShardedGraph) -> tuple[float, float]:
    """Bytes of halos in a training step and in inference."""
    step = compile_train_step(model, sharded, optax.sgd(0.1))
    return halo_bytes(step), halo_bytes(compile_inference(model, sharded))


@pytest.mark.expensive
@pytest.mark.parametrize("mode", ["sar", "domain", "prefetch"])
@pytest.mark.parametrize("name", ["GCN", "GraphSAGE"])
def test_the_first_layer_sends_nothing(name: str, mode: str) -> None:
    sharded = crooked_sharded(4, "hash", mode)
    one = make(name, num_layers=1)
    assert min(sent(one, sharded)) > 0
    assert sent(one, aggregate_once(one, sharded)) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sar", "domain"])
def test_the_other_layers_send_what_they_sent(mode: str) -> None:
    """The second layer of a deep model is as wide as the first, and sends half of the total."""
    sharded = crooked_sharded(4, "hash", mode)
    model = make("GCN", hidden=NUM_CLASSES, norm="batch")
    plain, aggregated = sent(model, sharded), sent(model, aggregate_once(model, sharded))
    assert [2 * each for each in aggregated] == list(plain)


@pytest.mark.expensive
@pytest.mark.parametrize("name", ["GCN", "GraphSAGE"])
def test_a_step_holds_no_copy_of_aggregated_features(name: str) -> None:
    """Temporary memory does not grow with the width of the features."""

    def temporary(features: int) -> int:
        graph = crooked_graph()
        nodes = np.ones((graph.num_nodes, features), np.float32)
        sharded = shard(graph.replace(nodes=nodes), None, make_mesh(1))
        model = getattr(nn, name)(features, 3, NUM_CLASSES, rngs=nnx.Rngs(0))
        step = compile_train_step(model, aggregate_once(model, sharded), optax.sgd(0.1))
        memory = step.memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    rows = crooked_graph().num_nodes * np.dtype(np.float32).itemsize
    assert temporary(200) - temporary(100) < 100 * rows / 2


def wide_step(
    name: str, num_layers: int, parts: int = 1, norm: str | None = None
) -> tuple[Any, ShardedGraph]:
    """A compiled training step under SAR whose layers but the last are 64 features wide."""
    graph = crooked_graph(WIDE_NODES)
    graph = graph.replace(nodes=np.ones((WIDE_NODES, WIDTH), np.float32))
    by = partition(graph, parts, method="metis", seed=0)
    sharded = shard(graph, by, make_mesh(parts), mode="sar")
    heads = HEADS if name.startswith("GAT") else 1
    options: Any = {"num_heads": heads} if heads > 1 else {}
    options |= {"num_layers": num_layers, "norm": norm, "rngs": nnx.Rngs(0)}
    model = getattr(nn, name)(WIDTH, WIDTH // heads, NUM_CLASSES, **options)
    return compile_train_step(model, sharded, optax.sgd(0.1)), sharded


def arrays_of_a_step(name: str, num_layers: int, *options: Any) -> float:
    """Temporary memory of a training step, in arrays with 64 features per node of a device."""
    step, sharded = wide_step(name, num_layers, *options)
    memory = step.memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes / (WIDE_NODES // sharded.num_parts * WIDTH * 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GAT", "GATv2"])
def test_a_hidden_layer_of_attention_keeps_what_it_puts_out(name: str) -> None:
    """Neither its inputs nor their products are saved for the backward: 3 or 4 arrays."""
    assert arrays_of_a_step(name, 5, 1) - arrays_of_a_step(name, 3, 1) < 2 * 2.4


@pytest.mark.expensive
@pytest.mark.parametrize("name", ["GCN", "GraphSAGE"])
def test_a_layer_keeps_what_its_activation_puts_out(name: str) -> None:
    """Nothing else is saved; with the activation's input and its mask there would be 3 arrays."""
    more = arrays_of_a_step(name, 5) - arrays_of_a_step(name, 3)
    assert more < 2 * 1.1


@pytest.mark.expensive
@pytest.mark.parametrize("name", ["GCN", "GraphSAGE"])
def test_a_layer_keeps_two_arrays_with_a_batch_norm(name: str) -> None:
    """It saves the norm's input and the activation's output; a third would exceed the limit."""
    deep, shallow = (arrays_of_a_step(name, layers, 1, "batch") for layers in (5, 3))
    assert deep - shallow < 2 * 2.1


@pytest.mark.expensive
@pytest.mark.parametrize(("name", "arrays"), [("GCN", 9.2), ("GraphSAGE", 8.3)])
def test_a_batch_norm_in_parts_keeps_its_input_alone(name: str, arrays: float) -> None:
    """Autodiff would save the centred values: one array more during a recomputation."""
    assert arrays_of_a_step(name, 3, 2, "batch") < arrays


@pytest.mark.slow
def test_a_step_of_gat_keeps_one_array_per_layer() -> None:
    deep, shallow = (arrays_of_a_step("GAT", layers, 1) for layers in (5, 3))
    assert deep - shallow < 2 * 1.1
    assert deep < 6.9


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arrays"), [("GAT", 7.2), ("GATv2", 9.6)])
def test_attention_in_parts_makes_its_inputs_when_they_are_needed(name: str, arrays: float) -> None:
    """Computed once for the whole backward of a layer, they would take 7.5 or 11 arrays or more."""
    assert arrays_of_a_step(name, 3, 2) < arrays


@pytest.mark.expensive
@needs_kernels
@pytest.mark.parametrize("mode", ["sar", "prefetch"])
def test_heads_whose_mean_is_taken_share_the_gradient_that_travels(mode: str) -> None:
    """16 numbers of a gradient, 4 that it is returned for, and per head 4 of softmax and logits."""
    heads, width = 4, 16
    sharded = crooked_sharded(4, "hash", mode)
    options: Any = {"num_layers": 1, "num_heads": heads, "rngs": nnx.Rngs(0)}
    step, inference = sent(nn.GAT(NUM_FEATURES, 3, width, **options), sharded)
    expected = (width + heads + 4 * heads) / (heads * width + heads)
    # Parts share a few more receivers than senders, or fewer.
    assert step / inference - 1 == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("name", ["GAT", "GATv2"])
def test_the_last_products_are_made_once(name: str) -> None:
    """Their backward runs at once, so that a recomputation would save nothing."""
    step, sharded = wide_step(name, 3, 2)
    shape = f"f32[{sharded.manifest.node_rows},{HEADS * NUM_CLASSES}]"
    dots = [
        instruction
        for computation in parse(step.as_text()).computations.values()
        for instruction in computation.instructions
        if instruction.opcode == "dot" and instruction.shape.startswith(shape)
    ]
    assert len(dots) == {"GAT": 1, "GATv2": 2}[name]


@needs_kernels
def test_a_step_of_gat_in_parts_copies_no_rows() -> None:
    """Not for a kernel that would overwrite an array with other readers, nor for another shape."""
    step, sharded = wide_step("GAT", 3, 2)
    module, least = parse(step.as_text()), sharded.manifest.node_rows * HEADS * NUM_CLASSES * 4
    moved = []
    for computation in module.computations.values():
        for each in computation.instructions:
            steps = [each]
            if each.opcode == "fusion":
                steps = module.computations[each.calls[0]].instructions
            done = {step.opcode for step in steps} - {"parameter"}
            is_large = not each.shape.startswith("(") and num_bytes(each.shape) >= least
            if is_large and ((done == {"bitcast"} and each.opcode == "fusion") or "copy" in done):
                moved.append(each.name)
    assert not moved


def test_dropout_leaves_the_savings_to_inference() -> None:
    sharded = crooked_sharded(4, "hash", "sar")
    model = make("GraphSAGE", num_layers=1, dropout=0.5)
    plain, aggregated = sent(model, sharded), sent(model, aggregate_once(model, sharded))
    assert plain[0] == aggregated[0] > 0
    assert plain[1] > aggregated[1] == 0


def test_keys_of_layers() -> None:
    """One for the features and one for the attention of each, folded one by one."""
    key = jax.random.key(3)
    found = layer_keys(key, 3)
    expected = [
        [jax.random.fold_in(jax.random.fold_in(key, layer), kind) for kind in range(2)]
        for layer in range(3)
    ]
    mine, theirs = (
        [[jax.random.key_data(k) for k in row] for row in rows] for rows in (found, expected)
    )
    np.testing.assert_array_equal(mine, theirs)
