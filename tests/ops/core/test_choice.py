"""Messages with kernels, devices that may use them, and results compared with XLA's."""

import contextlib
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops import registry
from jaxgraph.ops.core import choice
from jaxgraph.ops.core.choice import has_kernel, usable_implementation
from jaxgraph.ops.core.edges import with_implementation
from jaxgraph.ops.core.message_functions import (
    GatMessage,
    GatV2Message,
    sum_message,
    weighted_message,
)
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Extremum, Softmax, Sum
from jaxgraph.ops.mosaic_gpu import trust
from pallas_kernels.chips import multiprocessors
from pallas_kernels.teams import Launch
from tests.cpu_kernels import needs_kernels
from tests.ops.blocks import by_kernels, place_block
from tests.strategies import SMALL_GRAPHS

GRAPH = next(graph for graph in SMALL_GRAPHS if graph.name == "star-in")


def rows(*shape: int, dtype: Any = jnp.float32) -> jax.Array:
    values = np.random.default_rng(len(shape)).standard_normal(shape)
    return jnp.asarray(values, dtype)


def known(dtype: Any = jnp.float32) -> dict[str, tuple[Any, Any, Inputs]]:
    placed = place_block(GRAPH)
    senders, receivers = placed.block.sender_rows, placed.block.receiver_rows
    x, heads = rows(senders, 5, dtype=dtype), rows(senders, 2, 3, dtype=dtype)
    logits, attention = rows(senders, 2, dtype=dtype), rows(2, 3, dtype=dtype)
    weights = rows(placed.block.edge_slots, dtype=dtype)
    per_head = rows(placed.block.edge_slots, 2, dtype=dtype)
    attended = rows(receivers, 2, dtype=dtype)
    return {
        "sum": (sum_message, Sum(), Inputs((), (x, heads), (), ())),
        "weighted": (weighted_message, Sum(), Inputs((), x, (), weights)),
        "float32-weights": (
            weighted_message,
            Sum(jnp.dtype(dtype)),
            Inputs((), x, (), weights.astype(jnp.float32)),
        ),
        "per-head": (weighted_message, Sum(), Inputs((), heads, (), per_head)),
        "max": (sum_message, Extremum(), Inputs((), x, (), ())),
        "min": (sum_message, Extremum(-1.0), Inputs((), x, (), ())),
        "gat": (GatMessage(0.2), Softmax(heads=2), Inputs((), (heads, logits), attended, ())),
        "gatv2": (GatV2Message(0.2), Softmax(heads=2), Inputs(attention, heads, heads + 1, ())),
    }


def a_message_of_ones_own(params: Any, sender: Any, receiver: Any, edge: Any) -> Any:
    return sender


@pytest.mark.expensive
@needs_kernels
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", known())
def test_kernels_equal_chunks_of_edges(name: str, dtype: Any) -> None:
    message, reducer, inputs = known(dtype)[name]
    block = place_block(GRAPH).block
    # Each of the two differs from float64 by at most half of this.
    tolerance = 4e-6 if dtype == jnp.float32 else 2e-2

    def loss(floating: tuple[Any, ...], block: Any) -> tuple[Any, Any]:
        outputs = by_kernels(block, message, reducer, Inputs(*floating))
        leaves = jax.tree.leaves(outputs)
        return sum((leaf.astype(jnp.float32) ** 2).sum() for leaf in leaves), outputs

    floating = (inputs.params, inputs.sender, inputs.receiver, inputs.edge)
    both = [
        jax.grad(loss, has_aux=True)(floating, with_implementation(block, name))
        for name in ("cpu", "xla")
    ]
    for native, portable in zip(*map(jax.tree.leaves, both), strict=True):
        assert native.dtype == portable.dtype
        scale = float(jnp.abs(portable).max()) + 1e-30
        difference = native.astype(jnp.float32) - portable.astype(jnp.float32)
        assert float(jnp.abs(difference).max()) <= tolerance * scale


@needs_kernels
@pytest.mark.parametrize("name", known())
def test_the_librarys_own_messages_have_kernels(name: str) -> None:
    assert has_kernel("cpu", *known()[name])


