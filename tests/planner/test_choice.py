"""The choice between modes, by counts, without compiling."""

import json
from pathlib import Path
from typing import Any

import jax
import optax
import pytest
from flax import nnx

from jaxgraph import nn, saga
from jaxgraph.datasets import load
from jaxgraph.parallel import make_mesh, shard
from jaxgraph.planner import GraphCounts, Plan, choose, consider, load_plan, step_cost
from jaxgraph.planner.choice import NEAR, Considered
from jaxgraph.train import fit

COUNTS = GraphCounts(20_000, 200_000, 32, 4)
ADAM = optax.adam(1e-2)


def make_model() -> nnx.Module:
    return nn.GCN(32, 16, 4, rngs=nnx.Rngs(0))


def ways(target: str, model: nnx.Module | None = None, **options: Any) -> list[Considered]:
    """The ways of a model for `COUNTS`, by hash and not compiled unless options say otherwise."""
    options = {"methods": ["hash"], "compile": "none"} | options
    return list(consider(model or make_model(), COUNTS, target, ADAM, **options))


def chosen(target: str, **options: Any) -> Plan:
    options = {"methods": ["hash"], "compile": False} | options
    return choose(make_model(), COUNTS, target, ADAM, **options)


def test_a_plan_fits_is_stored_and_obeyed(tmp_path: Path) -> None:
    found = ways("h200x4")
    assert {each.option.mode for each in found} == {"domain", "sar", "p3"}
    totals = sorted(each.run.memory.total for each in found if each.run is not None)
    limit = totals[2]
    plan = chosen("h200x4", memory_limit=limit)
    assert plan.memory <= limit
    fitting = [each for each in found if each.run and each.run.memory.total <= limit]
    near = [each for each in fitting if each.seconds <= NEAR * min(e.seconds for e in fitting)]
    assert (plan.option, plan.seconds) == (near[0].option, near[0].seconds)
    for each in found:
        assert each.run is not None and each.run.communication >= each.run.hidden
    path = tmp_path / "plan.json"
    plan.save(path)
    assert load_plan(path) == plan
    graph = load("random", num_nodes=200, degree=4, num_features=32, num_classes=4, seed=0)
    parts, mesh = plan.partition(graph), make_mesh(4)
    manifest = shard(graph, parts, mesh, plan=plan).manifest
    assert manifest.mode == plan.option.schedule
    assert (manifest.columns is not None) == (plan.mode == "p3")
    with pytest.raises(ValueError, match="said by the plan"):
        shard(graph, parts, mesh, "domain", plan=plan)


