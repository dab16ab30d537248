"""Names: existing ones pass, others are refused with the nearest existing one."""

import pytest

from jaxgraph.partition.choices import checked_choice

NAMES = ("nodes", "edges", "labels")


def test_a_name_that_exists_passes() -> None:
    assert checked_choice("balance", "edges", NAMES) == "edges"


@pytest.mark.parametrize("name", ["edge", "Edges", "edgse"])
def test_the_near_match_is_suggested(name: str) -> None:
    with pytest.raises(ValueError, match=rf"balance: got '{name}'.*Did you mean 'edges'\?"):
        checked_choice("balance", name, NAMES)


def test_nothing_is_suggested_for_what_is_like_nothing() -> None:
    with pytest.raises(ValueError, match=r"expected one of nodes, edges, labels\.$"):
        checked_choice("balance", "zzz", NAMES)