def test_other_messages_and_types_are_refused() -> None:
    _, reducer, inputs = known()["sum"]
    assert not has_kernel("cpu", a_message_of_ones_own, reducer, inputs)
    for name in known():
        assert not has_kernel("cpu", *known(jnp.float16)[name])


@dataclasses.dataclass(frozen=True)
class Device:
    """A stand-in for a JAX device: the attributes that the choice of an implementation reads."""

    platform: str
    compute_capability: str | None = None
    core_count: int | None = None
    device_kind: str = "a chip"


CPU, HOPPER = Device("cpu"), Device("gpu", "9.0", 114)


def test_what_is_missing_is_told_to_those_who_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "missing", lambda: "needs kernels.so")
    assert usable_implementation(None, CPU) == "xla"
    with pytest.raises(NotImplementedError, match=r"'cpu' needs kernels.so; implementation=None"):
        usable_implementation("cpu", CPU)
    monkeypatch.setattr(choice, "missing", lambda: "")
    assert usable_implementation(None, CPU) == usable_implementation("cpu", CPU) == "cpu"
    assert usable_implementation("xla", CPU) == usable_implementation(None, Device("rocm")) == "xla"
    with pytest.raises(NotImplementedError, match="runs on gpu, and the devices are cpu"):
        usable_implementation("mosaic_gpu", CPU)
    with pytest.raises(NotImplementedError, match="runs on cpu, and the devices are gpu"):
        usable_implementation("cpu", HOPPER)
    with pytest.raises(ValueError, match="did you mean 'cpu'"):
        usable_implementation("cpus", CPU)


@pytest.mark.parametrize("capability", ["8.0", "8.9", "10.0", "12.0", "gfx942", None])
def test_gpu_kernels_are_for_the_chips_that_they_were_compiled_for(capability, caplog) -> None:
    device = Device("cuda", capability, device_kind=f"chip {capability}")
    choice._warn_once.cache_clear()
    with caplog.at_level("WARNING"):
        assert [usable_implementation(None, device) for _ in range(3)] == ["xla"] * 3
    (record,) = caplog.records
    assert f"compute capability 9.0, and chip {capability} has" in record.getMessage()
    # A caller who names them gets them, or an error of the compiler.
    assert usable_implementation("mosaic_gpu", device) == "mosaic_gpu"


@pytest.mark.parametrize("outcome", ["ok: largest error 1e-6", "failed: largest error 2", "boom"])
def test_gpu_kernels_are_taken_after_a_self_check(outcome, monkeypatch, caplog) -> None:
    """Once in a process; if it fails, or does not compile, XLA is used, with one line."""
    checks = []

    def check(op, function) -> str:
        if op != "aggregate":
            return "ok"
        checks.append(function)
        if outcome == "boom":
            raise RuntimeError("ptxas is missing\nand more")
        return outcome

    monkeypatch.setattr(registry, "check", check)
    monkeypatch.setattr(trust, "unsupported", lambda device: "")
    device = jax.devices()[0]
    trust._checked_once.cache_clear()
    choice._warn_once.cache_clear()
    stands_for_a_gpu = Device("gpu", "9.0")
    monkeypatch.setattr(jax, "local_devices", lambda: [stands_for_a_gpu])
    monkeypatch.setattr(jax, "default_device", lambda _: contextlib.nullcontext(device))
    with caplog.at_level("WARNING"):
        names = {usable_implementation(None, stands_for_a_gpu) for _ in range(3)}
    trust._checked_once.cache_clear()
    assert len(checks) == 1
    if outcome.startswith("ok"):
        assert names == {"mosaic_gpu"} and not caplog.records
    else:
        (record,) = caplog.records
        reason = "raised RuntimeError: ptxas is missing" if outcome == "boom" else outcome
        assert names == {"xla"}
        assert record.getMessage().endswith(f"mosaic_gpu self-check of aggregate {reason}")


def test_multiprocessors_are_asked_of_the_device() -> None:
    assert multiprocessors(HOPPER) == 114
    assert multiprocessors(Device("gpu", "9.0")) == 132
    assert multiprocessors(Device("cpu", core_count=4)) == 132
    assert Launch().programs == 8 * multiprocessors()
