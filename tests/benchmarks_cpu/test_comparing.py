import numpy as np
import pytest

from benchmarks.cpu.comparing import TOLERANCE, Expected, relative_error


def values(**arrays: np.ndarray) -> dict[str, Expected]:
    return {name: Expected.of(array) for name, array in arrays.items()}


def test_the_error_is_that_of_the_worst_array():
    expected = values(a=np.array([3.0, 4.0]), b=np.array([1.0]))
    found = {"a": np.array([3.0, 4.5]), "b": np.array([1.0])}
    assert relative_error(found, expected) == (pytest.approx(0.1), "a")


def test_shapes_may_differ_but_not_sizes():
    ones = np.ones((2, 3))
    assert relative_error({"y": ones.reshape(6, 1)}, values(y=ones))[0] == 0
    assert relative_error({"y": ones[:1]}, values(y=ones)) == (np.inf, "y")


def test_a_gradient_that_vanishes_is_measured_by_the_others():
    expected = values(kernel=np.full(4, 10.0), bias=np.full(4, 1e-9))
    found = {"kernel": np.full(4, 10.0), "bias": np.full(4, -1e-9)}
    assert relative_error(found, expected)[0] < TOLERANCE


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_finite_is_wrong(wrong: float):
    found = {"a": np.ones(2), "y": np.array([1.0, wrong])}
    assert relative_error(found, values(a=np.ones(2), y=np.ones(2))) == (np.inf, "y")


def test_what_is_missing_is_wrong():
    assert relative_error({"y": np.ones(2)}, values(y=np.ones(2), z=np.ones(2))) == (np.inf, "z")


def test_one_wrong_row_of_a_hundred_thousand_is_found():
    expected = np.ones((100_000, 2), np.float32)
    found = expected.copy()
    found[5] = 0
    assert relative_error({"y": found}, values(y=expected))[0] > TOLERANCE


def test_rounding_is_relative_to_what_was_added_up():
    """A sum of 1000 and -1000 + 1e-3 in float32."""
    expected = {"r": Expected(np.array([1e-3]), np.array([2e3]))}
    found = {"r": np.array([np.float32(1000) + np.float32(-1000 + 1e-3)])}
    assert relative_error(found, values(r=expected["r"].values))[0] > TOLERANCE
    assert relative_error(found, expected)[0] < 1e-6


def test_heads_are_stacked_behind_the_nodes():
    heads = [Expected(np.full((2, 3), head), np.full((2, 3), 10 + head)) for head in range(4)]
    stacked = Expected.stack(heads)
    assert stacked.values.shape == (2, 4, 3)
    assert (stacked.values[0, 3, 0], stacked.terms[1, 2, 1]) == (3, 12)
