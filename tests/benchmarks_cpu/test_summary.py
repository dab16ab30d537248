import pytest

from benchmarks.cpu.summary import Ratios, Spread, ratios, spread


def test_quartiles_of_five():
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0]) == Spread(3.0, 2.0, 4.0, 5)


def test_quartiles_lie_between_measurements():
    assert spread([1.0, 2.0]) == Spread(1.5, 1.25, 1.75, 2)


def test_nothing_has_no_median():
    with pytest.raises(ValueError, match="values is empty"):
        spread([])


def test_the_mean_of_ratios_is_geometric():
    found = ratios([0.5, 8.0])
    assert found is not None
    assert found.mean == pytest.approx(2.0)
    assert found == Ratios(found.mean, 0.5, 2)


def test_no_ratios():
    assert ratios([]) is None
