"""The bytes that mini-batches are predicted to send, beside those of compiled steps."""

from __future__ import annotations

from typing import Any

import optax
import pytest
from flax import nnx

import jaxgraph as jg
from jaxgraph.analysis import traffic
from jaxgraph.parallel import make_mesh, shard
from jaxgraph.partition import partition
from jaxgraph.planner import choose_for_samples
from jaxgraph.sampling import Loader
from jaxgraph.train import compile_train_step

DEVICES, HIDDEN, FANOUTS = 4, 16, [5, 5]


def drawn_graph(features: int = 64) -> jg.Graph:
    return jg.datasets.load(
        "sbm", num_nodes=2000, num_classes=4, degree=16, num_features=features, seed=0
    )


@pytest.mark.expensive
@pytest.mark.parametrize("mode", ["domain", "p3"])
@pytest.mark.parametrize(("name", "most"), [("GraphSAGE", 0.001), ("GCN", 0.1)])
def test_the_bytes_are_those_of_a_compiled_step(name: str, most: float, mode: str) -> None:
    graph = drawn_graph()
    found = choose_for_samples(
        graph, FANOUTS, num_devices=DEVICES, batch_size=256, hidden=HIDDEN
    ).sent[mode]
    parts = partition(graph, DEVICES, method="hash", seed=0)
    sharded = shard(graph, parts, make_mesh(DEVICES), mode)
    batch = Loader(graph, FANOUTS, sharded=sharded, batch_size=256).abstract_batch()
    make: Any = getattr(jg.nn, name)
    model = make(graph.num_features, HIDDEN, 4, num_layers=2, rngs=nnx.Rngs(0))
    sent = traffic(compile_train_step(model, batch, optax.sgd(0.1)))
    del sent["all-reduce"]  # Gradients of parameters, and the loss.
    assert sum(found.values()) == pytest.approx(sum(sent.values()), rel=most)
    assert found["rows"] == pytest.approx(sent["all-to-all"], rel=0.1)
    assert found["forward"] == sent.get("reduce-scatter", 0)


def test_many_features_are_better_left_where_they_are() -> None:
    how: dict[str, Any] = {"num_devices": DEVICES, "batch_size": 256, "hidden": HIDDEN}
    few, many = (choose_for_samples(drawn_graph(x), FANOUTS, **how) for x in (4, 400))
    assert (few.mode, many.mode) == ("domain", "p3")
    assert few.total["p3"] == pytest.approx(many.total["p3"], rel=0.02)
    assert f"{many.total['p3']:,}" in str(many) and "Chosen: p3" in str(many)


def test_one_device_sends_nothing() -> None:
    found = choose_for_samples(drawn_graph(), [5], num_devices=1, hidden=4)
    assert set(found.total.values()) == {0} and found.mode == "domain"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fanouts": []}, "fanouts is"),
        ({"hidden": 0}, "hidden"),
        ({"batch_size": 0}, "batch_size"),
        ({"num_devices": 5000}, "num_devices is 5000; expected at most one for each of"),
        ({"num_devices": 0}, "num_devices is 0"),
        ({"method": "metsi"}, "Did you mean 'metis'"),
        ({"sample_method": "labour"}, "sample_method is 'labour'; expected 'neighbors' or 'lab"),
        ({"graph": jg.datasets.load("karate")}, "no features"),
        ({"graph": None}, "expected a jaxgraph.Graph"),
    ],
)
def test_mistakes(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"graph": drawn_graph(), "fanouts": [5], "num_devices": 2, "hidden": 4}
    given |= changes
    with pytest.raises(ValueError, match=message):
        choose_for_samples(given.pop("graph"), given.pop("fanouts"), **given)
