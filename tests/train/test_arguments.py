"""Invalid input is refused before compilation."""

from typing import Any

import jax
import optax
import pytest
from flax import nnx

from jaxgraph.parallel import make_mesh, place
from jaxgraph.parallel.placement import AbstractSource
from jaxgraph.train import (
    NodeClassification,
    compile_train_step,
    evaluate,
    fit,
    loss_and_grad,
    predict,
)
from tests.train.small_model import SmallNet, TableNet, on_devices, small_graph


def sharded() -> Any:
    return on_devices(small_graph(), 2)


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


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda shard, x: x, "model is a function"),
        (SmallNet, "model is the class"),
        (Forgetful(), "random stream"),
        (Keyless(), "a Keyless cannot be called as .*Add key=None"),
    ],
)
def test_models(model: Any, message: str) -> None:
    for call in (predict, evaluate, loss_and_grad):
        with pytest.raises(ValueError, match=message):
            call(model, sharded())
    with pytest.raises(ValueError, match=message):
        fit(model, sharded(), optax.sgd(0.1), epochs=1)


def test_the_number_of_features() -> None:
    graph = small_graph()
    assert graph.nodes is not None
    narrow = on_devices(graph.replace(nodes=graph.nodes[:, :4]), 2)
    message = "in_features=6, but the nodes of the graph have 4 features"
    with pytest.raises(ValueError, match=message):
        fit(SmallNet(), narrow, optax.sgd(0.1), epochs=1)
    with pytest.raises(ValueError, match=message):
        predict(SmallNet(), narrow)


@pytest.mark.parametrize("graph", [None, [], "cora", [None]])
def test_graphs(graph: Any) -> None:
    with pytest.raises(ValueError, match="expected a sharded graph"):
        fit(SmallNet(), graph, optax.sgd(0.1), epochs=1)


def test_an_abstract_graph_has_nothing_to_run_on() -> None:
    abstract = place(AbstractSource(sharded().manifest), make_mesh(2))
    with pytest.raises(ValueError, match="abstract"):
        fit(SmallNet(), abstract, optax.sgd(0.1), epochs=1)
    with pytest.raises(ValueError, match="abstract"):
        predict(SmallNet(), abstract)


def test_several_graphs() -> None:
    with pytest.raises(ValueError, match="different meshes"):
        evaluate(SmallNet(), [sharded(), on_devices(small_graph(), 4)])
    with pytest.raises(ValueError, match="one row per node"):
        fit(TableNet(60), [sharded(), sharded()], optax.sgd(0.1), epochs=1)


@pytest.mark.parametrize("optimizer", [None, "adam", optax.adam, 0.1])
def test_optimizers(optimizer: Any) -> None:
    with pytest.raises(ValueError, match="expected a transformation of optax"):
        fit(SmallNet(), sharded(), optimizer, epochs=1)


def test_an_optimizer_that_evaluates_the_loss_again() -> None:
    """Refused with our error and advice; tasks that only read the loss are accepted."""
    message = r"value_fn.*optax\.lbfgs.*loss_and_grad"
    with pytest.raises(ValueError, match=message):
        fit(SmallNet(), sharded(), optax.lbfgs(), epochs=1)
    with pytest.raises(ValueError, match=message):
        compile_train_step(SmallNet(), sharded(), optax.lbfgs())
    plateau = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau())
    assert len(fit(SmallNet(), sharded(), plateau, epochs=1).records) == 1


@pytest.mark.parametrize("task", [NodeClassification, "nodes", 3])
def test_tasks(task: Any) -> None:
    with pytest.raises(ValueError, match="task is"):
        fit(SmallNet(), sharded(), optax.sgd(0.1), epochs=1, task=task)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs is 0; expected an integer, at least 1"),
        ({"epochs": 10**20}, r"epochs is 10+; .* below 2\*\*31"),
        ({"epochs": 2.0}, "epochs is 2.0"),
        ({"epochs": True}, "epochs is True"),
        ({"epochs": 1, "seed": -1}, r"seed: got -1; expected an integer from 0 to 2\*\*32 - 1"),
        # jax.random.key would turn it into the key of 0.
        ({"epochs": 1, "seed": 2**33}, r"seed: got 8589934592"),
        ({"epochs": 1, "seed": jax.random.key(0)}, r"(?s)seed: got Array.*expected an integer"),
        ({"epochs": 1, "patience": 0}, "patience is 0"),
        ({"epochs": 1, "on_epoch": 3}, "on_epoch is 3"),
        ({"epochs": 1, "on_compile": 3}, "on_compile is 3; expected a function"),
    ],
)
def test_options_of_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(SmallNet(), sharded(), optax.sgd(0.1), **options)


def test_patience_needs_validation_nodes() -> None:
    graph = on_devices(small_graph(val_mask=None), 2)
    with pytest.raises(ValueError, match="patience needs validation nodes"):
        fit(SmallNet(), graph, optax.sgd(0.1), epochs=1, patience=3)
