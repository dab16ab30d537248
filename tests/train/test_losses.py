"""Losses, gradients and metrics of the tasks that ship, against oracles in float64."""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxgraph import Graph, metrics, train
from jaxgraph.parallel import ShardedGraph, gather_rows, spmd
from jaxgraph.train import NodeClassification, NodeRegression
from tests.oracles import losses
from tests.tolerance import assert_close
from tests.train.small_model import (
    CLASSES,
    SmallNet,
    multilabel_graph,
    on_devices,
    on_devices_alike,
    small_graph,
)

NODES = 61
WAYS = {
    "1": (1, "sar"),
    "2": (2, "domain"),
    "4": (4, "sar"),
    "p3": (2, "p3"),
}
NOTHING_KNOWN = dict.fromkeys(("labels", "train_mask"))
WEIGHTS = (0.5, 2.0, 1.25, 0.0)


def with_outputs(graph: Graph, width: int) -> Graph:
    """The graph with random outputs of a model as its features."""
    outputs = 2 * np.random.default_rng(1).standard_normal((graph.num_nodes, width))
    return graph.replace(nodes=outputs.astype(np.float32))


def measured(task: train.Task, sharded: ShardedGraph, shape: tuple[int, ...]) -> Any:
    """The metrics of every split of outputs of a shape, and the gradient of the training loss."""

    def on_shard(shard: Any) -> Any:
        x = shard.to_nodes(shard.nodes)
        x = jnp.where(shard.node_mask[:, None], x, jnp.nan)

        def of_split(x: jax.Array, split: str) -> Any:
            return task.metrics(shard.sum(task.sums(x.reshape(-1, *shape), shard, split)))

        found = {split: of_split(x, split) for split in task.splits(shard)}
        return found, jax.grad(lambda x: of_split(x, "train")["loss"])(x)

    found, gradient = jax.jit(spmd(on_shard, outputs=("replicated", "rows")))(sharded)
    assert np.all(np.asarray(gradient)[~np.asarray(sharded.shards.node_mask).reshape(-1)] == 0)
    return found, gather_rows(gradient, sharded)


def check(task: train.Task, graph: Graph, way: str, shape: tuple[int, ...], oracle: Any) -> None:
    """Compares loss, gradient and metrics of all splits with `oracle(outputs, mask)`."""
    found, gradient = measured(task, on_devices(graph, *WAYS[way]), shape)
    for split in ("train", "val", "test"):
        mask: Any = getattr(graph, f"{split}_mask")
        (loss, pull), wanted = oracle(np.asarray(graph.nodes, np.float64), mask)
        assert_close(found[split]["loss"], loss, reduction_length=NODES)
        if split == "train":
            assert_close(gradient, pull(), reduction_length=NODES)
        for name, value in wanted.items():
            assert_close(found[split][name], value, reduction_length=NODES)


@pytest.mark.expensive
@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_classes_are_the_oracle(way: str, is_plain: bool) -> None:
    """Weighed and smoothed, or not; a class more than the labels have."""
    graph = with_outputs(small_graph(NODES), CLASSES + 1)
    labels = np.asarray(graph.labels)
    task = NodeClassification(class_weights=WEIGHTS, label_smoothing=0.2)
    weights, smoothing = (np.ones(CLASSES + 1), 0.0) if is_plain else (np.array(WEIGHTS), 0.2)

    def oracle(outputs: np.ndarray, mask: np.ndarray) -> Any:
        loss = losses.weighed_cross_entropy(outputs, labels, mask, weights, smoothing)
        return loss, {"accuracy": metrics.accuracy(outputs, labels, mask)}

    check(NodeClassification() if is_plain else task, graph, way, (CLASSES + 1,), oracle)


