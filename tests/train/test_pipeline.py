"""The pipeline of P3: its steps are those of equation 3, and bad input is refused."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph import Graph, nn, train
from jaxgraph.parallel import ShardedGraph, make_mesh, shard
from jaxgraph.parallel.ptags import apply, gather, scatter, sync, transform
from jaxgraph.sampling import Loader
from jaxgraph.train import NodeClassification, fit
from jaxgraph.train.objective import gradients, split_model
from tests.law.passes import TOLERANCE
from tests.tolerance import relative_error
from tests.train.small_model import CLASSES, FEATURES, on_devices, random_partition, small_graph

ADAM = optax.adam(0.02)
SEED, STALENESS = 3, 3


@cache
def graph() -> Graph:
    return small_graph(61)


class OwnModel(nnx.Module):
    """A first layer in P-TAGS, whose function of each feature is not linear."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.own, self.others = (nnx.Param(rngs.normal((FEATURES, 8))) for _ in range(2))
        self.last = nn.SAGEConv(8, CLASSES, rngs=rngs)

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> jax.Array:
        first, second = shard if isinstance(shard, list) else (shard, shard)
        neighbors = gather(scatter(first, x, lambda sender, edge, receiver: sender * receiver))
        kernels = self.own[...], self.others[...]
        shares = transform(
            x, neighbors, kernels, lambda w, x, a: jax.numpy.exp(x) @ w[0] + jax.numpy.cos(a) @ w[1]
        )
        return self.last(second, apply(jax.nn.tanh, sync(shares)))


def model_of(name: str) -> Any:
    """A model of two layers."""
    widths = (FEATURES, 8, CLASSES)
    options: dict[str, Any] = {"num_layers": 2, "dropout": 0.4, "rngs": nnx.Rngs(0)}
    kinds: dict[str, Any] = {
        "sage": partial(nn.GraphSAGE, *widths, norm="layer", **options),
        "sage-batch-norm": partial(nn.GraphSAGE, *widths, norm="batch", **options),
        "gcn-residual": partial(nn.GCN, FEATURES, FEATURES, CLASSES, residual=True, **options),
        "gat": partial(nn.GAT, *widths, num_heads=2, **options),
        "gin-bfloat16": partial(nn.GIN, *widths, dtype=jax.numpy.bfloat16, **options),
        "own": OwnModel,
    }
    return kinds[name]()


def placed(devices: str) -> ShardedGraph:
    """The graph in mode "p3"; some devices may hold copies of columns."""
    number, _, copied = devices.partition("-")
    options = {"feature_budget": 100_000} if copied else {}
    return on_devices(graph(), int(number), "p3", **options)


def reference(model: Any, loader: Loader, epochs: int) -> tuple[list[float], list[Any]]:
    """Equation 3, letter by letter: the losses of epochs, and the last parameters."""
    split, task, losses = split_model(model), NodeClassification(), []
    params, key = split.params, jax.random.key(SEED)
    state = ADAM.init(params)
    for epoch in range(epochs):
        weights, found = [], []
        batches = list(loader.batches(epoch))
        for step in range(len(batches) + STALENESS):
            weights.append(params)
            if step < STALENESS:
                continue
            index = step - STALENESS
            of_batch = jax.random.fold_in(jax.random.fold_in(key, epoch), index)
            then = split._replace(params=weights[index])
            _, sums, _, gradient = gradients(then, batches[index], of_batch, task, True)
            found.append(sums)
            updates, state = ADAM.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        total = jax.tree.map(lambda *each: sum(each), *found)
        losses.append(float(task.metrics(total)["loss"]))
    return losses, jax.tree.leaves(params)


SLOW = pytest.mark.slow


@pytest.mark.law(1)
@pytest.mark.parametrize(
    ("name", "devices", "batch_size"),
    [
        ("sage", "3", 8),
        pytest.param("sage", "4-copied", 8, marks=SLOW),
        pytest.param("sage", "1", 8, marks=SLOW),
        pytest.param("sage", "6", 8, marks=SLOW),
        # Fewer batches than the pipeline holds.
        pytest.param("sage", "2", 30, marks=SLOW),
        pytest.param("sage-batch-norm", "1", 8, marks=SLOW),
        pytest.param("gcn-residual", "3", 8, marks=SLOW),
        pytest.param("gat", "3", 8, marks=SLOW),
        pytest.param("gin-bfloat16", "2", 8, marks=SLOW),
        pytest.param("own", "3", 8, marks=SLOW),
    ],
)
def test_steps_are_those_of_equation_3(name: str, devices: str, batch_size: int) -> None:
    loader = Loader(graph(), [3, 2], sharded=placed(devices), batch_size=batch_size)
    losses, params = reference(model_of(name), loader, 2)
    history = fit(model_of(name), loader, ADAM, epochs=2, seed=SEED, staleness=STALENESS)
    # Adam divides small gradients by their size, rounded differently.
    tolerance = 0.02 if "bfloat16" in name else 5 * TOLERANCE
    assert relative_error(history.loss, losses) < tolerance
    assert history.state is not None
    for one, other in zip(jax.tree.leaves(history.state.params), params, strict=True):
        assert relative_error(one, other) < tolerance


