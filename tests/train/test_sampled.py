"""Training on mini-batches: its numbers, programs, checkpoints, tasks, and bad input."""

from __future__ import annotations

import math
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph import Graph, nn, train, transforms
from jaxgraph.analysis import compilations
from jaxgraph.parallel import propagate
from jaxgraph.sampling import Loader
from jaxgraph.sampling.order import epoch_key, shuffled
from jaxgraph.train import Checkpoints, History, evaluate, fit
from tests.law.passes import TOLERANCE
from tests.law.test_typed import graph_of_sets
from tests.tolerance import relative_error
from tests.train.small_model import CLASSES, FEATURES, RowsNet, on_devices, small_graph

ADAM = optax.adam(0.02)
STILL = optax.sgd(0.0)
"""Makes steps of length 0: the loss of an epoch is that of all seeds under one model."""


@cache
def graph() -> Graph:
    return small_graph(61)


def model_of(kind: Any = nn.GraphSAGE, outputs: int = CLASSES, **options: Any) -> Any:
    return kind(FEATURES, 8, outputs, num_layers=2, rngs=nnx.Rngs(0), **options)


def loader_of(given: Any = None, fanouts: Any = (3, 2), **options: Any) -> Loader:
    options.setdefault("batch_size", 8)
    return Loader(graph() if given is None else given, fanouts, **options)


def variables(model: nnx.Module) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(model))]


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_the_loss_of_an_epoch_is_over_all_seeds(task: str, parts: int) -> None:
    """Also where some batches have no seed with a number to learn."""
    rng = np.random.default_rng(0)
    target = rng.standard_normal((61, CLASSES))
    target[rng.random(61) < 0.6] = np.nan
    given = graph().with_nodes(target=target)
    kind = train.NodeRegression("target") if task == "numbers" else None
    how: dict[str, Any] = {"epochs": 1, "task": kind}
    sharded = on_devices(given, parts)
    loader = loader_of(given, [-1, -1], sharded=sharded, batch_size=2)
    whole = fit(model_of(), sharded, STILL, **how)
    assert whole.records[0].waited is None
    found = fit(model_of(), loader, STILL, **how)
    assert relative_error(found.loss, whole.loss) < TOLERANCE
    for split, metrics in found.metrics.items():
        for name, value in metrics.items():
            assert relative_error(value, whole.metrics[split][name]) < TOLERANCE, (split, name)


@pytest.mark.slow
def test_a_batch_without_a_loss_changes_nothing() -> None:
    order = shuffled(np.flatnonzero(np.asarray(graph().train_mask)), epoch_key(0, 0))
    target = np.random.default_rng(0).standard_normal((61, CLASSES))
    target[order[::2]] = np.nan
    given, task, found = graph().with_nodes(target=target), train.NodeRegression("target"), []
    for nodes in (None, order[1::2]):
        model = model_of()
        loader = loader_of(given, nodes=nodes, batch_size=1, fanouts=[-1, -1])
        fit(model, loader, ADAM, epochs=1, task=task)
        found.append(variables(model))
    for one, other in zip(*found, strict=True):
        assert np.isfinite(one).all() and np.array_equal(one, other)


def test_two_programs_run_in_all_epochs() -> None:
    counts, given = [], []
    with compilations() as compiled:
        history = fit(
            model_of(dropout=0.4, norm="batch"),
            loader_of(threads=2),
            ADAM,
            epochs=4,
            on_epoch=lambda _: counts.append(len(compiled)),
            on_compile=given.extend,
        )
    assert counts == counts[:1] * 4
    # The step and the evaluation; and sums of scalars, and the choice of parameters.
    assert len(given) == 4
    assert all(each.waited is not None and 0 <= each.waited < 1 for each in history.records)


def overflowing() -> Graph:
    """Of seeds in the order of the first epoch, the first are isolated, others have 90 edges."""
    order = shuffled(np.arange(40), epoch_key(0, 0))
    hubs = order[32:]
    rng = np.random.default_rng(0)
    senders = rng.integers(40, 400, 90 * len(hubs))
    return Graph.from_edges(
        np.concatenate([senders, hubs]),
        np.concatenate([np.repeat(hubs, 90), senders[:8]]),
        num_nodes=400,
        nodes=rng.standard_normal((400, FEATURES)),
        labels=rng.integers(0, CLASSES, 400),
        train_mask=np.arange(400) < 40,
    )


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_a_batch_that_is_larger_than_those_probed_trains_as_well(parts: int) -> None:
    given = overflowing()
    sharded = on_devices(given, parts)
    loader = loader_of(given, [-1, -1], sharded=sharded, batch_size=4)
    samples: list[Any] = [batch.shards.sample for batch in loader.batches(0)]
    assert len({sample.sizes for sample in samples}) > 1
    whole, found = (fit(model_of(), each, STILL, epochs=1) for each in (sharded, loader))
    assert relative_error(found.loss, whole.loss) < TOLERANCE