@pytest.mark.expensive
@pytest.mark.parametrize("way", WAYS)
def test_labels_that_are_not_known_do_not_count(way: str) -> None:
    graph = with_outputs(multilabel_graph(NODES), 4)
    labels = np.asarray(graph.labels, np.float64)
    labels[np.random.default_rng(2).random((NODES, 4)) < 0.4] = np.nan

    def oracle(outputs: np.ndarray, mask: np.ndarray) -> Any:
        known = mask[:, None] & ~np.isnan(labels)
        right = (outputs > 0)[known] == labels[known]
        true = ((outputs > 0) & (labels == 1) & known).sum()
        micro = 2 * true / (2 * true + (~right).sum())
        assert metrics.f1_score(outputs, labels, mask) == pytest.approx(micro)
        loss = losses.weighed_sigmoid_cross_entropy(outputs, labels, mask, np.array(WEIGHTS), 0.1)
        return loss, {"accuracy": right.mean(), "micro_f1": micro}

    task = NodeClassification(class_weights=WEIGHTS, label_smoothing=0.1)
    check(task, graph.replace(labels=labels), way, (4,), oracle)


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("way", "loss", "shape"),
    [
        ("1", "squared", (2, 3)),
        ("2", "absolute", (1,)),
        ("4", "squared", ()),
        ("4", "huber", (2, 3)),
        ("p3", "squared", (2,)),
        ("p3", "absolute", (2, 3)),
    ],
)
def test_regression_is_the_oracle(way: str, loss: Any, shape: tuple[int, ...]) -> None:
    rng, width = np.random.default_rng(4), int(np.prod(shape))
    # Far from 0: E[y^2] - E[y]^2 would leave nothing of r2.
    target = 1000 + rng.standard_normal((NODES, *shape))
    target[rng.random(target.shape) < 0.3] = np.nan
    graph = with_outputs(small_graph(NODES, labels=None), width).with_nodes(y=target)
    graph = graph.replace(nodes=np.asarray(graph.nodes) + np.float32(1000))
    flat = target.astype(np.float32).astype(np.float64).reshape(NODES, -1)
    oracle = lambda outputs, mask: losses.regression(outputs, flat, mask, loss, 0.5)  # noqa: E731
    # [rows, 1] is the same as [rows].
    check(NodeRegression("y", loss, delta=0.5), graph, way, shape or (1,), oracle)


def test_graphs_are_measured_as_one_and_train_from_numbers_alone() -> None:
    graphs = [small_graph(60, 0, labels=None), small_graph(50, 1, labels=None)]
    graphs = [
        graph.with_nodes(
            target=offset + np.asarray(graph.nodes)[:, 0] / 2, small=np.asarray(graph.nodes)[:, 0]
        )
        for graph, offset in zip(graphs, (300.0, 301.0), strict=True)
    ]
    model, task = SmallNet(outputs=1), NodeRegression()
    sharded = on_devices_alike(graphs, 2)
    targets = [g.node_data["target"][g.val_mask].astype(np.float32) for g in graphs]
    outputs = [train.predict(model, s)[g.val_mask, 0] for s, g in zip(sharded, graphs, strict=True)]
    y, z = (np.concatenate(each).astype(np.float64) for each in (targets, outputs))
    expected = 1 - ((y - z) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    result = train.evaluate(model, sharded, task=task)["val"]
    assert result["r2"] == pytest.approx(expected, rel=1e-4)
    task = NodeRegression("small")
    history = train.fit(model, sharded, optax.adam(0.01), epochs=40, task=task)
    assert history.val_loss[history.best_epoch - 1] == min(history.val_loss)
    assert history.loss[-1] < 0.8 * history.loss[0]
    assert np.isnan(history.val_accuracy[0]) and history.metrics["val"]["mse"] == history.val_loss


class FirstFeature(train.Task):
    """The first feature of a node, from those of its neighbours."""

    def sums(self, outputs: Any, shard: Any, split: str) -> Any:
        mask = train.split_mask(shard, split)
        error = jnp.where(mask, outputs[:, 0] - shard.nodes[:, 0], 0)
        return {"loss": (error**2).sum(), "mae": jnp.abs(error).sum(), "count": mask.sum()}


def test_a_task_of_ones_own_states_its_sums_alone() -> None:
    graph = small_graph(labels=None)
    model, task = SmallNet(outputs=1), FirstFeature()
    found = [train.evaluate(model, on_devices(graph, parts), task=task) for parts in (1, 4)]
    error = (train.predict(model, graph)[:, 0] - np.asarray(graph.nodes)[:, 0])[graph.test_mask]
    for each in found:
        assert each["test"]["loss"] == pytest.approx((error**2).mean(), rel=1e-5)
        assert each["test"]["mae"] == pytest.approx(np.abs(error).mean(), rel=1e-5)

    assert FirstFeature() == FirstFeature() and hash(FirstFeature()) == hash(FirstFeature())
    task.of_nodes = np.ones(60)  # type: ignore[attr-defined]
    assert task != FirstFeature()
    with pytest.raises(ValueError, match=r"a FirstFeature cannot be hashed .*with_nodes\(name="):
        train.evaluate(model, graph, task=task)

    class NoCount(FirstFeature):
        def sums(self, outputs: Any, shard: Any, split: str) -> Any:
            return {"loss": super().sums(outputs, shard, split)["loss"]}

    with pytest.raises(ValueError, match=r"NoCount returned loss; expected .* 'count'"):
        train.evaluate(model, graph, task=NoCount())


def test_balanced_classes_weigh_the_same_together() -> None:
    labels = np.array([0, 0, 0, 1, -1, 3, 2, 2])
    graph = Graph.from_edges([0], [1], labels=labels, train_mask=np.arange(8) < 4)
    task = NodeClassification.balanced(graph, label_smoothing=0.1)
    assert task == NodeClassification((4 / 12, 1.0, 0.0, 0.0), 0.1)


def test_tasks_that_do_not_fit_are_refused() -> None:
    graph, bare = small_graph().with_nodes(y=np.ones((60, 2))), small_graph(**NOTHING_KNOWN)
    of: Any = NodeClassification
    many, evaluate = multilabel_graph(), lambda task: train.evaluate(SmallNet(), graph, task=task)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: of.balanced(many), "one class per node"),
        (lambda: of(class_weights=(1, -1)), "class_weights is .* from 0 up"),
        (lambda: of(class_weights=(0, 0)), "not all 0"),
        (lambda: of(class_weights="balanced"), "class_weights is 'balanced'"),
        (lambda: of(label_smoothing=1), "label_smoothing is 1; expected"),
        (lambda: NodeRegression(cast(Any, np.zeros(3))), "target is a ndarray.*with_nodes"),
        (lambda: NodeRegression(loss=cast(Any, "l2")), "loss is 'l2'; expected one of squared"),
        (lambda: NodeRegression(delta=0), "delta is 0; expected a number above 0"),
        (
            lambda: evaluate(NodeRegression()),
            r"no node array 'target' .*node arrays: y\).*with_nodes\(target=",
        ),
        (
            lambda: evaluate(NodeRegression("y")),
            r"shape \[60, 3\]; .*'y' expects \[60, 2\].*out_features=2",
        ),
        (lambda: evaluate(of(class_weights=(1, 2))), "class_weights has 2 .* 3 outputs"),
        (lambda: train.evaluate(SmallNet(), bare), r"no labels.*NodeRegression"),
        *(
            (lambda graph=graph, width=width: outputs_of(graph, width), f"model has {width} outp")
            for graph, width in ((graph, 2), (many, 3), (many, 5))
        ),
    ]
    for call, message in calls:
        with pytest.raises(ValueError, match=message):
            call()
    assert hash(of(class_weights=np.ones(3))) == hash(of(class_weights=(1.0, 1.0, 1.0)))


