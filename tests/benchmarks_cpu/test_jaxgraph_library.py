import jax
import jax.numpy as jnp
import pytest

import jaxgraph as jg
from benchmarks.cpu.inputs import attention_inputs, node_features
from benchmarks.cpu.libraries.jaxgraph_library import Library, make_graph, make_model
from benchmarks.cpu.models import LOSSES, MODELS
from benchmarks.cpu.tasks import Attention, Epoch, SpMM, Task, Triad
from benchmarks.cpu.worker import Prepared
from tests.benchmarks_cpu.graphs import adjacency, tiny
from tests.tolerance import assert_close


def prepared(task: Task, implementation: str | None = None, parts: int = 1) -> Prepared:
    library = Library(implementation, parts)
    library.load(tiny())
    library.lay_out(task)
    return library.prepare(task)


@pytest.mark.parametrize(("weighted", "implementation"), [(False, None), (True, "xla")])
def test_sums_are_those_of_the_matrix(weighted: bool, implementation: str | None):
    ready = prepared(SpMM(5, weighted), implementation)
    expected = adjacency(tiny(), weighted) @ node_features(30, 5).astype(float)
    assert_close(ready.results()["y"], expected, reduction_length=20)
    ready.run()
    assert ready.path == (implementation or jg.ops.chosen("aggregate"))
    assert ready.compile_seconds is not None


def dense_attention(task: Attention) -> dict[str, jax.Array]:
    """y, and the gradients of <y, g>."""
    counts = adjacency(tiny())[..., None]
    *arrays, gradient = attention_inputs(30, task)

    def attend(z: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
        powers = counts * jnp.exp(jax.nn.leaky_relu(left[None] + right[:, None], 0.2))
        total = powers.sum(1, keepdims=True)
        alpha = powers / jnp.where(total == 0, 1, total)
        return jnp.einsum("ijh,jhf->ihf", alpha, z)

    y, pull = jax.vjp(attend, *map(jnp.asarray, arrays))
    return {"y": y} | dict(zip("zlr", pull(gradient), strict=True))


def test_attention_and_its_gradients():
    task = Attention(2, 3, backward=True)
    found, expected = prepared(task).results(), dense_attention(task)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert_close(found[name], array, reduction_length=20, name=name)
    assert list(prepared(Attention(2, 3)).results()) == ["y"]


@pytest.mark.parametrize("name", list(MODELS))
def test_models_train_from_the_parameters_that_all_start_from(name: str):
    sharded = jg.parallel.shard(make_graph(tiny()), None, jg.parallel.make_mesh(1))
    loss, _ = jg.train.loss_and_grad(make_model(MODELS[name], 6, 4), sharded, train=True)
    ready = prepared(Epoch(name))
    assert ready.path.endswith("first aggregation once") == (name != "gat")
    losses = ready.results()["losses"]
    assert len(losses) == LOSSES and losses[0] == pytest.approx(float(loss), rel=1e-5)
    assert losses[-1] < losses[0]
    ready.run()


def test_several_parts_train_alike_and_have_no_ops():
    one, two = prepared(Epoch("gcn")), prepared(Epoch("gcn"), parts=2)
    assert_close(two.results()["losses"], one.results()["losses"], reduction_length=256)
    with pytest.raises(NotImplementedError, match="epochs"):
        prepared(SpMM(5), parts=2)


def test_the_triad_runs_again_and_again():
    triad = prepared(Triad(64))
    triad.run()
    triad.run()
