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
)
from jaxgraph.train.checkpoints import folder as folders
from jaxgraph.train.checkpoints import manifest
from jaxgraph.train.checkpoints.manifest import DamagedError
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


def test_it_starts_from_nothing_where_there_is_no_checkpoint(
    tmp_path: Path, sharded: ShardedGraph, whole: History
) -> None:
    assert_resumed(train(tmp_path / "new", sharded, RowsNet()), whole, after=0)


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


@pytest.mark.slow
@pytest.mark.parametrize("restore_best", [True, False])
def test_a_run_may_keep_its_best_parameters_or_not(
    tmp_path: Path, sharded: ShardedGraph, restore_best: bool
) -> None:
    options: dict[str, Any] = {"restore_best": restore_best, "optimizer": optax.adam(0.3)}
    expected = train(tmp_path / "whole", sharded, SmallNet(), **options)
    train(tmp_path / "run", sharded, SmallNet(), epochs=3, **options)
    assert_resumed(train(tmp_path / "run", sharded, SmallNet(), **options), expected, after=3)


def test_an_interrupted_run_is_saved(tmp_path: Path, sharded: ShardedGraph, whole: History) -> None:
    def interrupt(record: Any) -> None:
        if record.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(TrainingInterrupted):
        train(tmp_path / "run", sharded, RowsNet(), on_epoch=interrupt)
    assert held(tmp_path / "run") == [2, 3]
    assert_resumed(train(tmp_path / "run", sharded), whole, after=3)


@pytest.mark.slow
def test_several_graphs_and_patience(tmp_path: Path) -> None:
    graphs = [on_devices(small_graph(60, seed=seed), 1) for seed in range(2)]
    model, wild = SmallNet(dropout=0.5), optax.adam(0.3)
    expected = fit(model, graphs, wild, epochs=40, patience=2, seed=SEED)
    done = len(expected.records)
    assert done < 40
    for epochs in (done - 1, 40, 40):
        found = train(
            tmp_path / "run", graphs, SmallNet(dropout=0.5), wild, epochs=epochs, patience=2
        )
    assert_resumed(found, expected, after=done)


# ------------------------------------------------------------------ damage


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def largest(checkpoint: Path) -> Path:
    return max((p for p in checkpoint.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


DAMAGE = {
    "a bit": (lambda c: flip(largest(c / "state")), "has another checksum"),
    "truncated": (lambda c: os.truncate(largest(c / "state"), 9), "has another checksum"),
    "a file less": (lambda c: (c / "state" / "_METADATA").unlink(), "_METADATA is missing"),
    "a file more": (lambda c: (c / "state" / "more").touch(), "state/more is unexpected"),
    "a link": (lambda c: (c / "state" / "more").symlink_to("/dev/zero"), "more is no file"),
    "no manifest": (lambda c: (c / "manifest.json").unlink(), "manifest.json: no such file"),
    "no JSON": (lambda c: (c / "manifest.json").write_text("{"), "cannot be read"),
    "a bit of the manifest": (lambda c: flip(c / "manifest.json"), "manifest.json"),
    "another epoch": (
        lambda c: (shutil.rmtree(c), shutil.copytree(c.parent / "epoch-00000002", c)),
        "it holds epoch 2",
    ),
}


QUICK = ("a bit", "a file less", "no manifest")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in DAMAGE]
)
def test_damage_is_reported_and_the_checkpoint_before_is_used(
    name: str, copy: Path, sharded: ShardedGraph, whole: History
) -> None:
    damage, message = DAMAGE[name]
    damage(copy / "epoch-00000005")
    with pytest.warns(UserWarning, match=rf"epoch-00000005 is damaged: .*{message}.*after epoch 4"):
        history = train(copy, sharded)
    assert_resumed(history, whole, after=4)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.slow
def test_no_flipped_bit_passes(seed: int, copy: Path, sharded: ShardedGraph) -> None:
    rng = np.random.default_rng(seed)
    paths = sorted(p for p in (copy / "epoch-00000005").rglob("*") if p.stat().st_size)
    path = rng.choice(np.array([p for p in paths if p.is_file()], object))
    data = bytearray(path.read_bytes())
    data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="epoch-00000005 is damaged"):
        assert train(copy, sharded).resumed == 4


