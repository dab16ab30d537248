import pytest

from tests.interpreter import run_alone


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 3])
def test_missing_devices_are_emulated_and_others_are_taken(parts: int):
    program = f"""
import os
import jax
import jax.numpy as jnp
from jaxgraph.cli.devices import mesh_of
mesh = mesh_of({parts})
assert float(jnp.ones(3).sum()) == 3 and mesh.size == {parts}
assert ('NPROC' in os.environ) == ({parts} > 1)
started = jax.devices()
assert list(mesh_of(1).devices.flat) == started[:1] and jax.device_count() == {parts}
"""
    result = run_alone(program, "-W", "error")
    assert result.returncode == 0, result.stderr
