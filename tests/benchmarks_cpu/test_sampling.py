"""The program that compares samples with DGL's, without it."""

import dataclasses

import numpy as np
import pytest

from benchmarks.cpu.libraries.sampling_jaxgraph_library import Library
from benchmarks.generated import OGBN_ARXIV
from benchmarks.sampling.__main__ import make_data
from benchmarks.sampling.tasks import BATCH, Sampling, Training, seeds_of


@pytest.fixture(scope="module")
def library() -> Library:
    shape = dataclasses.replace(OGBN_ARXIV, num_nodes=3000, num_edges=30_000, num_features=8)
    made = Library()
    made.load(make_data(shape))
    return made


@pytest.mark.parametrize("how", ["uniform", "replace", "weighted", "labor"])
def test_sizes_of_whole_batches_are_told(library: Library, how: str) -> None:
    task = Sampling((4, 2), how, batches=2)
    library.lay_out(task)
    ready = library.prepare(task)
    found = ready.results()
    assert found["nodes"][-1] == BATCH and found["nodes"].shape == (3,)
    # A seed has two neighbours, or in the mean, or fewer where it has fewer.
    assert BATCH < found["edges"][1] < 2.2 * BATCH
    assert (found["slots over edges"] >= 1).all() and found["shapes"] <= 2
    ready.run()


def test_training_tells_what_the_device_waited(library: Library) -> None:
    task = Training((4, 3, 2), 2)
    library.lay_out(task)
    found = library.prepare(task).results()
    assert 0 <= found["waited"] < 1 and found["evaluation"] > 0


def test_seeds_are_training_nodes(library: Library) -> None:
    data = dataclasses.replace(
        make_data(dataclasses.replace(OGBN_ARXIV, num_nodes=3000, num_edges=9000)),
        train_mask=np.arange(3000) < 2500,
    )
    assert len(seeds_of(data, Sampling((2,), batches=2))) == 2 * BATCH
    assert len(seeds_of(data, Sampling((2,), batches=9))) == 2500
