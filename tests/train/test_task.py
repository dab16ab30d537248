"""Sums of losses and metrics, against the oracles."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph import Graph, metrics
from jaxgraph.parallel import ShardedGraph, gather_rows, spmd
from jaxgraph.train import NodeClassification, Task
from tests.oracles.losses import sigmoid_cross_entropy, softmax_cross_entropy
from tests.tolerance import assert_close
from tests.train.small_model import CLASSES, multilabel_graph, on_devices, small_graph

TASK = NodeClassification()


def with_logits(graph: Graph, width: int) -> Graph:
    """The graph with random logits as its features."""
    logits = 3 * np.random.default_rng(1).standard_normal((graph.num_nodes, width))
    return graph.replace(nodes=logits.astype(np.float32))


def measured(sharded: ShardedGraph, split: str) -> dict[str, float]:
    """Metrics with the features as logits, and NaN in padding rows."""

    def on_shard(shard: Any) -> Any:
        logits = jnp.where(shard.node_mask[:, None], shard.nodes, jnp.nan)
        return TASK.metrics(shard.sum(TASK.sums(logits, shard, split)))

    return {name: float(value) for name, value in spmd(on_shard)(sharded).items()}


@partial(spmd, outputs="rows")
def gradient_of_rows(shard: Any) -> jax.Array:
    def loss(logits: jax.Array) -> jax.Array:
        return TASK.metrics(shard.sum(TASK.sums(logits, shard, "train")))["loss"]

    return jax.grad(loss)(jnp.where(shard.node_mask[:, None], shard.nodes, jnp.nan))


def gradient(sharded: ShardedGraph) -> np.ndarray:
    """Gradient of the training loss in the graph's order; padding must have none."""
    values = gradient_of_rows(sharded)
    padding = ~np.asarray(sharded.shards.node_mask).reshape(-1)
    assert padding.any()
    assert np.all(np.asarray(values)[padding] == 0)
    return gather_rows(values, sharded)


@pytest.mark.expensive
@pytest.mark.parametrize("parts", [1, 4])
def test_single_label_is_the_oracle(parts: int) -> None:
    graph = with_logits(small_graph(61), CLASSES + 1)  # more outputs than classes
    sharded = on_devices(graph, parts)
    assert graph.nodes is not None and graph.labels is not None
    for split in ("train", "val", "test"):
        mask = getattr(graph, f"{split}_mask")
        expected, _ = softmax_cross_entropy(graph.nodes.astype(np.float64), graph.labels, mask)
        result = measured(sharded, split)
        assert_close(result["loss"], expected, reduction_length=graph.num_nodes)
        assert result["accuracy"] == pytest.approx(
            metrics.accuracy(graph.nodes, graph.labels, mask)
        )


@pytest.mark.expensive
@pytest.mark.parametrize("parts", [1, 4])
def test_multilabel_is_the_oracle(parts: int) -> None:
    graph = with_logits(multilabel_graph(61), 4)
    sharded = on_devices(graph, parts)
    assert graph.nodes is not None and graph.labels is not None
    for split in ("train", "val", "test"):
        mask = getattr(graph, f"{split}_mask")
        expected, _ = sigmoid_cross_entropy(graph.nodes.astype(np.float64), graph.labels, mask)
        result = measured(sharded, split)
        assert_close(result["loss"], expected, reduction_length=4 * graph.num_nodes)
        assert result["micro_f1"] == pytest.approx(
            metrics.f1_score(graph.nodes, graph.labels, mask)
        )
        assert result["accuracy"] == pytest.approx(
            metrics.accuracy(graph.nodes, graph.labels, mask)
        )


def test_boolean_labels_count_as_numbers() -> None:
    graph = with_logits(multilabel_graph(), 4)
    assert graph.labels is not None
    as_bool = graph.replace(labels=graph.labels.astype(bool))
    assert measured(on_devices(as_bool, 2), "val") == measured(on_devices(graph, 2), "val")


