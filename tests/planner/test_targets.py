import pytest

from jaxgraph.planner.targets import find_target


def test_a_name_says_chip_and_devices() -> None:
    few, many = find_target("H200x8"), find_target("h200x64")
    assert (few.chip, few.devices, few.hosts) == ("h200", 8, 1)
    assert (many.hosts, many.per_host, many.name) == (8, 8, "h200x64")
    assert find_target("cpux4").mesh().size == 4
    assert find_target("b200x9").hosts == 3
    assert find_target("h100").devices == 1


@pytest.mark.parametrize(
    ("name", "hosts", "message"),
    [
        ("h20x8", None, "Did you mean 'h200'"),
        ("v100x8", None, "expected one of a100, h100, h200, b200, cpu"),
        ("h200x0", None, "at least 1 device"),
        ("8", None, "expected a chip and a number of devices"),
        ("h200x8", 3, "divides the 8 device"),
    ],
)
def test_mistakes(name: str, hosts: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_target(name, hosts=hosts)


def test_fewer_devices_than_a_target_has() -> None:
    with pytest.raises(ValueError, match="emulate"):
        find_target("cpux64").mesh()
