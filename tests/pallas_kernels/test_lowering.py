"""Every kernel lowers for CUDA at the named shapes."""

import jax
import pytest
from jax import export

from benchmarks.gpu_code import cases
from pallas_kernels.shapes import SHAPES

ALIKE = ("arxiv-7", "arxiv-128-float16", "products-256")
"""Shapes whose code is much like that of another."""

CASES = [
    *(
        pytest.param(name, False, marks=[pytest.mark.full] if name in ALIKE else [])
        for name in SHAPES
    ),
    ("arxiv-128", True),
]


@pytest.mark.parametrize(("name", "spread"), CASES)
def test_lowers(name: str, spread: bool) -> None:
    for kernel, function, arrays in cases(SHAPES[name], jax.ShapeDtypeStruct, spread=spread):
        text = export.export(jax.jit(function), platforms=["cuda"])(*arrays).mlir_module()
        assert "@mosaic_gpu" in text, kernel
