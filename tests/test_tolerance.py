import jax.numpy as jnp
import numpy as np
import pytest

from tests.tolerance import assert_close, relative_error, tolerance


def test_tolerance_grows_with_the_root_of_the_reduction_and_the_unit_roundoff():
    assert tolerance(np.float32, 100) == pytest.approx(10 * tolerance(np.float32))
    assert tolerance(np.float64) < 1e-14 < tolerance(np.float32) < 1e-5
    assert tolerance(jnp.bfloat16) == pytest.approx(2**16 * tolerance(np.float32))


def test_tolerance_refuses_an_empty_reduction():
    with pytest.raises(ValueError, match="at least 1"):
        tolerance(np.float32, 0)


def test_a_float32_sum_is_within_tolerance_of_its_float64_value():
    values = np.random.default_rng(0).standard_normal(10_000)
    actual = np.cumsum(values.astype(np.float32), dtype=np.float32)
    assert_close(actual, np.cumsum(values), reduction_length=values.size)


def test_error_is_relative_to_the_largest_entry_and_absolute_against_zero():
    assert relative_error([100.0, 1.0], [100.0, 2.0]) == pytest.approx(0.01)
    assert relative_error([0.5, 0.0], [0.0, 0.0]) == 0.5
    assert relative_error(np.zeros((0, 3)), np.zeros((0, 3))) == 0.0


def test_the_message_names_the_array_and_the_worst_entry():
    with pytest.raises(AssertionError, match=r"gradient \(2, 2\).*worst at \(1, 0\): actual 4"):
        assert_close([[1, 2], [4, 4]], [[1, 2], [3, 4]], name="gradient")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite_never_passes(bad: float):
    with pytest.raises(AssertionError, match="1 of actual, 0 of expected"):
        assert_close([1.0, bad], [1.0, 2.0])
    with pytest.raises(AssertionError, match="1 of actual, 1 of expected"):
        assert_close([1.0, bad], [1.0, bad])


def test_shapes_are_compared_not_broadcast():
    with pytest.raises(AssertionError, match="shapes differ"):
        assert_close(np.ones((3, 1)), np.ones(3))
