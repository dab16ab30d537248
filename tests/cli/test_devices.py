import os
import subprocess
import sys

import pytest


def run_alone(program: str) -> str:
    """Output of a program in a new process, in which nobody has asked for emulated devices."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
    }
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environment | {"JAX_PLATFORMS": "cpu"},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("parts", [1, 3])
def test_missing_devices_are_emulated(parts: int):
    program = (
        "import jax.numpy as jnp\n"
        "from jaxgraph.cli.devices import mesh_of\n"
        f"mesh = mesh_of({parts})\n"
        "assert float(jnp.ones(3).sum()) == 3\n"
        "print(mesh.size, mesh.devices.flat[-1].platform)\n"
    )
    assert run_alone(program).split() == [str(parts), "cpu"]


def test_devices_that_are_there_are_taken():
    program = (
        "import jax\n"
        "from jaxgraph.cli.devices import mesh_of\n"
        "jax.config.update('jax_num_cpu_devices', 4)\n"
        "started = jax.devices()\n"
        "mesh = mesh_of(2)\n"
        "assert list(mesh.devices.flat) == started[:2] and jax.device_count() == 4\n"
    )
    run_alone(program)
