import dataclasses
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from jaxgraph import datasets, train
from jaxgraph.analysis import compilations
from jaxgraph.cli.display import EpochBar
from jaxgraph.cli.main import app
from jaxgraph.parallel import write_parts
from jaxgraph.partition import partition
from jaxgraph.run_log import read_log
from jaxgraph.train.history import Measured, Move
from jaxgraph.transforms import with_label_columns
from tests.cli import command
from tests.cli.command import refused

GENERATED = {"num-nodes": 200, "num-classes": 4, "num-features": 8, "degree": 8}
TRAINED = {"layers": 1, "hidden": 8, "epochs": 12, "lr": 0.05, "dropout": 0.1}
SMALL = [
    *("train", "--dataset", "sbm"),
    *(text for name, value in (GENERATED | TRAINED).items() for text in (f"--{name}", str(value))),
]
KARATE = ["train", "--dataset", "karate", "--layers", "1", "--hidden", "8"]


def run(*arguments: str, out: Path | None = None) -> dict:
    """Runs the command, checks that it succeeds, and returns the JSON that it wrote to `out`."""
    write = [] if out is None else ["--json", str(out)]
    result = CliRunner().invoke(app, [*SMALL, *arguments, *write], env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    for shown in ("median epoch time", "memory per device", "bytes sent per epoch", "padding"):
        assert shown in result.output
    return {} if out is None else json.loads(out.read_text())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict:
    path = tmp_path_factory.mktemp("train") / "run.json"
    arguments = ("--model", "gat", "--heads", "2", "--parts", "4", "--mode", "sar", "--seed", "3")
    return run(*arguments, out=path)


@pytest.mark.slow
def test_message_flow_changes_no_number(tmp_path: Path):
    few = ("--labels-per-class", "5", "--val-per-class", "2", "--parts", "2", "--layers", "2")
    found = [
        run(*few, *flow, out=tmp_path / "run.json")["history"] for flow in ((), ("--message-flow",))
    ]
    for name in ("loss", "val_loss"):
        assert np.allclose(found[0][name], found[1][name], rtol=1e-4)


@pytest.mark.parametrize(
    "more",
    [
        ("--sample-cache", "1kB"),
        # The pipeline is emptied after each epoch: of one batch no gradient is stale.
        pytest.param(("--mode", "p3", "--staleness", "3"), marks=pytest.mark.slow),
    ],
)
def test_samples_of_all_neighbours_in_one_batch_are_the_whole_graph(
    tmp_path: Path, more: tuple[str, ...]
):
    written = [
        run(
            *("--layers", "2", "--epochs", "3", "--parts", "2", "--dropout", "0"),
            *options,
            out=tmp_path / "run.json",
        )
        for options in ((), ("--sample", "-1,-1", *more))
    ]
    whole, sampled = (each["history"] for each in written)
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(sampled[name], whole[name], rtol=1e-4)
    assert "waited" not in whole and len(sampled["waited"]) == 3
    assert all(0 <= share <= 1 for share in sampled["waited"])


@pytest.mark.slow
def test_the_costs_of_an_epoch_are_those_of_all_its_batches(tmp_path: Path):
    log, labor = tmp_path / "run.jsonl", ("--sample", "4", "--sample-method", "labor")
    few = ("--parts", "2", "--epochs", "2", *labor, "--log", str(log))
    sizes = (120, 12)
    sent = []
    for size in sizes:
        written = run(*few, "--batch-size", str(size), out=tmp_path / "run.json")
        assert written["options"]["batch_size"] == size
        assert read_log(log)[-1]["bytes_sent"]["total"] == written["bytes_sent_per_epoch"]
        assert read_log(log)[-1]["waited"] == written["history"]["waited"][-1]
        sent.append(written["traffic"]["all-to-all"])
        log.unlink()
    assert sent[1] > 2 * sent[0]


@pytest.mark.slow
def test_samples_have_dense_features(tmp_path: Path, data_dir: Path):
    cora = ("train", "--dataset", "cora", "--data-dir", str(data_dir), "--epochs", "20")
    found = command.written(tmp_path / "run.json", *cora, "--sample", "10,10", "--batch-size", "50")
    assert found["evaluation"]["test"]["accuracy"] > 0.6


def test_the_file_holds_options_history_and_costs(written: dict):
    options, history = written["options"], written["history"]
    assert (options["model"], options["parts"], options["seed"]) == ("gat", 4, 3)
    assert written["versions"]["jax"] == jax.__version__
    assert written["graph"]["nodes"] == 200 and written["padding"]["nodes"] == 200
    for name in ("loss", "val_loss", "val_accuracy", "epoch_seconds"):
        assert len(history[name]) == 12
    assert history["loss"][-1] < history["loss"][0] and 1 <= written["best_epoch"] <= 12
    assert written["evaluation"].keys() == {"train", "val", "test"}
    assert written["memory_per_device"]["total"] > written["memory_per_device"]["temporary"] > 0
    assert written["bytes_sent_per_epoch"] == sum(written["traffic"].values()) > 0
    assert written["median_epoch_seconds"] == np.median(history["epoch_seconds"])
    for split, metrics in history["metrics"].items():
        best = {name: values[written["best_epoch"] - 1] for name, values in metrics.items()}
        assert written["evaluation"][split] == best
    padding = written["padding"]
    assert padding["edge_ratio"] == padding["edge_slots"] / padding["edges"]
    assert padding["halo_ratio"] == padding["halo_rows_sent"] / padding["halo_rows_needed"]
    assert "bytes_between_hosts" not in written


@pytest.mark.slow
def test_64_bits_are_computed_in_64_bits(tmp_path: Path):
    try:
        short = run("--epochs", "3", out=tmp_path / "short.json")["history"]["loss"]
        long = run("--epochs", "3", "--dtype", "float64", out=tmp_path / "long.json")
    finally:
        jax.config.update("jax_enable_x64", False)
    assert all(float(np.float32(loss)) == loss for loss in short)
    assert all(float(np.float32(loss)) != loss for loss in long["history"]["loss"])


def test_the_step_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The summary shows the figures of the program that trained."""
    programs = []
    compile_program = jax.stages.Lowered.compile

    def counted(self, *arguments, **options):
        programs.append(compile_program(self, *arguments, **options))
        return programs[-1]

    monkeypatch.setattr(jax.stages.Lowered, "compile", counted)
    written = run("--epochs", "2", out=tmp_path / "run.json")
    (epoch,) = programs
    temporary = written["memory_per_device"]["temporary"]
    assert temporary == epoch.memory_analysis().temp_size_in_bytes > 0


def test_the_plan_of_a_limit_is_shown(tmp_path: Path):
    written = run("--epochs", "2", "--memory-limit", "1GB", out=tmp_path / "run.json")
    needed, policy = written["memory_plan"]
    assert "of 1,000,000,000 bytes of a device" in needed and policy == "policy as without a limit"


def test_a_graph_without_features_gets_an_embedding_of_its_nodes(tmp_path: Path):
    found = command.written(tmp_path / "run.json", *KARATE, "--epochs", "30")
    assert found["graph"]["features"] == 0
    assert found["evaluation"]["train"]["accuracy"] == 1


@pytest.mark.slow
def test_the_recipe_is_shown_and_every_value_can_be_changed(tmp_path: Path, data_dir: Path):
    path = tmp_path / "run.json"
    cora = ["train", "--dataset", "cora", "--data-dir", str(data_dir)]
    shown = command.run(*cora, "--epochs", "1", "--json", str(path))
    chosen = json.loads(path.read_text())["options"]
    assert chosen["source"].startswith("Kipf and Welling (2017), section 5.2")
    assert (chosen["hidden"], chosen["normalize"]) == (16, True)
    assert "Kipf and Welling (2017)" in shown and "weight decay" in shown
    values = {
        **{"hidden": 3, "layers": 1, "dropout": 0.0, "norm": "layer", "lr": 0.5},
        **{"weight_decay": 0.25, "epochs": 9, "patience": 1},
    }
    changed = command.written(
        path, *cora, "--raw", *(f"--{n.replace('_', '-')}={x}" for n, x in values.items())
    )
    assert changed["options"] | values | {"normalize": False} == changed["options"]
    assert changed["epochs"] == changed["best_epoch"] + 1 < 9


@pytest.mark.slow
@pytest.mark.parametrize(("dataset", "at_least"), [("cora", 0.795), ("citeseer", 0.685)])
def test_defaults_reach_what_is_published(
    dataset: str, at_least: float, tmp_path: Path, data_dir: Path
):
    """One seed of GCN; Kipf and Welling (2017) report 81.5 and 70.3, with deviations of 0.7."""
    options = ["train", "--dataset", dataset, "--data-dir", str(data_dir)]
    found = command.written(tmp_path / "run.json", *options)
    assert found["evaluation"]["test"]["accuracy"] >= at_least


def interrupting(monkeypatch: pytest.MonkeyPatch, number: int, at: int) -> None:
    """Sends a signal to this process when so many epochs, of all seeds, have ended."""
    update, ended = EpochBar.update, []

    def interrupted(self, record):
        update(self, record)
        ended.append(record)
        if len(ended) == at:
            os.kill(os.getpid(), number)
            time.sleep(0.2)  # until the thread that reads the signals has noted it

    monkeypatch.setattr(EpochBar, "update", interrupted)


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_a_signal_ends_training_after_the_epoch_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, status: int
):
    whole = run("--epochs", "4", out=tmp_path / "whole.json")
    interrupting(monkeypatch, number, at=4)
    handlers = signal.getsignal(number)
    path = tmp_path / "run.json"
    result = CliRunner().invoke(app, [*SMALL, "--epochs", "1000", "--json", str(path)])
    assert result.exit_code == status, result.output
    assert "interrupted before 1000" in result.stdout
    assert "Ending after this epoch" in result.stderr
    written = json.loads(path.read_text())
    assert (written["interrupted"], whole["interrupted"]) == (True, False)
    assert written["epochs"] == len(written["history"]["loss"]) == 4
    assert written["history"]["loss"] == whole["history"]["loss"]
    assert written["evaluation"] == whole["evaluation"]
    assert signal.getsignal(number) == handlers


def test_a_loss_that_diverges_leaves_the_epochs_before_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    fit = train.fit

    def diverging(*arguments, **options):
        history = fit(*arguments, **options | {"epochs": 2})
        raise train.DivergenceError("epoch 2: the training loss is nan", history)

    monkeypatch.setattr(train, "fit", diverging)
    path = tmp_path / "run.json"
    result = CliRunner().invoke(app, [*SMALL, "--json", str(path)])
    assert result.exit_code == 2
    assert "Error: epoch 2: the training loss is nan. Use a smaller --lr;" in result.stderr
    written = json.loads(path.read_text())
    assert written["epochs"] == 2 and written["diverged"].startswith("epoch 2")
    assert not written["interrupted"] and "median epoch time" in result.stdout


def test_repartition_gives_fit_the_graph(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    given = {}
    fit = train.fit

    def spy(model, sharded, *arguments, **options):
        given.update(options)
        parts: Any = None
        moves = (Move(2, parts, 0.25, 1.0, 1.5, 0.125),)
        measured = Measured((), 3, 0.5, 0.01, 2.0, 1.0, moves)
        kept = {k: v for k, v in options.items() if k not in ("source", "repartition")}
        return dataclasses.replace(fit(model, sharded, *arguments, **kept), measured=measured)

    monkeypatch.setattr(train, "fit", spy)
    path = tmp_path / "run.json"
    arguments = ("--epochs", "3", "--parts", "2", "--repartition", "auto", "--json", str(path))
    result = CliRunner().invoke(app, [*SMALL, *arguments], env={"COLUMNS": "140"})
    assert given["repartition"] == "auto" and given["source"].num_nodes == 200
    assert "moved after epoch 2" in result.stdout
    assert "predicted 250.0 ms, measured 125.0 ms" in " ".join(result.stdout.split())
    assert json.loads(path.read_text())["history"]["measured"]["windows"] == 3


@pytest.mark.slow
def test_a_streamed_run_equals_one_on_a_device(tmp_path: Path):
    path = tmp_path / "run.json"

    def trained(*options: str) -> tuple[str, Any]:
        shown = command.run(*SMALL, *options, "--json", str(path))
        return shown, json.loads(path.read_text())

    one = trained()[1]
    stream = ("--mode", "stream", "--parts")
    for options, text in (
        (("3", "--folder", str(tmp_path)), "1, parts 3, stream"),
        (("4", "--devices", "2"), "2, parts 4, stream"),
    ):
        shown, streamed = trained(*stream, *options)
        losses = streamed["history"]["loss"], one["history"]["loss"]
        np.testing.assert_allclose(*losses, rtol=1e-5)
        assert text in shown and "activations on the host" in shown
        needs = streamed["history"]["needs"]
        assert streamed["traffic"] == {"to the device": needs["sent"], "back": needs["returned"]}
        assert streamed["memory_per_device"] == {"total": needs["device"]}
        assert streamed["memory_on_host"] == needs["host"] and needs["returned"] > 0


@pytest.mark.slow
def test_a_memory_limit_finds_the_parts_of_a_streamed_run(tmp_path: Path):
    """The limit is what four parts need; one part needs more."""
    stream = [*SMALL, "--mode", "stream", "--num-nodes", "4000", "--epochs", "1"]
    found = [command.written(tmp_path / "a", *stream, "--parts", parts) for parts in "14"]
    needs = [each["memory_per_device"]["total"] for each in found]
    limit = ["--memory-limit", str(needs[1])]
    assert command.written(tmp_path / "a", *stream, *limit)["options"]["parts"] in (2, 4)
    text = refused(*stream, *limit, "--parts", "1")
    assert f"an epoch on 1 part(s) takes {needs[0]:,}" in text
    planned = command.run(*stream, *limit, "--mode", "auto", "--folder", str(tmp_path))
    assert "mode: stream" in planned
    assert "the least that works" in refused(*stream, "--memory-limit", "10000")


@pytest.mark.parametrize("mode", ["stream", "auto"])
def test_a_limit_that_cuts_a_small_graph_into_very_many_parts_is_a_warning(mode: str):
    limit = ("--mode", mode, "--memory-limit", "30kB", "--epochs", "1")
    result = CliRunner().invoke(app, [*SMALL, *limit])
    assert result.exit_code == 0, result.output
    (warning,) = re.findall("Warning: .*\n", result.stderr)
    assert "--memory-limit 30kB cuts 200 nodes into 4 parts" in warning


@pytest.mark.parametrize("mode", ["sar", pytest.param("stream", marks=pytest.mark.slow)])
def test_predictions_are_corrected_and_smoothed(tmp_path: Path, mode: str):
    table, path = tmp_path / "classes.csv", tmp_path / "run.json"
    options = ("--mode", mode, "--parts", "2", "--predictions", str(table), "--json", str(path))
    result = CliRunner().invoke(app, [*SMALL, "--correct-and-smooth", *options])
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    record = written["correct_and_smooth"]
    assert record["options"].keys() == {"correct_alpha", "smooth_alpha", "autoscale", "scale"}
    for split, metrics in written["evaluation"].items():
        before = record["accuracy"]["before"][split]
        assert before == pytest.approx(metrics["accuracy"], abs=1e-6)
    assert "by validation nodes" in result.output
    assert record["accuracy"]["after"]["train"] >= record["accuracy"]["before"]["train"]
    smoothed = np.loadtxt(table, int, delimiter=",", skiprows=1)[:, 1]
    plain = tmp_path / "plain.csv"
    run(*options[:4], "--predictions", str(plain))
    assert (smoothed != np.loadtxt(plain, int, delimiter=",", skiprows=1)[:, 1]).any()


@pytest.mark.parametrize("parts", ["1", "3"])
def test_predictions_on_a_full_disk_do_not_lose_the_result(tmp_path: Path, parts: str):
    path = tmp_path / "run.json"
    options = ("--dataset", "karate", "--epochs", "1", "--parts", parts, "--json", str(path))
    line = refused("train", *options, "--predictions", "/dev/full")
    assert "/dev/full could not be written (no space left on device)" in line
    assert json.loads(path.read_text())["history"]["loss"]


@pytest.mark.slow
def test_labels_are_inputs(tmp_path: Path):
    found = run("--labels-as-inputs", "0.5", "--parts", "2", out=tmp_path / "run.json")
    assert found["options"]["labels_as_inputs"] == 0.5
    assert found["evaluation"].keys() == {"train", "val", "test"}
    best = found["best_epoch"] - 1
    assert found["evaluation"]["train"]["loss"] == found["history"]["loss"][best]


@pytest.mark.slow
def test_labels_are_inputs_of_real_data_and_of_parts_on_disk(tmp_path: Path, data_dir: Path):
    cora = ("--dataset", "cora", "--data-dir", str(data_dir), "--epochs", "80")
    given = ("train", "--labels-as-inputs", "0.5", "--hidden", "16")
    for further in (("--parts", "2"), ("--mode", "stream", "--memory-limit", "1GB")):
        found = command.written(tmp_path / "c", *given, *cora, *further)
        assert found["evaluation"]["test"]["accuracy"] > 0.7
    graph = with_label_columns(datasets.load("sbm", num_nodes=200, num_classes=4, num_features=8))
    write_parts(graph, partition(graph, 2), tmp_path / "parts")
    read = ("--partition", str(tmp_path / "parts"), "--epochs", "3")
    assert len(command.written(tmp_path / "p", *given, *read)["history"]["loss"]) == 3
    assert "have label columns; give --labels-as-inputs 0.5" in refused("train", *read)


def test_seeds_are_runs_of_their_own_that_compile_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    compiled = []
    fit = train.fit

    def counting(*arguments, **options):
        with compilations() as found:
            history = fit(*arguments, **options)
        compiled.append(len(found))
        return history

    monkeypatch.setattr(train, "fit", counting)
    table, few = tmp_path / "classes.csv", ("--epochs", "3", "--parts", "2", "--lr", "0.1")
    found = run(*few, "--seeds", "3", "--seed", "5", out=tmp_path / "all.json")
    assert compiled[0] > 0 == compiled[1] == compiled[2]
    rows = found["seeds"]
    assert [row["seed"] for row in rows] == [5, 6, 7]
    for split in ("train", "val", "test"):
        losses = [row["evaluation"][split]["loss"] for row in rows]
        assert len(set(losses)) == 3
        assert found["evaluation"][split]["loss"] == pytest.approx(np.mean(losses))
        assert found["deviation"][split]["loss"] == pytest.approx(np.std(losses, ddof=1))
    best = min(rows, key=lambda row: row["evaluation"]["val"]["loss"])
    assert (found["seed"], found["history"]) == (best["seed"], best["history"])
    # The first seed has the run that it has alone; the partition, here of --seed 5, stays.
    alone = run(*few, "--seed", "5", out=tmp_path / "one.json")
    assert alone["history"]["loss"] == rows[0]["history"]["loss"]
    assert alone["evaluation"] == rows[0]["evaluation"] and "seeds" not in alone
    run(*few, "--seeds", "3", "--seed", "5", "--predictions", str(table))
    classes = np.loadtxt(table, int, delimiter=",", skiprows=1)[:, 1]
    of_sbm: dict[str, Any] = {name.replace("-", "_"): n for name, n in GENERATED.items()}
    graph = datasets.load("sbm", **of_sbm)
    shown = (classes == graph.labels)[graph.test_mask].mean()
    assert shown == pytest.approx(best["evaluation"]["test"]["accuracy"])


def test_a_seed_that_does_not_end_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    path, fit, seeds = tmp_path / "run.json", train.fit, []

    def diverging(*arguments, **options):
        history = fit(*arguments, **options)
        seeds.append(options["seed"])
        if len(seeds) == 3:
            short = dataclasses.replace(history, records=history.records[:1])
            raise train.DivergenceError("epoch 2: the training loss is nan", short)
        return history

    monkeypatch.setattr(train, "fit", diverging)
    few = ("--epochs", "2", "--seeds", "9", "--json", str(path))
    result = CliRunner().invoke(app, [*SMALL, *few], env={"COLUMNS": "140"})
    assert result.exit_code == 2 and "Error: seed 2, epoch 2: the training loss" in result.stderr
    written = json.loads(path.read_text())
    assert seeds == [0, 1, 2] and [row["seed"] for row in written["seeds"]] == [0, 1]
    assert "2, from 0: means" in result.stdout and not written["interrupted"]


def test_a_signal_leaves_the_seeds_before_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    interrupting(monkeypatch, signal.SIGINT, at=3)
    path = tmp_path / "run.json"
    few = ("--epochs", "2", "--seeds", "4", "--json", str(path))
    result = CliRunner().invoke(app, [*SMALL, *few])
    assert result.exit_code == 130, result.output
    written = json.loads(path.read_text())
    assert written["interrupted"] and [row["seed"] for row in written["seeds"]] == [0]
    assert set(written["deviation"]["val"].values()) == {None}
