"""Masked label prediction: the same on any number of parts, the oracle's numbers, and no leak."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse as sp
from flax import nnx

from jaxgraph import Graph, TypedGraph, datasets, nn
from jaxgraph.parallel import make_mesh, open_parts, place, shard, write_parts
from jaxgraph.train import (
    Checkpoints,
    History,
    MaskedLabelPrediction,
    Task,
    evaluate,
    fit,
    loss_and_grad,
    predict,
)
from jaxgraph.transforms import normalize_features, random_split, with_label_columns
from tests.oracles import randomness
from tests.oracles.models import Model
from tests.strategies import NUM_CLASSES, NUM_FEATURES
from tests.tolerance import assert_close
from tests.train.small_model import multilabel_graph, random_partition
from tests.training import (
    SEED,
    Pass,
    by_layer,
    crooked_graph,
    gradient_errors,
    module_of,
    oracle_pass,
    random_params,
)

ADAM = optax.adam(0.02)
TASK = MaskedLabelPrediction(label_smoothing=0.1)
WIDTH = NUM_FEATURES + NUM_CLASSES
WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {}),
    "sar-2": (2, {}),
    "domain-3": (3, {"mode": "domain"}),
    "p3-2": (2, {"mode": "p3"}),
    "p3-pushed-3": (3, {"mode": "p3", "topology": "pushed", "chunks": 2}),
    "stream-2": (2, {"mode": "stream"}),
    "stream-3": (3, {"mode": "stream"}),
}


def given(is_sparse: bool = False, **changes: Any) -> Graph:
    """A graph of 30 training nodes with label columns."""
    graph = with_label_columns(crooked_graph().replace(**changes))
    return graph.replace(nodes=sp.csr_array(graph.nodes)) if is_sparse else graph


def placed(graph: Graph, way: str = "one") -> Any:
    parts, options = WAYS[way]
    mesh = make_mesh(1 if options.get("mode") == "stream" else parts)
    return shard(graph, random_partition(graph, parts), mesh, **options)


def make(name: str = "GraphSAGE", dropout: float = 0.3) -> Any:
    return getattr(nn, name)(WIDTH, 4, NUM_CLASSES, dropout=dropout, rngs=nnx.Rngs(0))


def shows(seed: jax.Array, shown: float = 0.5) -> np.ndarray:
    """The nodes that show their label in a step, by the oracle's random bits, bool [nodes]."""
    words = np.asarray(jax.random.key_data(jax.random.fold_in(seed, 0x6C61626C)))
    ids = np.arange(crooked_graph().num_nodes)
    return randomness.node_keep_mask((int(words[0]), int(words[1])), ids, 1, 1 - shown)[:, 0]


# ------------------------------------------------------------------ the same numbers


@cache
def on_one() -> History:
    return fit(make(), placed(given()), ADAM, epochs=3, task=TASK)