def resumed(folder: Path, loader: Loader | None = None, **options: Any) -> History:
    checkpoint = Checkpoints(folder, every=2, resume=True)
    loader = loader_of() if loader is None else loader
    how: dict[str, Any] = {"epochs": 5, "checkpoint": checkpoint, **options}
    return fit(model_of(dropout=0.3), loader, ADAM, **how)


class KilledError(Exception):
    """An exception that ends a run."""


@pytest.mark.law(7)
def test_a_run_that_is_killed_goes_on_with_the_same_batches(tmp_path: Path) -> None:
    def kill(record: Any) -> None:
        if record.epoch == 3:
            raise KilledError

    whole = fit(model_of(dropout=0.3), loader_of(), ADAM, epochs=5)
    with pytest.raises(KilledError):
        resumed(tmp_path / "run", on_epoch=kill)
    found = resumed(tmp_path / "run", loader_of(threads=3))
    assert found.resumed == 3
    assert (found.loss, found.val_loss) == (whole.loss, whole.val_loss)
    assert None not in [each.waited for each in found.records]
    state, expected = (jax.tree.leaves(each.state) for each in (found, whole))
    for one, other in zip(state, expected, strict=True):
        assert np.array_equal(one, other)
    others: list[tuple[dict[str, Any], str]] = [
        ({"fanouts": [2, 2]}, "fanouts"),
        ({"batch_size": 9}, "batch_size"),
        ({"seed": 1}, "seed"),
        ({"replace": True}, "replace"),
        ({"method": "labor"}, "method"),
        ({"nodes": np.flatnonzero(np.asarray(graph().train_mask))[1:]}, "nodes"),
    ]
    for wrong, name in others:
        with pytest.raises(ValueError, match=rf"loader\.{name}"):
            resumed(tmp_path / "run", loader_of(**wrong))
    with pytest.raises(ValueError, match="loader"):
        checkpoint = Checkpoints(tmp_path / "run", resume=True)
        fit(model_of(dropout=0.3), graph(), ADAM, epochs=6, checkpoint=checkpoint)


@pytest.mark.slow
def test_a_state_is_continued() -> None:
    whole = fit(model_of(), loader_of(), ADAM, epochs=4)
    model = model_of()
    half = fit(model, loader_of(), ADAM, epochs=2)
    rest = fit(model, loader_of(), ADAM, epochs=2, state=half.state)
    assert half.loss + rest.loss == whole.loss


@pytest.mark.slow
def test_patience_and_evaluated_parameters() -> None:
    history = fit(model_of(), loader_of(), optax.sgd(0.0), epochs=9, patience=2)
    assert len(history.loss) == 3
    optimizer = optax.contrib.schedule_free_adamw(0.05)
    evaluated = optax.contrib.schedule_free_eval_params
    model, loader = model_of(), loader_of()
    history = fit(model, loader, optimizer, epochs=3, eval_params=evaluated)
    assert history.val_loss[-1] < history.val_loss[0]
    best = history.best_epoch - 1
    found = evaluate(model, loader.sharded)["val"]["loss"]
    assert relative_error(found, history.val_loss[best]) < TOLERANCE


@cache
def with_labels() -> Graph:
    """A graph of 60 training nodes that show labels of others."""
    given = small_graph(180, seed=1)
    return transforms.with_label_columns(given)


def masked(parts: int, **options: Any) -> History:
    given = with_labels()
    loader = loader_of(given, sharded=on_devices(given, parts), batch_size=7, **options)
    model = nn.GCN(given.num_features, 8, CLASSES, num_layers=2, rngs=nnx.Rngs(0))
    return fit(model, loader, ADAM, epochs=2, seed=3, task=train.MaskedLabelPrediction())


@pytest.mark.slow
@pytest.mark.parametrize("parts", [2, 3])
def test_labels_are_hidden_alike_on_devices(parts: int) -> None:
    expected, found = masked(1), masked(parts)
    assert relative_error(found.loss, expected.loss) < TOLERANCE
    assert relative_error(found.val_loss, expected.val_loss) < TOLERANCE
    with pytest.raises(ValueError, match=r"MaskedLabelPrediction .* make it without cache_bytes"):
        masked(parts, cache_bytes=10_000)


