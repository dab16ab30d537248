"""Profiles: the timed program computes what the mesh does, and samples say what was timed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgraph import nn, saga
from jaxgraph.parallel.part_alone import part_alone
from jaxgraph.partition import partition
from jaxgraph.planner import fit_layers, profile
from jaxgraph.planner.cost.features import FEATURES, part_features
from jaxgraph.planner.cost.profiling import Reference, in_training
from tests.layers.neighborhood_cases import CASES
from tests.tolerance import assert_close
from tests.training import crooked_graph, crooked_sharded

PARTS = 3


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sar", "domain"])
@pytest.mark.parametrize("name", ["gcn-narrow", "gat"])
def test_with_its_halo_given_late_a_part_computes_the_same(name: str, mode: str) -> None:
    weighted, case = name == "gcn-narrow", CASES[name]
    nodes = crooked_graph(edge_weight=weighted).nodes
    assert nodes is not None
    part = part_alone(crooked_sharded(PARTS, "hash", mode, weighted), 1)
    of_senders, of_receivers = (
        jnp.where(t.node_mask[:, None], nodes[np.asarray(t.node_ids)], 0)
        for t in (part.senders, part.receivers)
    )
    sent: list[Any] = []

    class Spy:
        """Sees the rows that a layer sends, halo and all."""

        def propagate(self, message: Any, reducer: Any, inputs: Any, **options: Any) -> Any:
            sent.append(inputs.sender)
            return part.propagate(message, reducer, inputs, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(part, name)

    ends = of_senders, of_receivers
    case.conv(case.params, Spy(), ends)
    rows = part.receiver_rows
    given = jax.tree.map(lambda leaf: leaf[rows:], sent[0])
    expected, pull = jax.vjp(lambda *ends: case.conv(case.params, part, ends), *ends)
    late = in_training(part, lambda own: given)
    found, pull_late = jax.vjp(lambda x: case.conv(case.params, late, x), of_receivers)
    mask = np.asarray(part.receivers.node_mask)
    assert_close(np.asarray(found)[mask], np.asarray(expected)[mask], reduction_length=100)
    gradient = jnp.sin(1.0 + jnp.arange(expected.size)).reshape(expected.shape)
    gradient = jnp.where(mask[:, None], gradient, 0)
    (of_x,) = pull_late(gradient)
    at_senders, at_receivers = pull(gradient)
    of_both = np.asarray(at_senders)[:rows] + np.asarray(at_receivers)
    assert_close(np.asarray(of_x)[mask], of_both[mask], reduction_length=1000)


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


@pytest.mark.expensive
@pytest.mark.parametrize("mode", ["sar", "domain"])
def test_samples_of_all_layers_and_parts(mode: str, reference: Reference) -> None:
    graph = crooked_graph()
    parts = partition(graph, PARTS, "hash")
    model = nn.GAT(graph.num_features, 4, 3, num_heads=2, num_layers=2, rngs=nnx.Rngs(0))
    samples = profile(model, graph, parts, mode=mode, windows=2, reference=reference)
    layers = [f"GATConv {graph.num_features}->8, first", "GATConv 8->3"]
    assert [(s.layer, s.part) for s in samples] == [
        (name, part) for name in layers for part in range(PARTS)
    ]
    assert {s.mode for s in samples} == {mode}
    assert all(s.seconds > 0 and s.repeat_error >= 0 for s in samples)
    # An edge of GAT reads the mapped row and a score for every head.
    assert samples[0].access.columns == 2 * 4 + 2
    assert samples[0].access.row_bytes == 4 * (2 * 4 + 2)
    values = part_features(graph, parts, samples[0].access, tuple(FEATURES))
    found = [s.features[f] for s in samples[:PARTS] for f in FEATURES]
    np.testing.assert_array_equal(found, values.ravel())
    models = fit_layers(samples)
    assert list(models) == layers
    assert [model.error().num_parts for model in models.values()] == [PARTS, PARTS]


def test_what_cannot_be_profiled_is_refused() -> None:
    graph = crooked_graph()
    parts = partition(graph, PARTS, "hash")
    model = nn.GCN(graph.num_features, 4, 3, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="got a Linear, which is not its layers"):
        profile(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), graph, parts)
    with pytest.raises(ValueError, match="layers: got 2; expected indices from 0 to 1"):
        profile(model, graph, parts, layers=(2,))
    with pytest.raises(ValueError, match="windows: got 1"):
        profile(model, graph, parts, windows=1)
    with pytest.raises(ValueError, match="no node features"):
        profile(model, graph.replace(nodes=None), parts)


@pytest.mark.expensive
@pytest.mark.parametrize("kind", [saga.CommNet, saga.GatedGCN, saga.GCN])
def test_layers_of_saga_are_profiled(kind: Any, reference: Reference) -> None:
    weighted = kind is saga.GCN
    graph = crooked_graph(edge_weight=weighted)
    model = kind(graph.num_features, 4, 3, rngs=nnx.Rngs(0))
    samples = profile(
        model, graph, partition(graph, 2, method="hash"), windows=2, reference=reference
    )
    assert [sample.part for sample in samples] == [0, 1] * model.num_layers
    assert all(sample.seconds > 0 for sample in samples)
