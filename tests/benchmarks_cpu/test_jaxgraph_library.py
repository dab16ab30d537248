import numpy as np
import pytest

import jaxgraph as jg
from benchmarks.cpu.inputs import attention_inputs, node_features
from benchmarks.cpu.libraries.interface import Prepared
from benchmarks.cpu.libraries.jaxgraph_library import JaxgraphLibrary, make_model
from benchmarks.cpu.models import MODELS
from benchmarks.cpu.tasks import Attention, Epoch, Product, SpMM, Task, Triad
from tests.benchmarks_cpu.graphs import adjacency, tiny
from tests.tolerance import assert_close


def prepared(task: Task, implementation: str | None = None, parts: int = 1) -> Prepared:
    library = JaxgraphLibrary(implementation, parts)
    library.load(tiny())
    library.lay_out(task)
    return library.prepare(task)


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_are_those_of_the_matrix(weighted: bool):
    ready = prepared(SpMM(5, weighted))
    expected = adjacency(tiny(), weighted) @ node_features(30, 5).astype(np.float64)
    assert_close(ready.results()["y"], expected, reduction_length=20)
    ready.run()
    assert ready.path == jg.ops.chosen("aggregate") and ready.compile_seconds is not None


def test_the_implementation_named_is_taken():
    assert prepared(SpMM(5), "xla").path == "xla"


def attention_in_float64(task: Attention) -> dict[str, np.ndarray]:
    """y, and the gradients of <y, g> by differences along every number."""
    inputs = attention_inputs(30, task)
    counts = adjacency(tiny())[..., None]
    gradient = inputs.gradient.astype(np.float64)

    def attend(arrays: dict[str, np.ndarray]) -> np.ndarray:
        logits = arrays["l"][None] + arrays["r"][:, None]
        powers = counts * np.exp(np.where(logits >= 0, logits, 0.2 * logits))
        alpha = powers / np.maximum(powers.sum(1, keepdims=True), 1e-300)
        return np.einsum("ijh,jhf->ihf", alpha, arrays["z"])

    primals = dict(
        zip("zlr", (inputs.values, inputs.sender_logits, inputs.receiver_logits), strict=True)
    )
    primals = {name: array.astype(np.float64) for name, array in primals.items()}
    found = {"y": attend(primals)}
    for name, array in primals.items():
        slopes = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            shift = np.zeros_like(array)
            shift[index] = 1e-6
            ahead, back = (attend(primals | {name: array + s * shift}) for s in (1, -1))
            slopes[index] = ((ahead - back) * gradient).sum() / 2e-6
        found[name] = slopes
    return found


def test_attention_and_its_gradients():
    task = Attention(2, 3, backward=True)
    found, expected = prepared(task).results(), attention_in_float64(task)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert_close(found[name], array, reduction_length=20, name=name)
    assert list(prepared(Attention(2, 3)).results()) == ["y"]


@pytest.mark.parametrize("name", list(MODELS))
def test_models_own_the_parameters_that_all_start_from(name: str):
    model = MODELS[name]
    made = make_model(model, 6, 4)
    graph = jg.Graph(
        tiny().senders,
        tiny().receivers,
        30,
        nodes=tiny().nodes,
        labels=tiny().labels,
        train_mask=tiny().train_mask,
    )
    sharded = jg.parallel.shard(graph, None, jg.parallel.make_mesh(1))
    loss, gradients = jg.train.loss_and_grad(made, sharded, train=True)
    ready = prepared(Epoch(name))
    assert ready.path.endswith("first aggregation once") == (name != "gat")
    results = dict(ready.results())
    losses = results.pop("losses")
    assert losses[0] == pytest.approx(float(loss), rel=1e-5) and losses[1] < losses[0]
    shapes = model.parameter_shapes(6, 4)
    assert {key: array.shape for key, array in results.items()} == {
        key: shape for key, shape in shapes.items() if model.has_effect(key)
    }
    kernel = "neighbor_kernel" if name == "sage" else "kernel"
    expected = getattr(gradients["layers"][1]["convolution"], kernel).get_value()
    # Adam's first moment is a tenth of the gradient, rounded once more.
    assert_close(results[f"1/{kernel}"], np.asarray(expected), reduction_length=256)
    ready.run()


def test_several_parts_train_alike_and_have_no_ops():
    one, two = prepared(Epoch("gcn")), prepared(Epoch("gcn"), parts=2)
    assert_close(two.results()["losses"], one.results()["losses"], reduction_length=256)
    with pytest.raises(NotImplementedError, match="epochs"):
        prepared(SpMM(5), parts=2)


def test_what_measures_the_machine():
    triad = prepared(Triad(64))
    np.testing.assert_array_equal(triad.results()["a"], np.full(16, 7.0))
    triad.run()
    square = node_features(8, 8).astype(np.float64)
    assert_close(prepared(Product(8)).results()["c"], square @ square, reduction_length=8)
