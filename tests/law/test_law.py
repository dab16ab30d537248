"""Law 1: in every mode, loss, gradients and running statistics are those of the float64 oracle.

Of the matrix of five models, every two values of different factors meet in a case of `make test`,
and every three in `make test-all`: a fault that needs four values to show is rare (Kuhn, Wallace
and Gallo, IEEE TSE 30(6), 2004). Every other model meets one mode in `make test`, and every mode in
`make test-all`. `tests.law.ran` counts the cases that ran.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgraph as jg
from jaxgraph import nn, saga, train
from jaxgraph.parallel import make_mesh, propagate, shard
from tests.law import table
from tests.law.passes import TOLERANCE, WIDE, check, graph_of, parts_of
from tests.law.ran import matrix_case
from tests.law.table import EVERY_MODE, NUM_LAYERS, OTHER_MODELS, PAIRS, Case, one_mode_each
from tests.oracles.models import ATTENTION, Model
from tests.strategies import NUM_CLASSES
from tests.tolerance import relative_error
from tests.training import HIDDEN, P3_MODES, mode_options


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The cases of every three values are computed where they are asked for: it takes seconds."""
    if "case" in metafunc.fixturenames:
        cases = table.triples() if metafunc.config.getoption("tier") == "all" else PAIRS
        metafunc.parametrize("case", cases, ids=[case.name for case in cases])


@pytest.mark.law(1)
def test_matrix(case: Case, record_property: Callable[[str, Any], None]) -> None:
    has_edge_data, attention = case.features == "with-edge-data", case.model in ATTENTION
    model = Model(
        case.model,
        num_heads=2 if attention else 1,
        norm="batch",
        dropout=case.dropout,
        activation="elu",
        edge_features=2 if has_edge_data and attention else 0,
    )
    sparse = case.features == "sparse"
    graph = graph_of(has_edge_data and not attention, model.edge_features > 0, sparse)
    parts, mesh = parts_of(case.parts, case.method), make_mesh(case.devices, hosts=case.hosts)
    kernels = case.implementation
    check(model, graph, parts, mesh, case.mode, sparse=sparse, implementation=kernels)
    record_property(*matrix_case(case))


@pytest.mark.law(1)
@pytest.mark.parametrize(("name", "mode"), one_mode_each([*OTHER_MODELS]))
def test_other_models(name: str, mode: str) -> None:
    model = OTHER_MODELS[name]
    graph = graph_of(edges=model.edge_features > 0)
    check(model, graph, parts_of(3, "hash"), make_mesh(3), mode, num_layers=NUM_LAYERS.get(name))


class LearnedMaximum(nnx.Module):
    """max_j tanh(W x_j) r_i, of messages whose winner is found by its inputs."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.kernel = nnx.Param(rngs.normal((WIDE, NUM_CLASSES)))

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
        x, kernel = shard.to_nodes(x), self.kernel.get_value()
        message = lambda s, r, e: jnp.tanh(s @ kernel) * (1 + r[:, :1])  # noqa: E731
        return propagate(shard, message, x, x, reduce="max")


class SharedRows(nnx.Module):
    """Aggregates ones, which all parts share, times a parameter, and counts nodes."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.kernel = nnx.Param(rngs.normal((WIDE, NUM_CLASSES)))

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
        y = jg.layers.linear(shard, x, self.kernel.get_value())
        ones = jnp.ones((shard.num_rows, 1)) * self.kernel.get_value()[0, 0]
        degree = propagate(shard, lambda s, r, e: s, ones)
        return y * degree / shard.num_nodes


class OwnMessages(nnx.Module):
    """A maximum, a softmax with dropout and a sum over kept edges, all of weighted messages."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.scale = nnx.Param(rngs.normal((NUM_CLASSES,)))
        self.kernel = nnx.Param(rngs.normal((WIDE, NUM_CLASSES)))

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
        x = jg.layers.linear(shard, x, self.kernel.get_value())
        scale = self.scale.get_value()

        def message(sender: Any, receiver: Any, edge: Any) -> Any:
            weight, keep = edge
            return jnp.where(keep[:, None], jnp.sin(sender * scale) * receiver * weight, 0)

        edge = (shard.edge_weight[:, None], jg.parallel.keep_edges(shard, key, 0.4))
        total = propagate(shard, message, x, x, edge)
        best = propagate(shard, lambda s, r, e: jnp.cos(s * scale) + r, x, x, reduce="max")
        logits = lambda s, r, e: (s[:, :2] * scale[:2], jnp.stack([s, s], 1))  # noqa: E731
        options = {"reduce": "softmax", "dropout": 0.3, "key": key}
        return total + best + propagate(shard, logits, x, x, **options).sum(1)


_SIZES = (WIDE, HIDDEN, NUM_CLASSES)
_SMOOTH: dict[str, Any] = {"num_layers": 3, "activation": jnp.tanh}
WITHOUT_ORACLE: dict[str, Callable[[nnx.Rngs], Any]] = {
    "deep-gcn": lambda rngs: nn.DeepGCN(*_SIZES, norm="layer", **_SMOOTH, rngs=rngs),
    "gated-gcn": lambda rngs: saga.GatedGCN(*_SIZES, num_layers=2, rngs=rngs),
    "commnet": lambda rngs: saga.CommNet(*_SIZES, num_layers=2, rngs=rngs),
    "ggnn": lambda rngs: saga.GGNN(*_SIZES, num_layers=2, num_edge_types=3, rngs=rngs),
    "learned-maximum": lambda rngs: LearnedMaximum(rngs),
    "shared-rows": lambda rngs: SharedRows(rngs),
    "own-messages": lambda rngs: OwnMessages(rngs),
}
"""Models whose value on one device other tests compare: here it is what other modes equal."""
SAGA = ("gated-gcn", "commnet", "ggnn")
WITHOUT_P3 = [mode for mode in EVERY_MODE if mode not in P3_MODES]
"""The modes of a model whose first layer needs all features of a node."""


@cache
def graph_for(name: str) -> jg.Graph:
    """With the edge data that the model reads."""
    graph = graph_of(weights=name == "own-messages")
    types = np.arange(graph.num_edges, dtype=np.int32) % 3
    return graph.replace(edge_type=types) if name == "ggnn" else graph


def observed(name: str, sharded: Any) -> dict[str, Any]:
    """Loss, gradients and, where nothing is drawn, outputs."""
    model = WITHOUT_ORACLE[name](nnx.Rngs(0))
    loss, gradients = train.loss_and_grad(model, sharded, seed=3, train=True)
    found = {"loss": loss} | {str(at): leaf for at, leaf in enumerate(jax.tree.leaves(gradients))}
    return found if name == "own-messages" else found | {"y": train.predict(model, sharded)}


@cache
def on_one_device(name: str) -> dict[str, Any]:
    return observed(name, shard(graph_for(name), None, make_mesh(1)))


@pytest.mark.expensive
@pytest.mark.law(1)
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *one_mode_each(SAGA, WITHOUT_P3),
        *one_mode_each([name for name in WITHOUT_ORACLE if name not in SAGA]),
    ],
)
def test_models_equal_one_device(name: str, mode: str) -> None:
    parts, devices = {"stream": (6, 3), "sar": (6, 2), "domain": (6, 2)}.get(mode, (4, 4))
    mesh = make_mesh(devices)
    sharded = shard(graph_for(name), parts_of(parts, "hash"), mesh, **mode_options(mode))
    expected, found = on_one_device(name), observed(name, sharded)
    for each, value in expected.items():
        assert relative_error(found[each], value) < TOLERANCE, each
