"""Checkpoints of `fit` in one process: what is saved, kept, resumed and refused."""

import json
import os
import resource
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph.parallel import ShardedGraph
from jaxgraph.train import (
    Checkpoints,
    DivergenceError,
    History,
    NodeClassification,
    TrainingInterrupted,
    evaluate,
    fit,
    load_checkpoint,
)
from jaxgraph.written_file import alone_in
from tests.train.small_model import RowsNet, SmallNet, on_devices, small_graph
from tests.train.test_fit_state import ADAM, SEED, assert_equal, exploding, untimed

EPOCHS = 8


@pytest.fixture(scope="module")
def sharded() -> ShardedGraph:
    return on_devices(small_graph(), 1)


@pytest.fixture(scope="module")
def whole(sharded: ShardedGraph) -> History:
    return fit(RowsNet(), sharded, ADAM, epochs=EPOCHS, seed=SEED)


@pytest.fixture(scope="module")
def half(sharded: ShardedGraph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a run of 5 epochs: after 2, 4 and 5."""
    folder = tmp_path_factory.mktemp("half") / "run"
    train(folder, sharded, epochs=5)
    assert held(folder) == [2, 4, 5]
    return folder


@pytest.fixture
def copy(half: Path, tmp_path: Path) -> Path:
    return shutil.copytree(half, tmp_path / "copy")


def train(folder: Path, sharded: Any, model: Any = None, optimizer: Any = ADAM, **options: Any):
    """A run that resumes and saves after every second epoch, unless options say otherwise."""
    request = {name: options.pop(name) for name in ("every", "keep") if name in options}
    request = {"every": 2, "resume": options.pop("resume", True)} | request
    options = {"epochs": EPOCHS, "seed": SEED} | options
    model = RowsNet(seed=9) if options["epochs"] > 5 and model is None else model or RowsNet()
    return fit(model, sharded, optimizer, checkpoint=Checkpoints(folder, **request), **options)


def held(folder: Path) -> list[int]:
    """The epochs of the checkpoints; nothing else is in the folder."""
    names = sorted(each.name for each in folder.iterdir())
    assert all(name.startswith("epoch-") for name in names), names
    return [int(name.removeprefix("epoch-")) for name in names]


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def assert_resumed(found: History, expected: History, after: int) -> None:
    assert found.resumed == after
    assert untimed(found.records) == untimed(expected.records)
    assert found.loss == expected.loss and found.best_epoch == expected.best_epoch
    assert_equal(found.state, expected.state)


@pytest.mark.slow
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(
    copy: Path, sharded: ShardedGraph, whole: History
) -> None:
    model = RowsNet(seed=9)
    assert_resumed(train(copy, sharded, model), whole, after=5)
    assert whole.state is not None
    assert_equal(nnx.state(model, nnx.Param), whole.state.learned[0])
    again = RowsNet(seed=8)  # Nothing is left to do.
    assert_resumed(train(copy, sharded, again), whole, after=EPOCHS)
    assert evaluate(again, sharded) == evaluate(model, sharded)


@pytest.mark.slow
def test_on_another_number_of_devices_the_state_is_the_same_bit_by_bit(
    copy: Path, half: Path, sharded: ShardedGraph
) -> None:
    """Through the placement on the devices, and back."""
    of_one = train(half, sharded, epochs=5).state
    of_two = train(copy, on_devices(small_graph(), 2), epochs=5).state
    assert_equal(of_one, of_two)


@pytest.mark.slow
def test_the_newest_and_the_best_are_kept(tmp_path: Path, sharded: ShardedGraph) -> None:
    history = train(tmp_path / "run", sharded, SmallNet(), optax.adam(0.3), every=1, keep=2)
    best = history.best_epoch
    assert best < EPOCHS - 1
    assert held(tmp_path / "run") == [best, EPOCHS - 1, EPOCHS]


def test_an_interrupted_run_is_saved(tmp_path: Path, sharded: ShardedGraph, whole: History) -> None:
    def interrupt(record: Any) -> None:
        if record.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(TrainingInterrupted):
        train(tmp_path / "run", sharded, RowsNet(), on_epoch=interrupt)
    assert held(tmp_path / "run") == [2, 3]
    assert_resumed(train(tmp_path / "run", sharded), whole, after=3)


# ------------------------------------------------------------------ damage


def flip(path: Path, at: int | None = None, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1 << bit
    path.write_bytes(data)


DAMAGE = {
    "a bit": (flip, "checksum"),
    "truncated": (lambda path: os.truncate(path, 9), "checksum"),
    "empty": (lambda path: os.truncate(path, 0), "checksum"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "is a directory"),
    "another epoch": (lambda path: shutil.copy(path.with_name("epoch-00000002"), path), "epoch 2"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_reported_and_the_checkpoint_before_is_used(
    name: str, copy: Path, sharded: ShardedGraph, whole: History
) -> None:
    damage, message = DAMAGE[name]
    damage(copy / "epoch-00000005")
    with pytest.warns(UserWarning, match=rf"epoch-00000005 is damaged: .*{message}.*after epoch 4"):
        history = train(copy, sharded, epochs=EPOCHS if name == "a bit" else 4)
    assert history.resumed == 4
    if name == "a bit":
        assert_resumed(history, whole, after=4)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.slow
def test_no_flipped_bit_passes(seed: int, copy: Path, sharded: ShardedGraph) -> None:
    rng, path = np.random.default_rng(seed), copy / "epoch-00000005"
    size = path.stat().st_size
    # The arrays, the text before them, and the checksum.
    first, last = [(0, size), (0, 200), (size - 9, size)][seed % 3]
    flip(path, int(rng.integers(first, last)), int(rng.integers(8)))
    with pytest.warns(UserWarning, match="epoch-00000005 is damaged"):
        assert train(copy, sharded, epochs=4).resumed == 4


def test_the_damaged_one_is_replaced(copy: Path, sharded: ShardedGraph, whole: History) -> None:
    flip(copy / "epoch-00000005")
    with pytest.warns(UserWarning, match="damaged"):
        train(copy, sharded, epochs=5)
    assert_resumed(train(copy, sharded), whole, after=5)


def test_nothing_is_started_where_all_are_damaged(copy: Path, sharded: ShardedGraph) -> None:
    for each in copy.iterdir():
        flip(each)
    before = files(copy)
    with pytest.raises(ValueError, match=r"no checkpoint can be read: .*5 is damaged.*Move them"):
        train(copy, sharded)
    assert files(copy) == before


def test_what_a_killed_writer_leaves_is_deleted(copy: Path, sharded: ShardedGraph) -> None:
    left = copy / f".jaxgraph-{'0' * 32}.part"
    shutil.copy(copy / "epoch-00000005", left)
    train(copy, sharded, epochs=5)
    assert held(copy) == [2, 4, 5]


# ------------------------------------------------------------------ refused


GRAPH = small_graph()
SCHEDULE = optax.cosine_decay_schedule(0.1, 9)


def other_format(folder: Path) -> None:
    path = folder / "epoch-00000005"
    data = path.read_bytes().rpartition(b"\n")[0].replace(b"checkpoint 3", b"checkpoint 2")
    path.write_bytes(data + b"\n%08x" % zlib.crc32(data))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resume": False}, r"holds checkpoints .* after epoch 5; resume that run \(.*--resume"),
        ({"epochs": 4}, r"epochs is 4, and .*epoch-00000005 is of a run that has done 5"),
        ({"model": SmallNet(dropout=0.9)}, r"of another run, which differs in .*model\.dropout"),
        ({"optimizer": optax.nadam(SCHEDULE)}, "of another run, which differs in optimizer;"),
        ({"task": NodeClassification(label_smoothing=0.1)}, r"differs in task\.label_smoothing;"),
        ({"graph": GRAPH.replace(senders=GRAPH.senders[::-1])}, "differs in senders, receivers;"),
        ({"graph": GRAPH.replace(labels=np.flip(np.asarray(GRAPH.labels)))}, "differs in labels;"),
        ({"seed": SEED + 1}, "a run of another seed; leave seed out"),
        ({"prepare": other_format}, "has the format 'jaxgraph checkpoint 2'"),
    ],
)
def test_another_run_is_refused_and_nothing_changes(
    options: dict[str, Any], message: str, copy: Path, sharded: ShardedGraph
) -> None:
    options = dict(options)
    options.pop("prepare", lambda folder: None)(copy)
    sharded = on_devices(options.pop("graph"), 3) if "graph" in options else sharded
    before = files(copy)
    with pytest.raises(ValueError, match=message):
        train(copy, sharded, **options)
    assert files(copy) == before


def test_numbers_of_the_optimizer_and_the_placement_may_change(copy: Path) -> None:
    sharded, other = on_devices(GRAPH, 3, "domain"), optax.adam(SCHEDULE, b1=0.8)
    assert train(copy, sharded, optimizer=other, epochs=6).resumed == 5


def test_the_width_of_numbers_is_named(copy: Path) -> None:
    with jax.enable_x64(True), pytest.raises(ValueError, match="differs in jax_enable_x64"):
        train(copy, on_devices(GRAPH, 1), RowsNet())


@pytest.mark.parametrize(
    "wrong", [{"folder": 3}, {"every": 0}, {"keep": 1.5}, {"resume": 1}], ids=str
)
def test_a_wrong_request_is_refused(wrong: dict[str, Any]) -> None:
    (name,), given = wrong, dict[str, Any](folder="x") | wrong
    with pytest.raises(ValueError, match=f"{name} is .*; expected"):
        Checkpoints(**given)


def test_folders_that_cannot_be_used(tmp_path: Path, sharded: ShardedGraph, whole: History) -> None:
    (tmp_path / "file").touch()
    cases = {
        tmp_path / "file": "file exists",
        tmp_path / "missing" / "run": "no such file or directory",
        Path("/proc/run"): "cannot be a folder",
    }
    for folder, message in cases.items():
        with pytest.raises(ValueError, match=message):
            train(folder, sharded)
    for wrong in ("folder", True):
        checkpoint: Any = wrong
        with pytest.raises(ValueError, match=r"checkpoint is .*; expected .*Checkpoints\(folder\)"):
            fit(RowsNet(), sharded, ADAM, epochs=1, checkpoint=checkpoint)
    with pytest.raises(ValueError, match="state, checkpoint: "):
        train(tmp_path / "run", sharded, state=whole.state)


def test_two_runs_do_not_share_a_folder(tmp_path: Path, sharded: ShardedGraph) -> None:
    with (
        alone_in(tmp_path),
        pytest.raises(ValueError, match="another process writes to it"),
    ):
        train(tmp_path, sharded)


class LargeNet(SmallNet):
    """With a parameter of 400 kB that does not compress."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nnx.Param(jnp.asarray(np.random.default_rng(0).random(100_000, np.float32)))


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file may be larger, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_an_error_and_earlier_checkpoints_stay(
    tmp_path: Path, sharded: ShardedGraph
) -> None:
    folder, frozen = tmp_path / "run", optax.sgd(0.1)
    train(folder, sharded, LargeNet(), frozen, epochs=2)
    before = files(folder)
    with (
        file_limit(200_000),
        pytest.raises(OSError, match=r"epoch-00000004 could not be written \(file too large\)"),
    ):
        train(folder, sharded, LargeNet(), frozen, epochs=4)
    assert held(folder) == [2] and files(folder) == before
    assert train(folder, sharded, LargeNet(), frozen, epochs=4).resumed == 2


# ------------------------------------------------------------------ divergence


@pytest.mark.slow
def test_a_divergence_names_the_last_good_checkpoint_and_the_parameter(
    tmp_path: Path, sharded: ShardedGraph
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(DivergenceError) as caught:
        train(folder, sharded, SmallNet(), exploding(3))
    text = caught.value.loss
    assert text.startswith("epoch 4: the training loss after the step is nan; the first parameter")
    assert "not finite after it is first.kernel; " in text
    assert text.endswith(f"the last good checkpoint is {folder / 'epoch-00000003'}")
    assert held(folder) == [2, 3]
    expected = fit(SmallNet(), sharded, exploding(99), epochs=EPOCHS, seed=SEED)
    assert_resumed(train(folder, sharded, SmallNet(), exploding(99)), expected, after=3)


def test_the_first_line_tells_a_person_what_the_checkpoint_is(half: Path) -> None:
    found: dict[str, Any] = json.loads((half / "epoch-00000005").read_bytes().split(b"\n")[0])
    assert found["format"] == "jaxgraph checkpoint 3"
    assert found["epoch"] == len(found["records"]) == 5
    assert found["leaves"][".params['rows']['rows'].value"] == "float32[60, 3]"


# ------------------------------------------------------------------ a model alone


def test_a_checkpoint_fills_a_model_without_graph_and_optimizer(
    tmp_path: Path, sharded: ShardedGraph
) -> None:
    trained, model, folder = SmallNet(), SmallNet(seed=5), tmp_path / "run"
    history = train(folder, sharded, trained, optax.adam(0.3), every=1)
    state, best = history.state, history.best_epoch
    assert state is not None and best < EPOCHS
    assert load_checkpoint(folder, model) == history.records[best - 1]
    assert_equal(nnx.state(model), nnx.state(trained))
    assert evaluate(model, sharded)["val"]["loss"] == pytest.approx(float(state.best_val_loss))
    assert load_checkpoint(folder, model, best=False) == history.records[-1]
    assert_equal(nnx.state(model, nnx.Param), state.params)
    flip(folder / "epoch-00000008")
    with pytest.warns(UserWarning, match=r"8 is damaged.*In its place .*7 is read, after epoch 7"):
        assert load_checkpoint(folder, model, best=False).epoch == 7


def test_a_model_of_other_variables_is_refused_by_their_names(half: Path, tmp_path: Path) -> None:
    names = r"epoch-00000005 is of another model: .*second.*kernel.* is float32\[8, 3\] there and"
    with pytest.raises(ValueError, match=names + r" float32\[8, 4\] in the model"):
        load_checkpoint(half, RowsNet(outputs=4))
    with pytest.raises(ValueError, match=r"rows.* is float32\[60, 3\] there and missing in the"):
        load_checkpoint(half, SmallNet())
    with pytest.raises(ValueError, match=r"folder: .* holds no checkpoint; expected the folder of"):
        load_checkpoint(tmp_path, SmallNet())
    model: Any = "model"
    with pytest.raises(ValueError, match="model"):
        load_checkpoint(half, model)