def test_the_damaged_one_is_replaced(copy: Path, sharded: ShardedGraph, whole: History) -> None:
    flip(largest(copy / "epoch-00000005"))
    with pytest.warns(UserWarning, match="damaged"):
        train(copy, sharded, epochs=5)
    assert_resumed(train(copy, sharded), whole, after=5)


def test_nothing_is_started_where_all_are_damaged(copy: Path, sharded: ShardedGraph) -> None:
    for each in copy.iterdir():
        flip(each / "manifest.json")
    before = files(copy)
    with pytest.raises(ValueError, match=r"no checkpoint can be read: .*5 is damaged.*Move them"):
        train(copy, sharded)
    assert files(copy) == before


def test_a_manifest_is_compared_as_text(copy: Path) -> None:
    """A space more: the numbers are the same, and the file is not."""
    path = copy / "epoch-00000005" / "manifest.json"
    path.write_text(path.read_text().replace('"epoch": 5', '"epoch":  5', 1))
    with pytest.raises(DamagedError, match="another checksum"):
        manifest.read(path.parent)


def test_what_a_killed_writer_leaves_is_deleted(copy: Path, sharded: ShardedGraph) -> None:
    left = copy / f".jaxgraph-{'0' * 32}.part"
    shutil.copytree(copy / "epoch-00000005", left)
    train(copy, sharded, epochs=5)
    assert held(copy) == [2, 4, 5]


# ------------------------------------------------------------------ refused


class WiderNet(RowsNet):
    def __init__(self) -> None:
        super().__init__()
        self.other = nnx.Param(jnp.zeros(2))


def other_format(folder: Path) -> None:
    path = folder / "epoch-00000005" / "manifest.json"
    content = json.loads(path.read_text())["content"]
    version = "jaxgraph checkpoint 1"
    crc32 = zlib.crc32(json.dumps([version, content]).encode())
    path.write_text(json.dumps({"format": version, "crc32": crc32, "content": content}) + "\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resume": False}, r"holds checkpoints .* after epoch 5; resume that run \(.*--resume"),
        ({"epochs": 4}, r"epochs is 4, and .*epoch-00000005 is of a run that has done 5"),
        ({"model": WiderNet()}, r"epoch-00000005 does not belong to the model: .*'other'"),
        ({"optimizer": optax.sgd(0.1)}, "epoch-00000005 does not belong to the optimizer"),
        ({"seed": SEED + 1}, "a run of another seed; leave seed out"),
        ({"sharded": on_devices}, "does not belong to the model"),
        ({"prepare": other_format}, "has the format 'jaxgraph checkpoint 1'"),
    ],
)
def test_another_run_is_refused_and_nothing_changes(
    options: dict[str, Any], message: str, copy: Path, sharded: ShardedGraph
) -> None:
    options = dict(options)
    if "sharded" in options:
        sharded = options.pop("sharded")(small_graph(61), 1)
        options["model"] = SmallNet()
    options.pop("prepare", lambda folder: None)(copy)
    before = files(copy)
    with pytest.raises(ValueError, match=message):
        train(copy, sharded, **options)
    assert files(copy) == before


GRAPH = small_graph()
SCHEDULE = optax.cosine_decay_schedule(0.1, 9)
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "another seed of the generator": ({"graph": small_graph(seed=1)}, "nodes"),
    "permuted senders": ({"graph": GRAPH.replace(senders=GRAPH.senders[::-1])}, "senders, rec"),
    "permuted labels": (
        {"graph": GRAPH.replace(labels=np.flip(np.asarray(GRAPH.labels)))},
        "labels;",
    ),
    "other features": ({"graph": GRAPH.replace(nodes=2 * GRAPH.nodes)}, "nodes;"),
    "swapped masks": (
        {"graph": GRAPH.replace(train_mask=GRAPH.val_mask, val_mask=GRAPH.train_mask)},
        "train_mask, val_mask;",
    ),
    "features of 16 bits": ({"node_dtype": "bfloat16"}, "nodes;"),
    "dropout": ({"dropout": 0.9}, "model.dropout;"),
    "label smoothing": ({"task": NodeClassification(label_smoothing=0.1)}, "task.label_smoothing;"),
    "class weights": ({"task": NodeClassification((1.0, 2.0, 1.0))}, "task.class_weights;"),
    "nadam": ({"optimizer": optax.nadam(SCHEDULE)}, "optimizer;"),
}


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_from_the_run_is_named_and_nothing_changes(
    name: str, devices: int, copy: Path
) -> None:
    options, names = OTHERS[name]
    options, model = dict(options), RowsNet(seed=9)
    model.dropout = options.pop("dropout", model.dropout)
    placed = {key: options.pop(key) for key in ("node_dtype",) if key in options}
    sharded = on_devices(options.pop("graph", GRAPH), devices, **placed)
    before = files(copy)
    with pytest.raises(ValueError, match=rf"of another run, which differs in .*{names}") as error:
        train(copy, sharded, model, **options)
    assert "damaged" not in str(error.value) and "away" not in str(error.value)
    assert files(copy) == before