@pytest.mark.slow
@pytest.mark.parametrize("is_sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("way", WAYS)
def test_curves_do_not_depend_on_parts_and_mode(way: str, is_sparse: bool) -> None:
    found = fit(make(), placed(given(is_sparse), way), ADAM, epochs=3, task=TASK)
    for mine, theirs in zip(found.records, on_one().records, strict=True):
        assert_close(mine.loss, theirs.loss, reduction_length=200)
        assert mine.metrics["train"] == {"loss": mine.loss, **mine.metrics["train"]}
        for split in ("train", "val", "test"):
            for name, value in theirs.metrics[split].items():
                assert_close(mine.metrics[split][name], value, reduction_length=200)
    assert len(set(found.loss)) == 3


@pytest.mark.expensive
@pytest.mark.parametrize("conv", ["gcn", pytest.param("gat", marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", WAYS)
def test_loss_and_gradient_are_those_of_the_oracle(way: str, conv: str) -> None:
    model, graph = Model(conv, dropout=0.4), given()
    params = random_params(model, num_features=WIDTH)
    module = module_of(model, params, WIDTH)
    task = MaskedLabelPrediction(shown=0.4)
    loss, gradient = loss_and_grad(module, placed(graph, way), seed=SEED, train=True, task=task)
    graphdef, _, rest = nnx.split(module, nnx.Param, ...)
    gradients = by_layer(nnx.merge(graphdef, gradient, rest, copy=True), nnx.Param)
    # What the oracle sees: features and training nodes as the step has them.
    hidden, nodes = ~shows(jax.random.key(SEED), 0.4), np.array(graph.nodes)
    train: Any = graph.train_mask
    assert 0 < (train & hidden).sum() < train.sum()
    nodes[hidden, NUM_FEATURES:] = 0
    seen = graph.replace(nodes=nodes, train_mask=train & hidden, node_data={})
    expected = oracle_pass(model, params, seen)
    errors = gradient_errors(Pass(float(loss), gradients, expected.statistics), expected)
    assert max(errors.values()) < 2e-5, errors


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GCN", "GraphSAGE"])
def test_aggregates_are_read_in_evaluation_alone(name: str) -> None:
    runs = [
        fit(make(name, 0.0), placed(given(), way), ADAM, epochs=3, task=TASK, aggregate_once=once)
        for way, once in (("sar-2", True), ("p3-2", True), ("stream-2", True), ("one", False))
    ]
    for run in runs[:-1]:
        assert_close(run.loss, runs[-1].loss, reduction_length=200)
        assert_close(run.val_loss, runs[-1].val_loss, reduction_length=200)


@pytest.mark.slow
def test_parts_on_disk_a_typed_graph_and_several_graphs_train_alike(tmp_path: Path) -> None:
    graph = given()
    folder = write_parts(graph, random_partition(graph, 2), tmp_path / "parts")
    read = fit(make(), place(open_parts(folder.path), make_mesh(2)), ADAM, epochs=3, task=TASK)
    assert_close(read.loss, on_one().loss, reduction_length=200)
    typed = TypedGraph.of(graph)
    parts = {name: random_partition(graph, 2) for name in typed.node_sets}
    found = fit(make(), shard(typed, parts, make_mesh(2)), ADAM, epochs=3, task=TASK)
    assert_close(found.loss, on_one().loss, reduction_length=200)
    both = fit(make(), [placed(graph), placed(graph)], ADAM, epochs=2, task=TASK)
    assert np.isfinite(both.loss).all() and set(both.records[0].metrics) == {"train", "val", "test"}


@pytest.mark.slow
def test_a_continued_run_hides_the_same_labels(tmp_path: Path) -> None:
    model, sharded = make(), placed(given())
    first = fit(model, sharded, ADAM, epochs=2, task=TASK, checkpoint=Checkpoints(tmp_path))
    second = fit(model, sharded, ADAM, epochs=1, task=TASK, state=first.state)
    assert (*first.loss, *second.loss) == tuple(on_one().loss)
    other, resume = MaskedLabelPrediction(shown=0.4), Checkpoints(tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"task\.shown"):
        fit(model, sharded, ADAM, epochs=3, task=other, checkpoint=resume)


# ------------------------------------------------------------------ no leak


class AllOutputs(MaskedLabelPrediction):
    """Its loss is a sum of all outputs of all nodes, each with a weight of its own."""

    def sums(self, outputs: jax.Array, shard: Any, split: str) -> Any:
        """See `Task.sums`."""
        numbers = shard.node_ids[:, None] * outputs.shape[1] + jnp.arange(outputs.shape[1])
        weighed = jnp.where(shard.node_mask[:, None], outputs * (2 + jnp.sin(3.7 * numbers)), 0)
        return {"loss": weighed.sum(), "count": shard.node_mask.sum()}

    metrics = Task.metrics


@pytest.mark.expensive
@pytest.mark.parametrize("is_sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("way", ["sar-2", "p3-2", "stream-2"])
def test_a_hidden_label_changes_no_output_and_a_shown_one_does(way: str, is_sparse: bool) -> None:
    """So that the label of no node with a loss, in its column or as target, reaches its output."""
    graph, show = crooked_graph(), shows(jax.random.key(5))
    train: Any = graph.train_mask
    own: Any = graph.labels

    def of_other_labels(nodes: np.ndarray) -> list[np.ndarray]:
        """Loss and gradient where the labels of these nodes are others."""
        labels = np.where(nodes, (own + 1) % NUM_CLASSES, own)
        sharded = placed(given(is_sparse, labels=labels), way)
        found = loss_and_grad(make(), sharded, seed=5, train=True, task=AllOutputs())
        return [np.asarray(leaf) for leaf in jax.tree.leaves(found)]

    before = of_other_labels(np.zeros_like(train))
    for one, other in zip(before, of_other_labels(train & ~show), strict=True):
        # The places of zeros among non-zeros decide in what order these are added.
        np.testing.assert_allclose(one, other, rtol=1e-6 if is_sparse else 0)
    (shown,) = np.nonzero(train & show)
    for node in (shown[0], shown[-1]):
        changed = of_other_labels(np.arange(graph.num_nodes) == node)
        assert abs(changed[0] - before[0]) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("way", ["one", "stream-2"])
def test_training_nodes_are_not_evaluated(way: str) -> None:
    sharded = placed(given(), way)
    assert set(evaluate(make(), sharded, task=TASK)) == {"val", "test"}
    alone = placed(given(val_mask=None, test_mask=None), way)
    assert evaluate(make(), alone, task=TASK) == {}
    history = fit(make(), alone, ADAM, epochs=2, task=TASK)
    assert history.best_epoch == 2
    for record in history.records:
        assert record.metrics.keys() == {"train"}
        assert record.metrics["train"]["loss"] == record.loss
        assert record.metrics["train"].keys() == {"loss", "accuracy"}


def test_all_labels_show_in_inference() -> None:
    graph, model = given(), make()
    plain = graph.replace(node_data={})
    np.testing.assert_array_equal(predict(model, placed(graph)), predict(model, placed(plain)))
    of_plain = evaluate(model, placed(plain))
    del of_plain["train"]
    assert evaluate(model, placed(graph), task=MaskedLabelPrediction()) == of_plain


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize("shown", [0, 1, 1.5, -0.1, 1e-20, True, "half", float("nan")])
def test_a_share_out_of_range_is_refused(shown: Any) -> None:
    with pytest.raises(ValueError, match="expected a share of the training nodes between 0 and 1"):
        MaskedLabelPrediction(shown=shown)


@pytest.mark.parametrize("way", ["one", "stream-2"])
def test_graphs_that_cannot_be_learned_from_are_refused(way: str) -> None:
    graph = crooked_graph()

    def refused(graph: Graph, task: Any, match: str) -> None:
        sharded = placed(graph, way)
        model = nn.GCN(graph.num_features, 4, NUM_CLASSES, rngs=nnx.Rngs(0))
        with pytest.raises(ValueError, match=re.escape(match)):
            fit(model, sharded, ADAM, epochs=1, task=task)

    refused(graph, TASK, "the graph has no label columns")
    refused(given(), None, "show each training node the label that it is to learn")
    train: Any = graph.train_mask
    refused(
        given(train_mask=train & (np.cumsum(train) < 30)),
        TASK,
        "29 training nodes, and in an epoch",
    )
    refused(given(), MaskedLabelPrediction(shown=0.9), "expected at least 197 with shown=0.9")


def test_a_graph_of_several_labels_has_no_label_columns() -> None:
    with pytest.raises(ValueError, match="labels of several classes at once"):
        with_label_columns(multilabel_graph())


# ------------------------------------------------------------------ real data


@pytest.mark.slow
def test_cora_learns_from_labels(data_dir: Path) -> None:
    graph = with_label_columns(normalize_features(datasets.load("cora", data_dir)))
    model = nn.GCN(graph.num_features, 16, graph.num_classes, dropout=0.5, rngs=nnx.Rngs(0))
    sharded = shard(graph, random_partition(graph, 2), make_mesh(2))
    decay = optax.chain(optax.add_decayed_weights(5e-4), optax.adam(0.01))
    history = fit(model, sharded, decay, epochs=100, task=MaskedLabelPrediction())
    found = evaluate(model, sharded, task=MaskedLabelPrediction())
    assert found.keys() == {"val", "test"} and found["test"]["accuracy"] > 0.75
    assert history.records[-1].metrics["train"]["accuracy"] > 0.8


def test_a_new_split_is_refused_where_labels_are_shown() -> None:
    with pytest.raises(ValueError, match="label_columns"):
        random_split(given(), fractions=(0.3, 0.3, 0.4))
