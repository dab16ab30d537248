import pytest

from benchmarks.cpu.limits import Limits, limits
from benchmarks.cpu.measure import Measurement
from benchmarks.cpu.tasks import Product, SpMM, Triad
from benchmarks.cpu.work import Work


def measured(task, seconds: list[float]) -> Measurement:
    return Measurement("", task, "", seconds=seconds)


def test_the_best_run_of_any_library_counts():
    found = limits(
        [
            measured(Triad(1000), [2.0, 1.0]),
            measured(Triad(1000), [0.5]),
            measured(Product(10), [4.0]),
            measured(SpMM(8), [1e-9]),
        ]
    )
    assert found == Limits(bandwidth=24_000.0, rate=500.0)


@pytest.mark.parametrize("task", [Triad(10), Product(10)])
def test_both_have_to_be_measured(task):
    assert limits([measured(task, [1.0])]) is None
    assert limits([measured(Triad(10), []), measured(Product(10), [])]) is None


def test_times_of_memory_and_cores_add_up():
    found = Limits(bandwidth=10.0, rate=5.0)
    work = Work(gathered_bytes=100, single_bytes=40, operations=10)
    assert found.seconds(work) == 12.0
    assert found.seconds_with_reuse(work) == 6.0