@pytest.mark.slow
@pytest.mark.law(1)
@pytest.mark.parametrize("devices", ["4", "4-copied"])
def test_functions_of_features_are_those_of_one_device(devices: str) -> None:
    """Also where the last column of some devices is padding, and the function is not 0 there."""
    assert FEATURES % 4
    expected = train.loss_and_grad(OwnModel(), on_devices(graph(), 1), seed=SEED)
    loader = Loader(graph(), [-1, -1], sharded=placed(devices), batch_size=61)
    for given in (placed(devices), *loader.batches(0)):
        found = train.loss_and_grad(OwnModel(), given, seed=SEED)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert relative_error(one, other) < TOLERANCE


@pytest.mark.slow
def test_a_run_goes_on_where_it_ended() -> None:
    loader = Loader(graph(), [3, 2], sharded=placed("2"), batch_size=8)
    how: dict[str, Any] = {"optimizer": ADAM, "staleness": STALENESS}
    whole = fit(model_of("sage"), loader, epochs=3, seed=SEED, **how)
    first = fit(model_of("sage"), loader, epochs=1, seed=SEED, **how)
    rest = fit(model_of("sage"), loader, epochs=2, state=first.state, **how)
    assert first.loss + rest.loss == whole.loss
    assert first.val_loss + rest.val_loss == whole.val_loss


class Wrapped(nnx.Module):
    """Recomputes its first layer in the backward."""

    def __init__(self) -> None:
        self.inner = model_of("own")

    def __call__(self, shard: Any, x: Any, **options: Any) -> jax.Array:
        return nnx.remat(lambda inner, shard, x: inner(shard, x))(self.inner, shard, x)


class Gathering(nnx.Module):
    """Reads all features of the nodes that receive, and no others."""

    def __init__(self) -> None:
        self.map = nnx.Linear(FEATURES, CLASSES, rngs=nnx.Rngs(0))

    def __call__(self, shard: Any, x: Any, **options: Any) -> jax.Array:
        own = x.first_rows(shard[-1].receiver_rows)
        return self.map(own.gathered(shard[-1].receivers, "a test"))


