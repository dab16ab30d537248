import pytest
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks


@pytest.fixture(autouse=True)
def no_races():
    """The race detector reports races and continues."""
    gpu_callbacks.reset_gpu_interpret_mode_state()
    yield
    races = gpu_callbacks._races
    assert races is None or not races.races_found