@pytest.mark.slow
def test_a_graph_that_no_way_fits_is_streamed(tmp_path: Path) -> None:
    graph = load("sbm", num_nodes=4000, num_features=32, num_classes=4, seed=0)
    model, limit = nn.GCN(32, 8, 4, rngs=nnx.Rngs(0)), 1_200_000
    given: Any = {"memory_limit": limit, "methods": ["metis"]}
    found = list(consider(model, graph, "cpux1", ADAM, compile="none", **given))
    assert [each.option.mode for each in found[:2]] == ["sar", "stream"]
    assert [each.fits for each in found] == [False] * (len(found) - 1) + [True]
    plan = choose(model, graph, make_mesh(1), ADAM, **given)
    assert plan.mode == "stream" and plan.num_parts == 2 ** (len(found) - 2) > 1
    assert plan.memory <= limit and plan.inside > 0 and plan.num_devices == 1
    plan.save(tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan
    streamed = shard(graph, plan.partition(graph), make_mesh(1), plan=plan, folder=tmp_path)
    assert streamed.is_streamed and streamed.num_parts == plan.num_parts
    history = fit(model, streamed, ADAM, epochs=1, plan=plan, memory_limit=limit)
    assert history.needs is not None and history.needs.device == plan.memory
    ample = choose(model, graph, make_mesh(1), ADAM, memory_limit="1GB", methods=["metis"])
    assert ample.mode == "sar" and ample.num_parts == 1


class Printing(nnx.Module):
    """A model with an effect, which is no model to stream."""

    def __init__(self) -> None:
        self.conv = nn.GCNConv(32, 4, rngs=nnx.Rngs(0))

    def __call__(self, shard: Any, x: Any, key: Any = None, train: bool = False) -> Any:
        jax.debug.print("a layer")
        return self.conv(shard, x)


def test_a_model_that_cannot_be_streamed_is_a_way_that_does_not_fit() -> None:
    graph = load("sbm", num_nodes=400, num_features=32, num_classes=4, seed=0)
    given: Any = {"memory_limit": 10_000, "methods": ["hash"]}
    *_, last = consider(Printing(), graph, "cpux1", ADAM, compile="none", **given)
    assert last.option.mode == "stream" and not last.fits
    assert "has an effect beside its results" in last.why_not
    with pytest.raises(ValueError, match=r"memory_limit is 10,000 bytes.*least that works"):
        choose(Printing(), graph, "cpux1", ADAM, compile=False, **given)


def test_files_that_are_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for text, message in [
        ("{", "no JSON file"),
        ("[]", "format None"),
        (json.dumps({"format": 99}), "format 99; expected 3"),
        (json.dumps({"format": 3, "mode": "sar"}), "is no plan"),
    ]:
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            load_plan(path)


@pytest.mark.slow
def test_the_least_limit_that_works_is_named_and_works() -> None:
    with pytest.raises(ValueError, match="the least that works") as raised:
        chosen("cpux2", memory_limit=1000)
    least = str(raised.value).split("about ")[1].split(", with")[0].replace(",", "")
    assert chosen("cpux2", memory_limit=int(least)).memory == int(least)


def test_a_prediction_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load("chung-lu", num_nodes=300, degree=6, num_features=32, num_classes=4, seed=0)
    given: Any = {"methods": ["hash"]}
    true = choose(make_model(), graph, "cpux1", ADAM, **given)
    assert true.compiled_for is not None
    predicted = step_cost.temporary_bytes
    monkeypatch.setattr(step_cost, "temporary_bytes", lambda jaxpr: 10 * predicted(jaxpr))
    limit = true.memory + 8
    found = choose(make_model(), graph, "cpux1", ADAM, memory_limit=limit, **given)
    assert (found.memory, found.policy) == (true.memory, true.policy)
    (way,) = ways("cpux1", memory_limit="9MB")
    assert way.run is not None and way.run.memory.arguments < 9e6 < way.run.memory.range()[0]
    assert way.why_not.startswith("may not fit: predicted to need") and not way.fits
    assert chosen("cpux1", memory_limit="9MB").memory == way.run.memory.total


@pytest.mark.expensive
@pytest.mark.parametrize("kind", [saga.CommNet, saga.GatedGCN])
def test_a_mode_that_cannot_run_a_model_is_a_row(kind: Any) -> None:
    model = kind(32, 8, 4, rngs=nnx.Rngs(0))
    found = ways("cpux2", model)
    assert {each.option.mode for each in found if each.fits} == {"domain", "sar"}
    reasons = {each.why_not for each in found if each.option.mode == "p3"}
    assert len(reasons) == 1 and "cannot be split by column" in reasons.pop()
    with pytest.raises(ValueError, match="features"):
        choose(kind(31, 8, 4, rngs=nnx.Rngs(0)), COUNTS, "cpux2", ADAM, compile=False)


@pytest.mark.slow
def test_the_fastest_that_fits_is_compiled_and_taken() -> None:
    fastest, uncompiled = (ways("cpux2", compile=how) for how in ("fastest", "none"))
    assert [each.option for each in fastest] == [each.option for each in uncompiled]
    compiled = [each for each in fastest if each.run and each.run.memory.is_compiled]
    assert [each.fits for each in compiled] == [True]
    plan = chosen("cpux2", compile=True)
    assert plan.option == compiled[0].option and plan.compiled_for is not None
    with pytest.raises(ValueError, match="compile"):
        consider(make_model(), COUNTS, "cpux2", ADAM, compile="best")


def test_mistakes() -> None:
    for wrong, message in [
        ({"memory_limit": -1}, "memory_limit: got -1"),
        ({"memory_limit": "16 quarks"}, "memory_limit: got '16 quarks'"),
        ({"target": "h2000x4"}, "Did you mean 'h200'"),
        ({"source": 100}, "source is of type int"),
    ]:
        given = {"source": COUNTS, "target": "cpux2", "memory_limit": None} | wrong
        source, target, limit = (given[name] for name in ("source", "target", "memory_limit"))
        with pytest.raises(ValueError, match=message):
            choose(make_model(), source, target, ADAM, memory_limit=limit, compile=False)