def test_numbers_of_the_optimizer_and_the_placement_may_change(copy: Path) -> None:
    sharded = on_devices(GRAPH, 3, "domain")
    assert (
        train(copy, sharded, RowsNet(seed=9), optax.adam(SCHEDULE, b1=0.8), epochs=6).resumed == 5
    )


def test_one_of_another_optimizer_is_not_called_damaged(
    tmp_path: Path, sharded: ShardedGraph
) -> None:
    """adam and adamw have the same arrays in another tree, which Orbax does not read."""
    folder, adam = tmp_path / "run", optax.adam(0.1)
    train(folder, sharded, RowsNet(), adam, epochs=1)
    before = files(folder)
    with pytest.raises(ValueError, match="of another run, which differs in optimizer;") as error:
        train(folder, sharded, RowsNet(), optax.adamw(0.1), epochs=1)
    assert "damaged" not in str(error.value) and "away" not in str(error.value)
    assert files(folder) == before
    assert train(folder, sharded, RowsNet(), adam, epochs=1).resumed == 1  # as advised


def test_the_width_of_numbers_is_named(copy: Path) -> None:
    with jax.enable_x64(True):
        message = r"of another run, which differs in jax_enable_x64"
        with pytest.raises(ValueError, match=message):
            train(copy, on_devices(GRAPH, 1), RowsNet())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"folder": 3}, "folder is .*; expected the path of a folder"),
        ({"folder": "x", "every": 0}, "every is 0; expected an integer"),
        ({"folder": "x", "keep": 1.5}, "keep is 1.5; expected an integer"),
        ({"folder": "x", "resume": 1}, "resume is 1; expected True or False"),
    ],
)
def test_a_wrong_request_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Checkpoints(**arguments)


def test_folders_that_cannot_be_used(tmp_path: Path, sharded: ShardedGraph, whole: History) -> None:
    (tmp_path / "file").touch()
    cases = {
        tmp_path / "file": "is no folder",
        tmp_path / "missing" / "run": "there is no folder .*missing; make it first",
        Path("/proc/run"): "cannot be written to",
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
        folders.alone_with(tmp_path, resume=True),
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


# Orbax leaves the writes of other arrays behind, whose event loop is closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_is_an_error_and_earlier_checkpoints_stay(
    tmp_path: Path, sharded: ShardedGraph
) -> None:
    folder, frozen = tmp_path / "run", optax.sgd(0.1)
    train(folder, sharded, LargeNet(), frozen, epochs=2)
    before = files(folder)
    with (
        file_limit(200_000),
        pytest.raises(
            OSError, match=r"epoch-00000004 could not be written \(file too large\); earlier"
        ),
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


class NotFinite(SmallNet):
    """Its outputs are not finite in training alone."""

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> jax.Array:
        outputs = super().__call__(shard, x, key=key, train=train)
        return outputs * float("nan") if train else outputs


def test_a_gradient_that_went_bad_is_named(sharded: ShardedGraph) -> None:
    """The optimizer leaves out such steps, so that all parameters stay finite."""
    careful = optax.apply_if_finite(optax.sgd(0.1), 3)
    with pytest.raises(DivergenceError, match=r"the first gradient that is not is that of \w+\."):
        fit(NotFinite(), sharded, careful, epochs=2)


def test_the_manifest_tells_a_person_what_the_checkpoint_is(half: Path) -> None:
    found: dict[str, Any] = json.loads((half / "epoch-00000005" / "manifest.json").read_text())
    assert found["format"] == "jaxgraph checkpoint 2"
    content = found["content"]
    assert content["epoch"] == 5
    assert content["layout"]["parts"] == [1] and content["layout"]["processes"] == 1
    assert len(content["records"]) == 5
