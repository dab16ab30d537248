"""Every kernel lowers for CUDA at the named shapes."""

import jax
import pytest
from jax import export

from benchmarks.gpu_code import cases
from pallas_kernels.shapes import SHAPES

CASES = [
    *(pytest.param(name, False, marks=pytest.mark.slow) for name in SHAPES),
    ("arxiv-128", True),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "spread"), CASES)
def test_lowers(name: str, spread: bool) -> None:
    for kernel, function, arrays in cases(SHAPES[name], jax.ShapeDtypeStruct, spread=spread):
        text = export.export(jax.jit(function), platforms=["cuda"])(*arrays).mlir_module()
        assert "@mosaic_gpu" in text, kernel
