"""Invalid input is refused before compilation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph.layers import RematPolicy
from jaxgraph.parallel import make_mesh, place
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.train import (
    NodeClassification,
    compile_train_step,
    evaluate,
    fit,
    loss_and_grad,
    predict,
)
from tests.train.small_model import SmallNet, TableNet, on_devices, small_graph
from tests.train.test_memory_limit import make_model, make_plan


def sharded(**changes: Any) -> Any:
    return on_devices(small_graph(**changes), 2)


class Forgetful(nnx.Module):
    """A model with flax's own dropout, whose mask would be the same on every device."""

    def __init__(self) -> None:
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> jax.Array:
        return self.dropout(x)


class Keyless(nnx.Module):
    """A model that is called without key and train."""

    def __call__(self, shard: Any, x: Any) -> jax.Array:
        return x


LBFGS = r"value_fn.*optax\.lbfgs.*loss_and_grad"
NOTHING_KNOWN = dict.fromkeys(("labels", "train_mask", "val_mask", "test_mask"))


def test_models_and_what_they_learn_from() -> None:
    narrow = sharded(nodes=np.ones((60, 4), np.float32))
    sgd, every = optax.sgd(0.1), (predict, evaluate, loss_and_grad)
    cases: list[tuple[Any, Any, tuple[Any, ...], str]] = [
        (lambda shard, x: x, sharded(), every, "model is a function"),
        (SmallNet, sharded(), every, "model is the class"),
        (Forgetful(), sharded(), every, "random stream"),
        (Keyless(), sharded(), every, "a Keyless cannot be called as .*Add key=None"),
        (SmallNet(), narrow, every, "in_features=6, but the nodes of the graph have 4 features"),
        (SmallNet(), sharded(**NOTHING_KNOWN), (loss_and_grad,), "no labels"),
        (SmallNet(), sharded(train_mask=None), (loss_and_grad,), "no train_mask, so there is noth"),
    ]
    for model, graph, calls, message in cases:
        for call in calls:
            with pytest.raises(ValueError, match=message):
                call(model, graph)
        with pytest.raises(ValueError, match=message):
            fit(model, graph, sgd, epochs=1)
    for model, graph, _, message in cases[-2:]:
        with pytest.raises(ValueError, match=message):
            compile_train_step(model, graph, sgd)


def test_what_others_refuse() -> None:
    with pytest.raises(ValueError, match="different meshes"):
        evaluate(SmallNet(), [sharded(), on_devices(small_graph(), 4)])
    with pytest.raises(ValueError, match="abstract"):
        predict(SmallNet(), place(AbstractSource(sharded().manifest), make_mesh(2)))
    with pytest.raises(ValueError, match=LBFGS):
        compile_train_step(SmallNet(), sharded(), optax.lbfgs())


def test_what_fit_refuses() -> None:
    graph = sharded()
    plan = make_plan((RematPolicy(),) * 4)
    free, read = optax.contrib.schedule_free_adamw(0.1), optax.contrib.schedule_free_eval_params
    chained = {"optimizer": optax.chain(optax.clip(1.0), free)}
    streamed = {"graph": on_devices(small_graph(), 1, "stream"), "eval_params": read}
    limit = "memory_limit: got .*; expected an amount of memory"
    cases: list[tuple[dict[str, Any], str]] = [
        *(({"graph": each}, "expected a sharded graph") for each in (None, [], "cora", [None])),
        ({"graph": place(AbstractSource(graph.manifest), make_mesh(2))}, "abstract"),
        ({"graph": [graph] * 2, "model": TableNet(60)}, "one row per node"),
        *(
            ({"optimizer": each}, "expected a transformation of optax")
            for each in (None, "adam", optax.adam, 0.1)
        ),
        ({"optimizer": optax.lbfgs()}, LBFGS),
        *(({"task": task}, "task is") for task in (NodeClassification, "nodes", 3)),
        ({"epochs": 0}, "epochs is 0; expected an integer, at least 1"),
        ({"epochs": 10**20}, r"epochs is 10+; .* below 2\*\*31"),
        ({"epochs": 2.0}, "epochs is 2.0"),
        ({"epochs": True}, "epochs is True"),
        ({"seed": -1}, r"seed: got -1; expected an integer from 0 to 2\*\*32 - 1"),
        # jax.random.key would turn it into the key of 0.
        ({"seed": 2**33}, r"seed: got 8589934592"),
        ({"patience": 0}, "patience is 0"),
        ({"patience": 3, "graph": sharded(val_mask=None)}, "patience needs validation nodes"),
        ({"on_epoch": 3}, "on_epoch is 3"),
        ({"on_compile": 3}, "on_compile is 3; expected a function"),
        # Parameters that metrics are of.
        ({"optimizer": free}, "give fit eval_params=optax.contrib.schedule_free_eval_params,"),
        (chained, "a function that passes it"),
        ({"optimizer": optax.MultiSteps(free, 2).gradient_transformation()}, "ScheduleFreeState"),
        ({"optimizer": optax.lookahead(optax.sgd(0.1), 2, 0.5)}, "optax.lookahead"),
        (chained | {"eval_params": 3}, "expected a function of the optimizer's state"),
        (chained | {"eval_params": read}, r"tuple.*state\[1\]"),
        (chained | {"eval_params": lambda state, params: None}, "returns a pytree like params"),
        (
            chained | {"eval_params": lambda state, params: jax.tree.map(jnp.sum, params)},
            "shapes differ",
        ),
        (streamed | {"optimizer": free}, "not for a graph in mode 'stream'"),
        # Limits of memory.
        *(({"memory_limit": each}, limit) for each in (0, -1, True, "x", "16 quarks", 1.5)),
        ({"memory_limit": 1000}, "A SmallNet has no policies"),
        ({"plan": plan}, "model is a SmallNet, which has none"),
        ({"plan": plan, "memory_limit": 1000}, "leave out memory_limit, or leave out plan"),
        (
            {"model": make_model(num_layers=2), "graph": small_graph(), "repartition": "auto"}
            | {"memory_limit": "1GB"},
            "leave out measure_every and repartition",
        ),
        ({"plan": plan, "model": make_model(num_layers=2)}, "4 entries for 2 layers"),
    ]
    for changes, message in cases:
        given: dict[str, Any] = {"model": SmallNet(), "graph": graph, "epochs": 1}
        given |= {"optimizer": optax.sgd(0.1)} | changes
        arguments = [given.pop(name) for name in ("model", "graph", "optimizer")]
        with pytest.raises(ValueError, match=message):
            fit(*arguments, **given)
