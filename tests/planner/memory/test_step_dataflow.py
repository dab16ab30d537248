"""The dataflow of a training step: its names, its sizes, and what its backward reads."""

import dataclasses
import math
import re

import jax.numpy as jnp
import pytest
from flax import nnx
from jax.ad_checkpoint import print_saved_residuals

import jaxgraph as jg
from jaxgraph import layers, parallel
from jaxgraph.planner.memory import step_dataflow as names
from jaxgraph.planner.memory.cache_policies import least_recently_used
from jaxgraph.planner.memory.choices import Choices, policy_of
from jaxgraph.planner.memory.dataflow import Dataflow, Operation, Rates, Tensor
from jaxgraph.planner.memory.schedule import MemorySchedule, Step
from jaxgraph.planner.memory.step_dataflow import Shape, training_step

RATES = Rates(flops=1e12, memory=1e11, host=1e10, link=1e10)
NODES, EDGES = 10, 30
GCN = Shape("gcn", NODES, EDGES, (7, 5, 6, 3))
GAT = Shape("gat", NODES, EDGES, (7, 8, 8, 3), heads=2, has_norm=True, has_residual=True)


def kept_by_all(shape: Shape) -> dict[int | None, Choices]:
    """What the backward reads where there is room for everything."""
    flow = training_step(shape, RATES)
    return policy_of(least_recently_used(flow, flow.size(flow.bytes)))


def test_names_are_those_of_the_policies():
    assert (names.REDUCED, names.HALOS) == parallel.KEPT
    for name in ("MAPPED", "STATISTICS", "LAYER_INPUT", "ACTIVATED"):
        assert getattr(names, name) == getattr(layers, name)


def test_gcn_reads_inputs_alone_where_it_maps_first_and_sums_where_it_maps_behind():
    found = {layer: choices.kept for layer, choices in kept_by_all(GCN).items()}
    assert found == {
        None: ("features", "edges"),
        0: ("parameters",),
        1: ("activated_features", "parameters", "reduced_messages"),
        2: ("activated_features", "logits", "parameters"),
    }
    sizes = training_step(GCN, RATES).bytes
    assert sizes["features"] == NODES * 7 * 4
    assert sizes["edges"] == EDGES * 8
    assert sizes["mapped_features[0]"] == NODES * 5 * 4
    assert sizes["reduced_messages[1]"] == NODES * 5 * 4
    assert sizes["parameters[2]"] == (6 * 3 + 3) * 4


def test_attention_reads_products_and_sums_and_a_norm_its_input():
    found = kept_by_all(GAT)
    of_attention = {"mapped_features", "reduced_messages", "parameters"}
    of_norm = {"layer_input", "batch_statistics", "activated_features"}
    assert set(found[0].kept) == of_attention
    assert set(found[1].kept) == of_attention | of_norm
    (pull_map,) = (e for e in training_step(GAT, RATES).operations if e.name == "pull_map[1]")
    assert "gradient_of_output[1]" in pull_map.reads  # that of the residual connection
    sizes = training_step(GAT, RATES).bytes
    assert sizes["layer_input[2]"] == NODES * 8 * 4


def test_sage_keeps_its_input_and_its_mean_where_it_maps_behind():
    found = kept_by_all(dataclasses.replace(GCN, kind="sage"))
    assert set(found[1].kept) == {"activated_features", "parameters", "reduced_messages"}
    assert set(found[2].kept) == {"activated_features", "parameters", "logits"}


def test_sizes_are_those_that_jax_saves(capsys: pytest.CaptureFixture[str]):
    saved = ("mapped_features", "reduced_messages", "layer_input")
    graph = jg.datasets.load("random", num_nodes=64, degree=3, num_features=7, seed=0)
    model = jg.nn.GAT(
        *(7, 4, 3),
        num_layers=3,
        num_heads=2,
        dropout=0.0,
        norm="batch",
        residual=True,
        policy=layers.RematPolicy(save=saved, rest="recompute"),
        rngs=nnx.Rngs(0),
    )
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def outputs(params, rest):
        return nnx.merge(graphdef, params, rest)(graph, jnp.asarray(graph.nodes), train=True)

    print_saved_residuals(outputs, params, rest)
    found = dict.fromkeys(saved, 0)
    for shape, name in re.findall(r"f32\[([\d,]+)\] named '(\w+)'", capsys.readouterr().out):
        found[name] += 4 * math.prod(map(int, shape.split(",")))
    flow = training_step(dataclasses.replace(GAT, nodes=64), RATES)
    assert found == {
        name: sum(each.bytes for each in flow.tensors if each.name == name) for name in saved
    }