def outputs_of(graph: Graph, width: int) -> Any:
    return measured(NodeClassification(), on_devices(with_outputs(graph, width), 2), (width,))


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("kind", "accuracy"), [("single", 2 / 4), ("multi", 6 / 8)])
def test_outputs_of_nan_are_not_right(parts: int, kind: str, accuracy: float) -> None:
    """Nodes 0 and 1 have NaN for label 0, which node 0 has and node 1 has not."""
    logits = np.array([[0, -1], [0, 1], [1, -1], [-1, 1]], np.float32)
    classes = np.array([0, 1, 0, 1])
    labels = classes if kind == "single" else classes[:, None] == np.arange(2)
    task, everywhere = NodeClassification(), np.ones(4, bool)
    graph = Graph.from_edges([0, 1], [2, 3], nodes=logits, labels=labels, train_mask=everywhere)

    def on_shard(shard: Any) -> Any:
        x = jnp.where(shard.nodes == 0, jnp.nan, shard.nodes)
        return task.metrics(shard.sum(task.sums(x, shard, "train")))

    found = jax.jit(spmd(on_shard, outputs="replicated"))(on_devices(graph, parts))
    assert float(found["accuracy"]) == pytest.approx(accuracy)
    if kind == "multi":
        assert float(found["micro_f1"]) == pytest.approx(2 * 3 / (2 * 3 + 1))


@pytest.mark.parametrize("make", [small_graph, multilabel_graph])
def test_outputs_of_16_bits_are_counted_in_32(make: Any) -> None:
    graph, task = with_outputs(make(900), 4), NodeClassification()
    short = jnp.asarray(graph.nodes, jnp.bfloat16)
    sharded = on_devices(graph.replace(nodes=np.asarray(short, np.float32)), 2)

    def in_type(dtype: Any) -> Any:
        def on_shard(shard: Any) -> Any:
            return task.metrics(shard.sum(task.sums(shard.nodes.astype(dtype), shard, "train")))

        return jax.device_get(spmd(on_shard)(sharded))

    assert in_type(jnp.bfloat16) == in_type(jnp.float32)


def test_the_loss_of_classes_scatters_nothing() -> None:
    def loss(shard: Any) -> jax.Array:
        task = NodeClassification()
        of_outputs = lambda x: task.metrics(shard.sum(task.sums(x, shard, "train")))["loss"]  # noqa: E731
        return jax.grad(of_outputs)(shard.nodes)

    sharded = on_devices(with_outputs(small_graph(), CLASSES), 2)
    program = jax.jit(spmd(loss, outputs="rows")).lower(sharded).compile()
    assert "scatter(" not in str(program.as_text())
