"""Label propagation, and Correct & Smooth: every mode gives the numbers of the reference."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import jaxgraph as jg
from jaxgraph import Graph, nn
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.metrics import accuracy
from jaxgraph.parallel import ShardedGraph, make_mesh, place, shard
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.partition import partition
from jaxgraph.train import correct_and_smooth, label_propagation
from tests.oracles import smoothing
from tests.training import crooked_graph, mode_options, oracle_edges

TOLERANCE = 1e-5
STEPS: dict[str, Any] = {"correct_steps": 6, "smooth_steps": 4}
GRAPH: Any = crooked_graph()
HOT = np.eye(GRAPH.num_classes)[GRAPH.labels]
PREDICTIONS = np.random.default_rng(3).dirichlet(np.ones(GRAPH.num_classes), GRAPH.num_nodes)


def placed(graph: Graph, mode: str, parts: int) -> ShardedGraph:
    mesh = make_mesh(1 if mode == "stream" else parts)
    return shard(graph, partition(graph, parts, method="hash"), mesh, **mode_options(mode))


def both(graph: Any, scale: float | None, *, val: bool = False) -> np.ndarray:
    """The reference of both phases."""
    edges, train = oracle_edges(graph), graph.train_mask
    corrected = smoothing.correct(edges, PREDICTIONS, train, HOT, 6, 0.9, scale)
    shown = train | graph.val_mask if val else train
    return smoothing.smooth(edges, corrected, shown, HOT, 4, 0.8)


def assert_near(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)


# ------------------------------------------------------------------ the same numbers


@pytest.mark.parametrize("scale", [None, 1.5], ids=["autoscale", "fixed"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_one_device_equals_the_reference(weighted: bool, scale: float | None) -> None:
    graph: Any = crooked_graph(edge_weight=weighted)
    given = {"autoscale": scale is None, "scale": scale or 1.0}
    found = correct_and_smooth(PREDICTIONS, graph, **STEPS, **given)
    assert found.dtype == np.float32
    assert_near(found, both(graph, scale))
    edges, mask = oracle_edges(graph), graph.train_mask
    expected = smoothing.smooth(edges, np.zeros_like(HOT), mask, HOT, 5, 0.9)
    assert_near(label_propagation(graph, steps=5), expected)


@pytest.mark.law(1)
@pytest.mark.parametrize(
    ("mode", "parts"),
    [
        ("sar", 2),
        ("domain", 3),
        ("p3-sar", 2),
        ("stream", 3),
        *(
            pytest.param(mode, parts, marks=pytest.mark.slow)
            for mode in ("sar", "domain", "prefetch", "p3-sar", "p3-domain-pushed", "stream")
            for parts in (1, 2, 3)
        ),
    ],
)
def test_every_mode_equals_the_reference(mode: str, parts: int) -> None:
    graph = crooked_graph(edge_weight=True)
    sharded = placed(graph, mode, parts)
    for scale in (None, 1.5):
        given = {"autoscale": scale is None, "scale": scale or 1.0}
        found = correct_and_smooth(PREDICTIONS, sharded, **STEPS, **given)
        assert_near(found, both(graph, scale))


def test_smoothing_may_use_the_labels_of_validation_nodes() -> None:
    found = correct_and_smooth(PREDICTIONS, GRAPH, **STEPS, labels_of=("train", "val"))
    assert_near(found, both(GRAPH, None, val=True))


def test_parts_in_files_are_smoothed_and_leave_nothing(tmp_path: Path) -> None:
    parts = partition(GRAPH, 3, method="hash")
    streamed: Any = shard(GRAPH, parts, make_mesh(1), mode="stream", folder=tmp_path)
    store = streamed.parts.store
    held = set(store._arrays)
    for _ in range(2):
        assert_near(correct_and_smooth(PREDICTIONS, streamed, **STEPS), both(GRAPH, None))
        assert set(store._arrays) == held


def test_errors_of_training_nodes_of_0_change_nothing_before_the_smoothing() -> None:
    found = correct_and_smooth(HOT, GRAPH, **STEPS)
    assert_near(found, smoothing.smooth(oracle_edges(GRAPH), HOT, GRAPH.train_mask, HOT, 4, 0.8))


# ------------------------------------------------------------------ candidates


def test_the_candidates_with_the_best_validation_accuracy_are_taken() -> None:
    alphas, scales, chosen = (0.1, 0.9), (0.5, 2.0), list[Any]()
    options: dict[str, Any] = {
        "correct_alpha": alphas,
        "autoscale": (True, False),
        "scale": scales,
        "on_choice": chosen.append,
    }
    found = correct_and_smooth(PREDICTIONS, GRAPH, **STEPS, **options)
    each: dict[Any, np.ndarray] = {}
    for alpha in alphas:
        for scale in (None, *scales):
            given = {"autoscale": scale is None, "scale": scale or 1.0, "correct_alpha": alpha}
            each[alpha, scale] = correct_and_smooth(PREDICTIONS, GRAPH, **STEPS, **given)
    scores = {name: accuracy(y, GRAPH.labels, GRAPH.val_mask) for name, y in each.items()}
    best = max(scores, key=lambda name: scores[name])
    assert len(set(scores.values())) > 1
    np.testing.assert_array_equal(found, each[best])
    assert chosen == [
        {
            "correct_alpha": best[0],
            "autoscale": best[1] is None,
            "scale": best[1],
            "smooth_alpha": 0.8,
            "val_accuracy": scores[best],
        }
    ]


def test_candidates_are_compared_without_the_labels_of_validation_nodes() -> None:
    scores: list[Any] = []
    for labels_of in (("train",), ("train", "val")):
        options: dict[str, Any] = {"smooth_alpha": (0.5, 0.6), "on_choice": scores.append}
        correct_and_smooth(PREDICTIONS, GRAPH, **STEPS, labels_of=labels_of, **options)
    assert scores[0] == scores[1] and scores[0]["val_accuracy"] < 1


# ------------------------------------------------------------------------- bad input

NAN = PREDICTIONS.copy()
NAN[7, 1] = np.nan


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"predictions": PREDICTIONS[1:]},
            r"float64 \[119, \d\]; expected probabilities, floating \[120, ",
        ),
        ({"predictions": PREDICTIONS[:, 1:]}, r"float64 \[120, \d\]; expected probabilities"),
        ({"predictions": PREDICTIONS.argmax(1)}, r"int64 \[120\]; expected probabilities"),
        ({"predictions": HOT.astype(int)}, r"int64 \[120, \d\]; expected probabilities, floating"),
        ({"predictions": NAN}, r"of 1 nodes are not finite or leave \[0, 1\], of node 7 first"),
        ({"predictions": 5 * PREDICTIONS}, r"leave \[0, 1\].*jax.nn.softmax"),
        ({"correct_steps": 0}, "correct_steps is 0; expected a positive integer"),
        ({"smooth_steps": 1.5}, "smooth_steps is 1.5; expected a positive integer"),
        ({"correct_alpha": 1.1}, r"correct_alpha is 1.1; expected a number in \[0, 1\]"),
        ({"smooth_alpha": (0.5, -1)}, r"smooth_alpha is \(0.5, -1\); expected a number in"),
        ({"smooth_alpha": ()}, r"smooth_alpha is \(\); expected .* or a tuple of candidates"),
        ({"autoscale": 1}, "autoscale is 1; expected True or False"),
        ({"scale": -1.0}, r"scale is -1.0; expected a number in \[0, 1000\]"),
        ({"scale": float("inf")}, "scale is inf; expected a number"),
        ({"labels_of": ("test",)}, r"labels_of is \('test',\); expected the splits"),
        ({"graph": GRAPH.replace(labels=None)}, "no labels; expected one class per node"),
        (
            {"graph": GRAPH.replace(labels=None).with_nodes(target=PREDICTIONS)},
            "Targets of a regression are no classes",
        ),
        ({"graph": GRAPH.replace(labels=HOT)}, "several labels per node; expected one class"),
        ({"graph": GRAPH.replace(train_mask=None)}, "no train nodes, .*; give Graph train_mask="),
        (
            {"graph": GRAPH.replace(val_mask=None), "labels_of": ("train", "val")},
            "no val nodes, which candidates",
        ),
        ({"graph": GRAPH.replace(val_mask=None), "scale": (1.0, 2.0)}, "no val nodes"),
        ({"graph": jg.TypedGraph.of(GRAPH)}, "got a TypedGraph; expected a jaxgraph.Graph"),
        ({"graph": PREDICTIONS}, "got a NumPy array; expected a jaxgraph.Graph"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"predictions": PREDICTIONS, "graph": GRAPH, **STEPS} | options
    with pytest.raises(ValueError, match=message):
        correct_and_smooth(**given)


def test_shards_that_do_not_fit_are_refused() -> None:
    typed = shard(jg.TypedGraph.of(GRAPH), None, make_mesh(1))
    several = placed(GRAPH.replace(labels=HOT), "sar", 1)
    manifest = tabulate(GRAPH, partition(GRAPH, 1), "sar").manifest
    shapes = place(AbstractSource(manifest), make_mesh(1))
    cases = [
        (shapes, "abstract and holds no data"),
        (typed, "the shards of a typed graph"),
        (several, "several labels per node"),
    ]
    for graph, message in cases:
        with pytest.raises(ValueError, match=message):
            correct_and_smooth(PREDICTIONS, graph)
        with pytest.raises(ValueError, match=message):
            label_propagation(graph)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"alpha": 2}, "alpha is 2"),
        ({"labels_of": "train"}, "labels_of is 'train'"),
    ],
)
def test_options_of_label_propagation_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        label_propagation(GRAPH, **options)


# ------------------------------------------------------------------ real data


class Perceptron(nnx.Module):
    """Two linear maps of a node's own features."""

    def __init__(self, features: int, classes: int) -> None:
        rngs = nnx.Rngs(0)
        self.first = nn.Linear(features, 64, rngs=rngs)
        self.second = nn.Linear(64, classes, rngs=rngs)

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> jax.Array:
        return self.second(shard, jax.nn.relu(self.first(shard, x)))


@pytest.mark.slow
def test_cora_gains_several_points_over_a_perceptron(data_dir: Path) -> None:
    graph: Any = jg.transforms.normalize_features(jg.datasets.load("cora", data_dir=data_dir))
    model = Perceptron(graph.num_features, graph.num_classes)
    adam = optax.chain(optax.add_decayed_weights(5e-4), optax.adam(0.01))
    jg.train.fit(model, graph, adam, epochs=100)
    plain = np.asarray(jax.nn.softmax(jg.train.predict(model, graph)))
    candidates: dict[str, Any] = {"autoscale": (True, False), "smooth_alpha": (0.5, 0.9)}
    smoothed = correct_and_smooth(plain, graph, **candidates)
    alone = label_propagation(graph)
    of_plain, of_smoothed, of_labels = (
        accuracy(each, graph.labels, graph.test_mask) for each in (plain, smoothed, alone)
    )
    assert 0.5 < of_plain < 0.62
    assert of_smoothed > of_plain + 0.1
    assert of_labels > 0.65
