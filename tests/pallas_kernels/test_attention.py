import jax
import numpy as np
import pytest

from pallas_kernels.attention import attention_output, attention_state
from pallas_kernels.attention_logits import DOT, GAT, GATV2
from tests.pallas_kernels.attention_oracle import expected_state, keep_mask, make_attention
from tests.pallas_kernels.graphs import graph, in_interpreter

DEGREES, SENDERS = [2, 0, 1, 9, 1], 6


def states(heads, width, fresh):
    rng, rows = np.random.default_rng(4), len(DEGREES)
    peak, total = np.full((rows, heads), -np.inf), np.zeros((rows, heads))
    sums = np.zeros((rows, heads * width))
    if not fresh:
        peak[:-1] = rng.standard_normal((rows - 1, heads))
        total[:-1] = rng.uniform(1, 2, (rows - 1, heads))
        sums[:-1] = rng.standard_normal((rows - 1, heads * width))
    return tuple(part.astype(np.float32) for part in (peak, total, sums))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "heads", "width", "dtype", "longest", "dropped"),
    [
        (GAT, 3, 7, "float32", 1000, True),
        (GAT, 4, 8, "bfloat16", 4, False),
        (GATV2, 2, 41, "float16", 1000, False),
        (GATV2, 3, 16, "float32", 4, True),
        (DOT, 1, 128, "bfloat16", 1000, True),
        (DOT, 4, 8, "float32", 4, False),
    ],
)
def test_state_of_attention(kind, heads, width, dtype, longest, dropped):
    over = graph(DEGREES, SENDERS, longest=longest)
    attention = make_attention(over, kind, heads, width, dtype, SENDERS, dropped)
    before = states(heads, width, fresh=longest == 1000)
    # Uninitialised arrays may hold anything at rows with edges.
    fresh = longest == 1000
    start = tuple(np.where(np.array(DEGREES)[:, None] > 0, np.nan, part) for part in before)
    start = tuple(part.astype(np.float32) for part in start) if fresh else before
    found = jax.jit(lambda *a: attention_state(*a, fresh=fresh, launch=in_interpreter()))(
        attention, over.rows, over.neighbors, start
    )
    reference = expected_state(attention, over, before, keep_mask(attention, over, heads))
    for part, expected in zip(found, reference, strict=True):
        np.testing.assert_allclose(part, expected, rtol=5e-6, atol=5e-6)


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("kind", "heads", "width", "dtype", "longest", "continued"),
    [
        (GAT, 3, 7, "float32", 1000, False),
        (GATV2, 2, 16, "bfloat16", 4, True),
        (DOT, 4, 8, "float16", 4, False),
    ],
)
def test_outputs_are_divided_in_every_row(kind, heads, width, dtype, longest, continued):
    over = graph(DEGREES, SENDERS, longest=longest, every=True)
    attention = make_attention(over, kind, heads, width, dtype, SENDERS, False)
    before, rows = states(heads, width, fresh=not continued), len(DEGREES)
    number = jax.ShapeDtypeStruct((rows, heads), "float32")
    results = (number, number, jax.ShapeDtypeStruct((rows, heads * width), dtype))
    start = before if continued else None
    peak, total, y = jax.jit(
        lambda a, rows, neighbors, start: attention_output(
            a, rows, neighbors, results, start, launch=in_interpreter()
        )
    )(attention, over.rows, over.neighbors, start)
    top, count, sums = expected_state(attention, over, before, None)
    top, count = np.where(count > 0, top, 0), np.where(count > 0, count, 1)
    outputs = (sums.reshape(rows, heads, -1) / count[..., None]).reshape(rows, -1)
    for found, expected in ((peak, top), (total, count)):
        np.testing.assert_allclose(found, expected, rtol=5e-6, atol=5e-6)
    assert y.dtype == dtype
    rounding = 5e-6 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(np.asarray(y, np.float64), outputs, rtol=rounding, atol=rounding)
