"""Every kernel lowers for CUDA at the named shapes; a spread row takes one kernel more."""

import re

import jax
import pytest
from jax import export

from benchmarks.gpu_code import cases
from pallas_kernels.attention_logits import DOT, GAT, GATV2
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
        count = len(re.findall(r"custom_call @mosaic_gpu\w*", text))
        kind, _, what = kernel.partition(" ")
        expected = 1 + what.startswith("gradients") + spread
        assert count == expected if kind in (GAT, GATV2, DOT) else count >= 1, kernel