@pytest.mark.parametrize("mode", ["sar", "domain"])
def test_halos_are_sent_forward_and_backward(mode: str):
    flow = training_step(dataclasses.replace(GCN, halo_rows=4, mode=mode), RATES)
    sent = {each.name: each.sent_bytes for each in flow.operations if each.sent_bytes}
    forward = "aggregate" if mode == "sar" else "receive"
    assert sent == {
        f"{forward}[0]": 4 * 5 * 4,
        f"{forward}[1]": 4 * 5 * 4,
        f"{forward}[2]": 4 * 3 * 4,
        "pull_aggregate[0]": 4 * 5 * 4,
        "pull_aggregate[1]": 4 * 5 * 4,
        "pull_aggregate[2]": 4 * 3 * 4,
    }
    assert ("halos[0]" in flow.bytes) == (mode == "domain")
    attention = training_step(dataclasses.replace(GAT, halo_rows=4, mode=mode), RATES)
    sent = {each.name: each.sent_bytes for each in attention.operations}
    # Under SAR the backward receives the products again.
    ratio = 2 if mode == "sar" else 1
    assert sent["pull_aggregate[1]"] == ratio * sent[f"{forward}[1]"] > 0


def test_a_workspace_adds_to_aggregations_and_to_no_policy():
    plain, wide = (
        training_step(dataclasses.replace(GAT, workspace_bytes=size), RATES) for size in (0, 10**6)
    )
    for before, after in zip(plain.operations, wide.operations, strict=True):
        more = 10**6 if "aggregate" in before.name else 0
        assert wide.size(after.tensors) == plain.size(before.tensors) + more
    assert kept_by_all(GAT) == kept_by_all(dataclasses.replace(GAT, workspace_bytes=10**6))


def test_only_a_forward_within_its_layer_repeats():
    flow = training_step(GAT, RATES)
    repeats = {each.name for each in flow.operations if each.is_repeatable}
    expected = {f"{name}[{layer}]" for layer in range(3) for name in ("map", "aggregate")}
    expected |= {f"{name}[{layer}]" for layer in (1, 2) for name in ("activate", "statistics")}
    assert repeats == expected


def test_of_two_outputs_the_one_that_stayed_is_kept():
    flow = Dataflow(
        (Tensor("x", 1, on_host=True), *(Tensor(key, 1) for key in ("a", "b", "workspace"))),
        (
            Operation("f", ("x",), ("a", "b", "workspace"), is_repeatable=True),
            Operation("pull", ("a", "b"), (), is_backward=True),
        ),
    )
    forward, backward = flow.operations
    steps = [Step(forward, frozenset()), Step(forward, frozenset("b")), Step(backward, frozenset())]
    actions = [a for a in MemorySchedule.of_steps(flow, steps).actions if a != ("drop", "a")]
    found = policy_of(MemorySchedule(flow, tuple(actions)))
    assert found == {None: Choices(kept=("x", "a"), recomputed=("b",))}


def test_choices_are_told_apart():
    flow = training_step(GCN, RATES)
    steps = []
    for operation in flow.operations:
        drops = frozenset[str]()
        if operation.name == "loss":
            drops = frozenset({"features", "activated_features[1]", "activated_features[2]"})
        if operation.name == "pull_map[2]":
            (again,) = (each for each in flow.operations if each.name == "activate[2]")
            steps.append(Step(again, frozenset()))
        steps.append(Step(operation, drops))
    found = policy_of(MemorySchedule.of_steps(flow, steps))
    assert found[None] == Choices(kept=("edges",), offloaded=("features",))
    assert found[1].offloaded == ("activated_features",)
    assert found[2].recomputed == ("activated_features",)
    assert "layer_input" in found[2].kept


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"kind": "gan"}, "kind is 'gan'; expected one of gcn, sage, gat"),
        ({"mode": "p3"}, "mode is 'p3'; expected one of sar, domain"),
        ({"nodes": 0}, "nodes is 0; expected at least 1"),
        ({"edges": -1}, "edges is -1; expected at least 0"),
        ({"widths": (7,)}, r"widths is \(7,\); expected those of the features"),
        ({"kind": "gat", "heads": 2}, "expected multiples of 2 heads"),
    ],
)
def test_bad_counts_are_refused(changes, expected: str):
    with pytest.raises(ValueError, match=expected):
        dataclasses.replace(GCN, **changes)