def test_gradient_is_the_oracle_and_finite_beside_padding() -> None:
    graph = with_logits(small_graph(61), CLASSES)
    assert graph.nodes is not None and graph.labels is not None and graph.train_mask is not None
    _, backward = softmax_cross_entropy(
        graph.nodes.astype(np.float64), graph.labels, graph.train_mask
    )
    sharded = on_devices(graph, 4)
    assert_close(gradient(sharded), backward(), reduction_length=CLASSES)
    assert "scatter(" not in gradient_of_rows.lower(sharded).compile().as_text()


def test_multilabel_gradient_is_the_oracle_and_finite_beside_padding() -> None:
    graph = with_logits(multilabel_graph(61), 4)
    assert graph.nodes is not None and graph.labels is not None and graph.train_mask is not None
    _, backward = sigmoid_cross_entropy(
        graph.nodes.astype(np.float64), graph.labels, graph.train_mask
    )
    assert_close(gradient(on_devices(graph, 4)), backward(), reduction_length=4)


@pytest.mark.expensive
@pytest.mark.parametrize("make", [small_graph, multilabel_graph])
def test_outputs_of_16_bits_are_counted_in_32(make: Any) -> None:
    graph = with_logits(make(900), 4)
    short = jnp.asarray(graph.nodes, jnp.bfloat16)
    sharded = on_devices(graph.replace(nodes=np.asarray(short, np.float32)), 2)

    def on_shard(shard: Any) -> Any:
        outputs = shard.nodes.astype(jnp.bfloat16)
        return TASK.metrics(shard.sum(TASK.sums(outputs, shard, "train")))

    result = {name: float(value) for name, value in spmd(on_shard)(sharded).items()}
    assert result == measured(sharded, "train")


def test_nodes_without_a_label_do_not_count() -> None:
    graph = with_logits(small_graph(), CLASSES)
    assert graph.labels is not None and graph.train_mask is not None
    sharded = on_devices(graph, 2)
    labels = np.asarray(sharded.shards.labels).copy()
    dropped = np.flatnonzero(graph.train_mask)[:3]
    labels[np.isin(np.asarray(sharded.shards.node_ids), dropped)] = -1

    def on_shard(shard: Any, labels: jax.Array) -> Any:
        own = dataclasses.replace(shard, labels=labels[jax.lax.axis_index(shard.axis)])
        return TASK.metrics(shard.sum(TASK.sums(shard.nodes, own, "train")))

    kept = graph.train_mask.copy()
    kept[dropped] = False
    expected = measured(on_devices(graph.replace(train_mask=kept), 2), "train")
    result = spmd(on_shard)(sharded, jnp.asarray(labels))
    assert float(result["loss"]) == pytest.approx(expected["loss"], rel=1e-6)
    assert float(result["accuracy"]) == pytest.approx(expected["accuracy"], rel=1e-6)


def test_splits_are_those_with_a_mask() -> None:
    assert TASK.splits(on_devices(small_graph(), 1).shards) == ("train", "val", "test")
    without = small_graph(val_mask=None)
    assert TASK.splits(on_devices(without, 1).shards) == ("train", "test")


def test_a_graph_without_labels_is_refused() -> None:
    graph = small_graph(train_mask=None, val_mask=None, test_mask=None, labels=None)
    with pytest.raises(ValueError, match="no labels"):
        TASK.splits(on_devices(graph, 1).shards)


@pytest.mark.parametrize(("width", "kind"), [(2, "single"), (3, "multi"), (5, "multi")])
def test_a_wrong_number_of_outputs_is_refused(width: int, kind: str) -> None:
    graph = with_logits(small_graph() if kind == "single" else multilabel_graph(), width)
    with pytest.raises(ValueError, match=f"the model has {width} outputs"):
        measured(on_devices(graph, 2), "train")


def test_outputs_that_are_no_rows_are_refused() -> None:
    def on_shard(shard: Any) -> Any:
        return shard.sum(TASK.sums(shard.nodes.sum(0), shard, "train"))

    with pytest.raises(ValueError, match=r"expects logits \[.*, 3\]"):
        spmd(on_shard)(on_devices(small_graph(), 2))


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="split is 'dev'"):
        measured(on_devices(with_logits(small_graph(), CLASSES), 1), "dev")


def test_node_classification_is_a_task() -> None:
    assert isinstance(TASK, Task)
    assert hash(TASK) == hash(NodeClassification())
