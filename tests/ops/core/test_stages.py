"""The stages of a reduction: their choice, that each compiles alone, and that they continue."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.choice import choose_stages
from jaxgraph.ops.core.edge_outputs import EdgeOutputs
from jaxgraph.ops.core.edges import with_implementation
from jaxgraph.ops.core.kernel_stages import KernelStages
from jaxgraph.ops.core.message_functions import (
    DotMessage,
    GatMessage,
    GatV2Message,
    sum_message,
    sum_of_ends,
)
from jaxgraph.ops.core.messages import Inputs, Wanted
from jaxgraph.ops.core.reducers import Mean, Softmax, Sum
from jaxgraph.ops.core.running import Places
from jaxgraph.ops.core.stages import Stages
from pallas_kernels.teams import Launch
from tests.cpu_kernels import needs_kernels
from tests.ops.blocks import place_block
from tests.pallas_kernels.graphs import in_interpreter
from tests.strategies import SMALL_GRAPHS

PLACED = place_block(SMALL_GRAPHS[-1])
RNG = np.random.default_rng(0)
X, Z = (
    jnp.asarray(RNG.standard_normal((PLACED.block.sender_rows, 2, 3)), jnp.float32)
    for _ in range(2)
)
D = jnp.asarray(RNG.standard_normal((PLACED.block.edge_slots, 2, 3)), jnp.float32)


def weighted_by_ends(params: Any, sender: Any, receiver: Any, edge: Any) -> Any:
    return jnp.tanh(sender * receiver) * edge


KNOWN = {
    "sum": (sum_message, Sum(), Inputs((), X, (), ())),
    "mean": (sum_message, Mean(), Inputs((), X, (), ())),
    "gat": (GatMessage(0.2), Softmax(heads=2), Inputs((), (X, X[..., 0]), Z[..., 0], ())),
    "gatv2": (GatV2Message(0.2), Softmax(heads=2), Inputs(X[0], X, Z, ())),
    "dot": (DotMessage(0.4), Softmax(heads=2), Inputs((), (X, 2 * X), Z, ())),
    "own": (weighted_by_ends, Sum(), Inputs((), X, Z, D)),
    "ends": (EdgeOutputs(sum_of_ends), Sum(), Inputs((), X, Z, ((), D))),
}
CHOSEN = {
    ("sum", "xla"): Stages,
    ("gat", "xla"): Stages,
    ("own", "xla"): Stages,
    ("ends", "xla"): Stages,
    **{(name, "cpu"): KernelStages for name in ("sum", "mean", "gat", "gatv2", "dot")},
    ("own", "cpu"): Stages,
    ("ends", "cpu"): Stages,
    **{(name, "mosaic_gpu"): KernelStages for name in ("mean", "gat", "gatv2", "dot", "ends")},
}


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        pytest.param(
            *case,
            marks={"cpu": needs_kernels, "mosaic_gpu": pytest.mark.slow}.get(case[1], ()),
        )
        for case in CHOSEN
    ],
)
def test_stages_continue(name: str, implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges that occur twice: twice the sum and gradients, and the same mean by attention."""
    monkeypatch.setattr(Launch, "here", in_interpreter)
    block = with_implementation(PLACED.block, implementation).with_loops(False)
    edges, (message, reducer, inputs) = block.edges, KNOWN[name]
    stages = choose_stages(edges, message, reducer, inputs)
    assert isinstance(stages, KernelStages) == (CHOSEN[name, implementation] is KernelStages)
    positions = edges.by_sender.position, edges.by_receiver.position

    def stage(method: str, *arguments: Any, **fixed: Any) -> Any:
        def run(*arguments: Any) -> Any:
            stages = choose_stages(edges, message, reducer, inputs)
            found = getattr(stages, method)(*arguments, **fixed)
            return found.gradients if method == "pull_group" else found

        return jax.jit(run)(*arguments)

    if name == "ends":
        adjoint = jnp.ones(block.receiver_rows)
    else:
        state = stage("fold", block, inputs)
        outputs, kept = stage("finish", state, inputs)
        more, _ = stage("fold_group", edges, 0, inputs, state, positions[1], None)
        twice, _ = stage("finish", more, inputs)
        factor = 2 if name in ("sum", "own") else 1
        np.testing.assert_allclose(twice, factor * outputs, rtol=1e-5, atol=1e-5)
        adjoint = stage("adjoint", outputs, kept, jnp.cos(outputs))
    wanted = Wanted(
        params=name == "gatv2",
        sender=True,
        receiver=name not in ("sum", "mean"),
        edge=name in ("own", "ends"),
    )
    once = stage("pull", block, inputs, adjoint, wanted=wanted)
    fixed: Any = {"wanted": wanted, "places": Places(*positions), "after": None}
    again = stage("pull_group", edges, 0, inputs, adjoint, gradients=once, **fixed)
    for part in ("sender", "receiver", "params"):
        pairs = zip(getattr(again, part), getattr(once, part), strict=True)
        for both, one in pairs:
            np.testing.assert_allclose(both, 2 * one, rtol=1e-5, atol=1e-5)


def test_edge_data_has_a_row_per_slot() -> None:
    message, reducer, inputs = KNOWN["own"]
    wrong = Inputs((), inputs.sender, inputs.receiver, D[:-1])
    with pytest.raises(ValueError, match="expected one row per edge slot"):
        choose_stages(PLACED.block.edges, message, reducer, wrong)
