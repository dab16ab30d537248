"""Messages with kernels, devices that may use them, and results compared with XLA's."""

import contextlib
import dataclasses

import jax
import pytest

from jaxgraph.ops import registry, usable
from jaxgraph.ops.core import implementations
from jaxgraph.ops.usable import usable_implementation
from pallas_kernels.chips import multiprocessors
from pallas_kernels.teams import Launch


@dataclasses.dataclass(frozen=True)
class Device:
    """A stand-in for a JAX device: the attributes that the choice of an implementation reads."""

    platform: str
    compute_capability: str | None = None
    core_count: int | None = None
    device_kind: str = "a chip"


CPU, HOPPER = Device("cpu"), Device("gpu", "9.0", 114)


def test_what_is_missing_is_told_to_those_who_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implementations, "missing", lambda: "needs kernels.so")
    assert usable_implementation(None, CPU) == "xla"
    with pytest.raises(NotImplementedError, match=r"'cpu' needs kernels.so; implementation=None"):
        usable_implementation("cpu", CPU)
    monkeypatch.setattr(implementations, "missing", lambda: "")
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
    usable._warn_once.cache_clear()
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
    monkeypatch.setattr(usable, "unsupported", lambda device: "")
    device = jax.devices()[0]
    usable._checked_once.cache_clear()
    usable._warn_once.cache_clear()
    stands_for_a_gpu = Device("gpu", "9.0")
    monkeypatch.setattr(jax, "local_devices", lambda: [stands_for_a_gpu])
    monkeypatch.setattr(jax, "default_device", lambda _: contextlib.nullcontext(device))
    with caplog.at_level("WARNING"):
        names = {usable_implementation(None, stands_for_a_gpu) for _ in range(3)}
    usable._checked_once.cache_clear()
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
