import pytest

from tests.interpreter import run_alone


def output_of(program: str) -> str:
    """Returns the output of a program that runs without a request for emulated devices."""
    result = run_alone(program, "-W", "error")
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 3])
def test_missing_devices_are_emulated(parts: int):
    program = (
        "import jax.numpy as jnp\n"
        "from jaxgraph.cli.devices import mesh_of\n"
        f"mesh = mesh_of({parts})\n"
        "assert float(jnp.ones(3).sum()) == 3\n"
        "import os\n"
        f"assert ('NPROC' in os.environ) == ({parts} > 1)\n"
        "print(mesh.size, mesh.devices.flat[-1].platform)\n"
    )
    assert output_of(program).split() == [str(parts), "cpu"]


@pytest.mark.slow
def test_devices_that_are_there_are_taken():
    program = (
        "import jax\n"
        "from jaxgraph.cli.devices import mesh_of\n"
        "jax.config.update('jax_num_cpu_devices', 4)\n"
        "started = jax.devices()\n"
        "mesh = mesh_of(2)\n"
        "assert list(mesh.devices.flat) == started[:2] and jax.device_count() == 4\n"
    )
    output_of(program)