class Running(nnx.Module):
    """Its first layer divides by what training has written, also from a parameter."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.kernel = nnx.Param(rngs.normal((FEATURES, 8)))
        self.last = nn.SAGEConv(8, CLASSES, rngs=rngs)
        self.scale, self.norm = (nnx.BatchStat(jax.numpy.float32(1.0)) for _ in range(2))

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> jax.Array:
        first, second = shard if isinstance(shard, list) else (shard, shard)
        kernel = self.kernel[...] / (self.scale[...] * self.norm[...])
        neighbors = gather(scatter(first, x), "mean")
        h = sync(transform(x, neighbors, kernel, lambda kernel, x, a: (x + a) @ kernel))
        if train:
            mask = first.receivers.node_mask[:, None]
            total = first.sum(jax.numpy.where(mask, jax.lax.stop_gradient(h) ** 2, 0).sum())
            self.scale[...] = 1 + jax.numpy.sqrt(total)
            self.norm[...] = 1 + jax.numpy.linalg.norm(jax.lax.stop_gradient(self.kernel[...]))
        return self.last(second, jax.numpy.tanh(h))


@pytest.mark.slow
def test_a_batch_is_pulled_back_through_the_variables_that_it_read() -> None:
    """Alone in its epoch, a batch makes the same step in the pipeline."""
    loader = Loader(graph(), [-1, -1], sharded=placed("2"), batch_size=61)
    found = []
    for staleness in (0, STALENESS):
        model = Running()
        fit(model, loader, optax.sgd(1.0), epochs=1, staleness=staleness)
        found.append(jax.tree.leaves(nnx.state(model)))
    for one, other in zip(*found, strict=True):
        assert relative_error(one, other) < TOLERANCE


class OfSenders(nnx.Module):
    """Reads data of the nodes that send in its first layer."""

    def __init__(self) -> None:
        self.map = nn.Linear(FEATURES, CLASSES, rngs=nnx.Rngs(0))

    def __call__(self, shard: Any, x: Any, **options: Any) -> jax.Array:
        h = self.map(shard[0].senders, x) * shard[0].senders.node_data["age"][:, None]
        return shard[0].own_rows(h)


def test_data_of_the_senders_is_refused() -> None:
    given = graph().with_nodes(age=np.ones(61))
    loader = Loader(given, [3], sharded=on_devices(given, 2, "p3"), batch_size=8)
    with pytest.raises(ValueError, match=r"reads 'age' of the senders .* Read it of the receivers"):
        fit(OfSenders(), loader, ADAM, epochs=1)


class OfRows(nnx.Module):
    """Multiplies the features by a matrix."""

    def __init__(self) -> None:
        self.kernel = nnx.Param(nnx.Rngs(0).normal((FEATURES, 8)))
        self.convolution = nn.SAGEConv(8, CLASSES, rngs=nnx.Rngs(0))

    def __call__(self, shard: Any, x: Any, **options: Any) -> jax.Array:
        return self.convolution(shard[0], x @ self.kernel[...])


def test_a_first_layer_that_needs_all_features_is_refused() -> None:
    loader = Loader(graph(), [3], sharded=on_devices(graph(), 2, "p3"), batch_size=8)
    message = "cannot be split by column of features, .*Start with one that can"
    with pytest.raises(ValueError, match=message):
        fit(OfRows(), loader, ADAM, epochs=1)


@pytest.mark.parametrize(
    ("staleness", "mode", "make", "message"),
    [
        (2, "p3", "sage", "staleness is 2; expected 0, or 3"),
        (True, "p3", "sage", "staleness is True; expected 0, or 3"),
        (3.0, "p3", "sage", "staleness is 3.0; expected 0, or 3"),
        (3, "sar", "sage", "is for mini-batches of a graph in mode 'p3'"),
        (3, None, "sage", "is for mini-batches of a graph in mode 'p3'"),
        pytest.param(3, "p3", Wrapped, "^the pipeline .* jax.checkpoint", marks=SLOW),
        pytest.param(3, "p3", Gathering, "gathers its features instead", marks=SLOW),
    ],
)
def test_refused(staleness: Any, mode: str | None, make: Any, message: str) -> None:
    model = model_of(make) if isinstance(make, str) else make()
    given: Any = graph()
    if mode is not None:
        fanouts = [3] if make is Gathering else [3, 2]
        given = Loader(graph(), fanouts, sharded=on_devices(graph(), 2, mode), batch_size=8)
    with pytest.raises(ValueError, match=message):
        fit(model, given, ADAM, epochs=1, staleness=staleness)


def test_a_cache_of_rows_and_too_few_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="cache_bytes: in mode 'p3' no device reads rows"):
        Loader(graph(), [3], sharded=placed("2"), cache_bytes=1000)
    narrow = graph().replace(nodes=np.asarray(graph().nodes)[:, :2])
    with pytest.raises(ValueError, match="2 feature column"):
        shard(narrow, random_partition(narrow, 3), make_mesh(3), "p3")


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("mode", "devices", "cache", "copied"),
    [
        ("sar", 3, 0, 0.0),
        ("sar", 3, 10**6, 1.0),
        ("sar", 1, 0, None),
        ("p3", 2, 0, 0.0),
        # Two of four devices hold the same columns: of three others' a device has one's.
        ("p3", 4, 0, 1 / 3),
        ("p3", 3, 0, 1.0),
    ],
)
def test_the_history_has_the_hit_rate_of_copies(
    mode: str, devices: int, cache: int, copied: float | None
) -> None:
    # Features of 120 columns take more than edges, so that slices differ in size.
    wide = graph().replace(nodes=np.tile(np.asarray(graph().nodes), (1, 20)))
    budget = {1 / 3: 25_000, 1.0: 100_000}.get(copied or 0)
    options = {"feature_budget": budget} if mode == "p3" and budget else {}
    sharded = on_devices(wide, devices, mode, **options)
    loader = Loader(wide, [3, 2], sharded=sharded, batch_size=30, cache_bytes=cache)
    model = nn.GraphSAGE(120, 8, CLASSES, num_layers=2, rngs=nnx.Rngs(0))
    history = fit(model, loader, ADAM, epochs=1)
    assert history.records[0].copied == (None if copied is None else pytest.approx(copied))
    assert ("copied" in history.to_dict()) == (copied is not None)