class OnTheShard(nnx.Module):
    """A model that knows of no list of neighbourhoods."""

    def __init__(self) -> None:
        self.map = nn.Linear(FEATURES, CLASSES, rngs=nnx.Rngs(0))

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> jax.Array:
        return propagate(shard, lambda s, r, e: s, self.map(shard, x), reduce="mean")


def on_parts(parts: int) -> Loader:
    return loader_of(sharded=on_devices(graph(), parts))


WHOLE = r"memory_limit, plan, measure_every, repartition, source: for steps over whole graphs; "
BAD: dict[str, tuple[Any, str]] = {
    "layers": (
        lambda: fit(model_of(), loader_of(fanouts=[3, 2, 1]), ADAM, epochs=1),
        r"GraphSAGE has 2 layers that read edges, and the loader 3 fanouts, \[3, 2, 1\]; give",
    ),
    "appnp": (
        lambda: fit(model_of(nn.APPNP), loader_of(), ADAM, epochs=1),
        "APPNP propagates several times over the same nodes, .*; train it on the whole graph",
    ),
    "sgc": (
        lambda: fit(nn.SGC(FEATURES, CLASSES, rngs=nnx.Rngs(0)), loader_of(), ADAM, epochs=1),
        "SGC propagates several times over the same nodes, .*; train it on the whole graph",
    ),
    "typed": (
        lambda: fit(model_of(nn.GCN), loader_of(graph_of_sets()), ADAM, epochs=1),
        "GCN is for one set of edges, .* such as jaxgraph.nn.HeteroConv",
    ),
    "rows": (
        lambda: fit(RowsNet(61), loader_of(), ADAM, epochs=1),
        r"one row per node \(NodeEmbedding\), .*; use node features, or train on the whole graph",
    ),
    "norm": (
        lambda: fit(model_of(norm="batch"), on_parts(2), ADAM, epochs=1),
        "the model has a BatchNorm, .* on 2 devices .* Take norm='layer', or one device",
    ),
    "seeds": (
        lambda: fit(model_of(), loader_of(nodes=np.arange(61)), ADAM, epochs=1),
        r"40 of the loader's 61 seeds, such as \d+, are no training nodes .*; make it without",
    ),
    "shard": (
        lambda: fit(OnTheShard(), loader_of(), ADAM, epochs=1),
        "was called with a list of 2 neighborhoods, one for each layer, as .* a loader",
    ),
    "several": (
        lambda: fit(model_of(), [loader_of(), loader_of()], ADAM, epochs=1),  # pyright: ignore
        "expected",
    ),
    "labels": (
        lambda: fit(model_of(), loader_of(graph().replace(labels=None)), ADAM, epochs=1),
        "the graph has no labels, and node classification learns from them",
    ),
    "width": (
        lambda: fit(nn.GCN(5, 8, 3, rngs=nnx.Rngs(0)), loader_of(), ADAM, epochs=1),
        "the model expects in_features=5, but the nodes of the graph have 6",
    ),
    "limit": (lambda: fit(model_of(), loader_of(), ADAM, epochs=1, memory_limit="1GB"), WHOLE),
    "measure": (
        lambda: fit(model_of(), loader_of(), ADAM, epochs=1, measure_every=1, source=graph()),
        WHOLE,
    ),
    "source": (
        lambda: fit(model_of(), loader_of(), ADAM, epochs=1, source=graph()),
        "source is read by measure_every",
    ),
    "patience": (
        lambda: fit(
            model_of(), loader_of(graph().replace(val_mask=None)), ADAM, epochs=1, patience=1
        ),
        "patience needs validation nodes, and the graph has no val_mask",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        call()


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_training() -> None:
    """A batch without a loss is left out; one whose loss is no number is not."""
    model = model_of()
    model.layers[0].convolution.bias[...] = jnp.full_like(
        model.layers[0].convolution.bias[...], math.nan
    )
    with pytest.raises(train.DivergenceError, match=r"training loss .* is nan"):
        fit(model, loader_of(), ADAM, epochs=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nn.GCN, nn.GIN, partial(nn.GAT, num_heads=2), nn.PNA])
def test_models_learn_by_few_neighbours(kind: Any) -> None:
    options: dict[str, Any] = {"delta": 1.5} if kind is nn.PNA else {}
    history = fit(model_of(kind, **options), loader_of(), optax.adam(0.003), epochs=20)
    assert history.loss[-1] < 0.9 * history.loss[0]
