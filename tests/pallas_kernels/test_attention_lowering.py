"""Attention and its gradients lowered for CUDA, and their number of kernels."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export

from pallas_kernels.attention import Attention, attention_state
from pallas_kernels.attention_dropout import Dropout, spread_seed
from pallas_kernels.attention_gradient import Edges, Gradients, attention_gradients, make_adjoint
from pallas_kernels.attention_logits import DOT, GAT, GATV2, Logits
from pallas_kernels.rows import RowList, Rows

ROWS, EDGES = 50, 400
WHOLE, CUT, SPREAD = "whole", "cut", "spread"
"""No row is cut; some are, and joined by clusters; or in a kernel of their own."""


def of(*shape: int, dtype: str = "int32") -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def edges(cut: str) -> Edges:
    def listed(count: int) -> RowList:
        return RowList(of(count), of(count), of(count), of(3))

    rows = Rows(listed(ROWS))
    if cut != WHOLE:
        rows = Rows(listed(ROWS), listed(20), listed(3), 20, cut == SPREAD)
    return Edges(rows, of(EDGES), of(EDGES))


def attention(kind: str, heads: int, width: int, dtype: str, dropped: bool) -> Attention:
    values = of(ROWS, heads * width, dtype=dtype)
    side = of(ROWS, heads, dtype="float32") if kind == GAT else values
    words = jax.eval_shape(spread_seed, of(2, dtype="uint32"))
    dropout = Dropout(words, of(2), of(ROWS), of(ROWS), of(EDGES), 1 << 31, 2.0)
    return Attention(
        sender=side,
        receiver=side,
        vector=of(1, heads * width, dtype="float32") if kind == GATV2 else None,
        values=None if kind == GATV2 else values,
        dropout=dropout if dropped else None,
        heads=heads,
        logits=Logits(kind, 0.2),
    )


def count_kernels(function, *arguments) -> int:
    text = export.export(jax.jit(function), platforms=["cuda"])(*arguments).mlir_module()
    return len(re.findall(r"custom_call @mosaic_gpu\w*", text))


every_shape = pytest.mark.parametrize(
    ("heads", "width", "dtype", "cut"),
    [
        (8, 8, "bfloat16", WHOLE),
        (1, 41, "float16", CUT),
        (1, 602, "float32", CUT),
        (1, 41, "float16", SPREAD),
    ],
)


@pytest.mark.expensive
@pytest.mark.parametrize("kind", [GAT, GATV2, DOT])
@every_shape
def test_forward(kind, heads, width, dtype, cut):
    over, per_head = edges(cut), of(ROWS, heads, dtype="float32")
    start = (per_head, per_head, of(ROWS, heads * width, dtype="float32"))
    found = attention(kind, heads, width, dtype, dropped=cut == WHOLE)
    kernels = count_kernels(attention_state, found, over.rows, over.neighbors, start)
    assert kernels == 1 + (cut == SPREAD)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [GAT, GATV2, DOT])
@every_shape
def test_backward(kind, heads, width, dtype, cut):
    over, per_head = edges(cut), of(ROWS, heads, dtype="float32")
    found = attention(kind, heads, width, dtype, dropped=cut == WHOLE)
    wide = of(ROWS, heads * width, dtype="float32")
    side = per_head if kind == GAT else wide
    before = Gradients(
        values=None if kind == GATV2 else wide,
        sender=side,
        receiver=side,
        vector=of(heads * width, dtype="float32") if kind == GATV2 else None,
    )

    def pull(found, gradient, numbers, over, before):
        adjoint = make_adjoint(found, gradient, *numbers)
        return attention_gradients(found, adjoint, over, over, before)

    # Per head, and shared by all heads.
    for columns in (heads * width, width):
        gradient = of(ROWS, columns, dtype=dtype)
        kernels = count_kernels(pull, found, gradient, (per_head,) * 3, over, before)
        assert kernels == 2 + (cut == SPREAD)
