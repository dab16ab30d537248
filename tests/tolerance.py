"""The source of tolerances: the unit roundoff of the type and the longest reduction."""

import math
from typing import Any

import ml_dtypes
import numpy as np

# Errors of a sum of n terms of random sign grow with sqrt(n). The constant covers a few consecutive
# sums, and the functions between them, in three layers and their backward.
CONSTANT = 8.0


def tolerance(dtype: Any, reduction_length: int = 1) -> float:
    """Relative error allowed in the maximum norm: `8 eps(dtype) sqrt(reduction_length)`.

    Args:
        dtype: The floating type that the computation accumulated in.
        reduction_length: Terms in its longest sum, such as the highest degree times the features.
    """
    if reduction_length < 1:
        raise ValueError(f"reduction_length must be at least 1, got {reduction_length}")
    return CONSTANT * float(ml_dtypes.finfo(dtype).eps) * math.sqrt(reduction_length)


def relative_error(actual: Any, expected: Any) -> float:
    """`max |actual - expected| / max |expected|` in float64; absolute where `expected` is zero.

    NaN or infinity on either side counts as an infinite error.
    """
    left = np.asarray(actual).astype(np.float64)
    right = np.asarray(expected).astype(np.float64)
    if left.shape != right.shape:
        raise AssertionError(f"shapes differ: actual {left.shape}, expected {right.shape}")
    if left.size == 0:
        return 0.0
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return math.inf
    error = float(np.abs(left - right).max())
    scale = float(np.abs(right).max())
    return error / scale if scale > 0 else error


def assert_close(
    actual: Any,
    expected: Any,
    *,
    reduction_length: int = 1,
    dtype: Any = np.float32,
    name: str = "value",
) -> None:
    """Fails where `actual` is further from `expected` than rounding explains.

    Args:
        actual: An array, or an array-like.
        expected: The reference, of the same shape.
        reduction_length: Terms in the longest sum, see `tolerance`.
        dtype: The type of the computation of `actual`.
        name: Name of the array, for the message.
    """
    allowed = tolerance(dtype, reduction_length)
    error = relative_error(actual, expected)
    if error <= allowed:
        return
    left = np.asarray(actual).astype(np.float64)
    right = np.asarray(expected).astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.abs(left - right)
    worst = np.unravel_index(int(np.argmax(np.nan_to_num(difference, nan=np.inf))), left.shape)
    raise AssertionError(
        f"{name} {left.shape}: relative error {error:.3g} in the maximum norm, allowed "
        f"{allowed:.3g} ({np.dtype(dtype).name}, longest reduction {reduction_length}); worst at "
        f"{tuple(int(i) for i in worst)}: actual {left[worst]:.9g}, expected {right[worst]:.9g}; "
        f"not finite: {int((~np.isfinite(left)).sum())} of actual, "
        f"{int((~np.isfinite(right)).sum())} of expected"
    )
