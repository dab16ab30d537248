"""Keep, offload or recompute, against the dynamic program and exhaustive search."""

import dataclasses
import time

import numpy as np
import pytest

from jaxgraph.planner.memory.choices import Choices, policy_of
from jaxgraph.planner.memory.dataflow import Dataflow, Operation, Rates, Tensor
from jaxgraph.planner.memory.dynamic_program import least_transfer
from jaxgraph.planner.memory.integer_program import plan_memory
from jaxgraph.planner.memory.schedule import simulate
from jaxgraph.planner.memory.step_dataflow import Shape, training_step
from tests.planner.memory.dataflows import random_dataflow, random_training_step
from tests.planner.memory.searches import least_seconds

UNIT = Rates(1.0, 1.0, 1.0, 2.0)
H200 = Rates(flops=67e12, memory=4.8e12, host=50e9, link=450e9)
GAT = Shape(
    "gat", 169_343, 1_166_243, (128, 256, 256, 256, 40), heads=4, has_norm=True, has_residual=True
)


def test_transfers_alone_equal_those_of_the_dynamic_program():
    # The last ones are those where a dynamic program that prunes too much goes wrong.
    for seed in (*range(40), 82, 146, 166, 175, 177, 246, 933):
        rng = np.random.default_rng(seed)
        flow = random_dataflow(rng, row=int(rng.integers(3, 10)))
        capacity = flow.least_capacity()[0] + int(rng.integers(4))
        expected = simulate(least_transfer(flow, capacity), capacity).transferred
        found = simulate(plan_memory(flow, capacity, UNIT), capacity)
        assert found.transferred == expected, seed


def test_cost_equals_that_of_exhaustive_search():
    num_repeated = 0
    for seed in range(24, 40):
        rng = np.random.default_rng(seed)
        flow = random_training_step(rng)
        capacity = flow.least_capacity()[0] + int(rng.integers(4))
        used = simulate(plan_memory(flow, capacity, UNIT), capacity)
        cost = used.transferred + used.repeated_seconds + used.repeated_sent_bytes / UNIT.link
        assert cost == pytest.approx(least_seconds(flow, capacity, UNIT.link)), seed
        num_repeated += used.repeated_seconds > 0
    assert num_repeated > 3


def two_layers(seconds: float, sent_bytes: int) -> Dataflow:
    """The backward reads a tensor of 4, which takes as long to compute as stated."""
    return Dataflow(
        (Tensor("x", 1, on_host=True), *(Tensor(k, 4, 0) for k in "hyzg"), Tensor("w", 9, 1)),
        (
            Operation("f", ("x",), ("h[0]",), seconds, sent_bytes, layer=0, is_repeatable=True),
            Operation("y", ("h[0]",), ("y[0]",), layer=0),
            Operation("w", ("y[0]",), ("w[1]",), layer=1),
            Operation("g", ("w[1]",), ("g[0]",), is_backward=True),
            Operation("b", ("g[0]", "h[0]"), ("z[0]",), layer=0, is_backward=True),
        ),
    )


@pytest.mark.parametrize(
    ("capacity", "seconds", "sent_bytes", "expected"),
    [
        (17, 1.0, 0, Choices(kept=("h",))),
        (16, 7.0, 0, Choices(recomputed=("h",))),  # to save and fetch it takes 8
        (16, 9.0, 0, Choices(offloaded=("h",))),
        (16, 7.0, 4, Choices(offloaded=("h",))),  # what it sends again takes 2 more
    ],
)
def test_the_cheapest_choice_is_taken(capacity, seconds, sent_bytes, expected: Choices):
    found = plan_memory(two_layers(seconds, sent_bytes), capacity, UNIT)
    assert policy_of(found)[0] == expected


def test_a_layer_repeats_nothing_of_another():
    flow = two_layers(1.0, 0)
    *others, last = flow.operations
    other = dataclasses.replace(flow, operations=(*others, dataclasses.replace(last, layer=1)))
    assert policy_of(plan_memory(other, 16, UNIT))[0].offloaded == ("h",)


def test_nothing_leaves_within_the_forward_of_a_layer():
    tensors = (Tensor("x", 3, on_host=True), Tensor("h", 5), Tensor("a", 9), Tensor("b", 2))
    reads = [("x",), ("x",), ("a", "x")]

    def dataflow(layer: int | None) -> Dataflow:
        operations = zip(reads, "hab", strict=True)
        made = [Operation(f"o{w}", r, (w,), layer=layer) for r, w in operations]
        end = Operation("end", ("h", "b"), (), layer=layer)
        return Dataflow(tensors, (*made, end))

    assert simulate(plan_memory(dataflow(None), 14, UNIT), 14).transferred == 3 + 5 + 5
    with pytest.raises(ValueError, match="is 18 bytes; the least that works is 19"):
        plan_memory(dataflow(0), 18, UNIT)


def test_a_byte_too_much_is_too_much():
    flow = two_layers(1e12, 0)
    tensors = [dataclasses.replace(each, bytes=each.bytes * 10**9) for each in flow.tensors]
    large = dataclasses.replace(flow, tensors=tuple(tensors))
    assert policy_of(plan_memory(large, 17 * 10**9, UNIT))[0].kept == ("h",)
    assert policy_of(plan_memory(large, 17 * 10**9 - 1, UNIT))[0].offloaded == ("h",)


def test_a_tensor_may_be_kept_by_name():
    flow = two_layers(7.0, 0)
    assert policy_of(plan_memory(flow, 17, UNIT, kept=["h"]))[0].kept == ("h",)
    with pytest.raises(ValueError, match="is 16 bytes; the least that works is 17"):
        plan_memory(flow, 16, UNIT, kept=["h"])
    with pytest.raises(ValueError, match="kept names 'H'; the dataflow has g, h, w, x, y, z"):
        plan_memory(flow, 16, UNIT, kept=["H"])


def test_a_gat_of_four_layers_is_planned_in_less_than_a_second():
    flow = training_step(GAT, H200)
    costs = []
    for limit in (800e6, 10**9, 1.3e9, 1.8e9, 3e9):
        start = time.process_time()
        used = simulate(plan_memory(flow, int(limit), H200), int(limit))
        assert time.process_time() - start < 1
        costs.append(used.transferred / H200.host + used.repeated_seconds)
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > 1.5 * costs[-1]


def test_the_least_limit_that_is_named_is_the_least():
    flow = training_step(dataclasses.replace(GAT, nodes=1000, edges=5000), H200)
    with pytest.raises(ValueError) as caught:
        plan_memory(flow, 0, H200)
    least = int(str(caught.value).split("works is ")[1].split(". ")[0].replace(",", ""))
    assert simulate(plan_memory(flow, least, H200), least).peak == least
    with pytest.raises(ValueError, match="the least that works"):
        plan_memory(flow, least - 1, H200)
