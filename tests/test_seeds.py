"""One range of seeds everywhere: two seeds are never equal by wrapping around."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import typer.testing

from jaxgraph import Graph, datasets, transforms
from jaxgraph.cli.main import app
from jaxgraph.partition import partition
from jaxgraph.partition.locality import locality_rank
from jaxgraph.partition.metis import _seed_of_metis
from jaxgraph.seeds import checked_seed

RING = Graph.from_edges(np.arange(12), (np.arange(12) + 1) % 12, labels=np.arange(12) % 2)
TAKERS: dict[str, Callable[[Any], Any]] = {
    "partition": lambda seed: partition(RING, 2, "hash", seed),
    "locality_rank": lambda seed: locality_rank(RING, "degree", seed),
    "folds": lambda seed: transforms.folds(RING, 2, seed=seed),
    "random_split": lambda seed: transforms.random_split(RING, 1, 1, seed=seed),
    **{
        name: lambda seed, name=name: datasets.load(name, num_nodes=32, degree=4, seed=seed)
        for name in ("sbm", "rmat", "chung-lu", "random")
    },
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("seed", [-1, 2**32, 2**33, 0.5, "0", True, None])
def test_seeds_out_of_range_are_refused(taker: str, seed: Any) -> None:
    with pytest.raises(ValueError, match=r"seed: got .*; expected an integer from 0 to 2\*\*32"):
        TAKERS[taker](seed)


@pytest.mark.parametrize("taker", TAKERS)
def test_the_largest_seed_is_taken(taker: str) -> None:
    assert TAKERS[taker](2**32 - 1) is not None
    assert checked_seed("seed", np.uint32(7)) == 7


def test_the_command_line_refuses_them_before_it_reads_anything() -> None:
    for command in ("train", "partition"):
        arguments = [command, "--dataset", "nothing", "--parts", "2", "--seed", str(2**32)]
        result = typer.testing.CliRunner().invoke(app, arguments)
        assert result.exit_code == 2 and "--seed" in result.output


def test_seeds_of_metis_do_not_wrap_around() -> None:
    ends = [0, 1, 2**31 - 2, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]
    found = [_seed_of_metis(seed) for seed in ends]
    assert len(set(found)) == len(ends) and min(found) >= 1 and max(found) < 2**31
