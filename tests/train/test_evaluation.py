"""Outputs in the graph's order, and metrics of all splits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph import metrics
from jaxgraph.parallel import propagate
from jaxgraph.train import compile_inference, evaluate, predict
from tests.oracles.losses import softmax_cross_entropy
from tests.times import compilations
from tests.tolerance import assert_close
from tests.train.small_model import (
    SmallNet,
    memory_of,
    on_devices,
    on_devices_alike,
    small_graph,
)


def test_evaluate_of_several_graphs_is_over_all_their_nodes() -> None:
    model = SmallNet(dropout=0.5)
    graphs = [small_graph(60, seed=1), small_graph(37, seed=2, val_mask=None)]
    result = evaluate(model, [on_devices(graph, 2) for graph in graphs])
    assert list(result) == ["train", "val", "test"]
    for split, of_split in result.items():
        assert all(type(value) is float for value in of_split.values())
        outputs, labels = [], []
        for graph in graphs:
            mask = getattr(graph, f"{split}_mask")
            if mask is not None and graph.labels is not None:
                outputs.append(predict(model, on_devices(graph, 2))[mask])
                labels.append(graph.labels[mask])
        logits, classes = np.concatenate(outputs), np.concatenate(labels)
        loss, _ = softmax_cross_entropy(
            logits.astype(np.float64), classes, np.ones(len(classes), bool)
        )
        assert_close(result[split]["loss"], loss, reduction_length=97)
        assert result[split]["accuracy"] == pytest.approx(metrics.accuracy(logits, classes))


def test_a_second_prediction_and_an_unseen_graph_compile_nothing() -> None:
    graph, smaller, model = small_graph(60), small_graph(40, seed=1), SmallNet()
    sharded, unseen = on_devices_alike([graph, smaller], 2)
    predict(model, sharded)
    evaluate(model, sharded)
    with compilations() as compiled:
        predict(model, sharded)
        padded = predict(model, unseen)
        evaluate(SmallNet(seed=1), unseen)
    assert compiled == []
    assert padded.shape == (40, 3)
    assert_close(padded, predict(model, on_devices(smaller, 2)), reduction_length=40)


@pytest.mark.slow
def test_inference_keeps_no_activations_of_earlier_layers() -> None:
    sharded = on_devices(small_graph(4000), 4)
    shallow, deep = (
        memory_of(compile_inference(stack(depth), sharded)).temp_size_in_bytes for depth in (3, 12)
    )
    assert deep <= 1.25 * shallow


def stack(depth: int) -> SmallNet:
    """SmallNet whose middle, a non-linear propagation, is repeated."""

    class Deep(SmallNet):
        def __call__(self, shard, x, *, key=None, train=False) -> jax.Array:
            h = self.first(x)
            for _ in range(depth):
                h = propagate(shard, lambda s, r, e: s, jnp.tanh(h), reduce="mean")
            return self.second(h)

    return Deep()


def test_outputs_that_are_no_rows_are_refused() -> None:
    class Total(SmallNet):
        def __call__(self, shard, x, *, key=None, train=False) -> jax.Array:
            return shard.sum(x.sum(0))

    with pytest.raises(ValueError, match="expected one row for every node"):
        predict(Total(), on_devices(small_graph(), 2))
