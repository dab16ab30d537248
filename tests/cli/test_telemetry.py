"""`jaxgraph train --log --profile --hosts`, and `jaxgraph plot`."""

import gzip
import importlib.util
import json
import re
from pathlib import Path

import pytest

from jaxgraph.cli.plot import read_curves
from jaxgraph.run_log import read_log
from tests.cli.command import refused, run

SMALL = [
    *("train", "--dataset", "sbm", "--num-nodes", "120", "--num-classes", "3"),
    *("--num-features", "8", "--layers", "2", "--hidden", "4", "--model", "gcn"),
]
MESH = ["--parts", "4", "--partitioner", "hash", "--hosts", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a run with a log and a trace."""
    found = tmp_path_factory.mktemp("run")
    options = ["--epochs", "4", "--log", str(found / "run.jsonl")]
    options += ["--json", str(found / "run.json")]
    shown = run(*SMALL, *MESH, *options, "--profile", str(found / "trace"), "--profile-epochs", "2")
    assert "of them between hosts" in shown
    return found


def test_the_log_is_that_of_the_summary(folder: Path) -> None:
    summary, lines = json.loads((folder / "run.json").read_text()), read_log(folder / "run.jsonl")
    assert [line["loss"] for line in lines] == summary["history"]["loss"]
    assert [line["seconds"] for line in lines] == summary["history"]["epoch_seconds"]
    sent = summary["bytes_sent_per_epoch"], summary["bytes_between_hosts"]
    for line in lines:
        assert tuple(line["bytes_sent"].values()) == sent and sent[0] > sent[1] > 0
        assert line["memory"]["program"] == summary["memory_per_device"]["total"]


def test_the_trace_names_epochs_layers_and_steps_of_the_schedule(folder: Path) -> None:
    (trace,) = (folder / "trace").rglob("*.xplane.pb")
    held = trace.read_bytes()
    for name in (b"layer_0_GCNConv", b"layer_1_GCNConv", b"sar_fetch", b"sar_work", b"sar_local"):
        assert name in held, name
    # The second epoch is in it, the third is not.
    (events,) = (folder / "trace").rglob("*.trace.json.gz")
    text = gzip.decompress(events.read_bytes()).decode()
    steps = {int(number) for number in re.findall(r'"step_num":\s*"?(\d+)', text)}
    assert steps == {1, 2}


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs jaxgraph[plot]")
def test_curves_are_drawn_from_logs_and_summaries(folder: Path, tmp_path: Path) -> None:
    picture = tmp_path / "curves.svg"
    other = tmp_path / "other.jsonl"
    other.write_bytes((folder / "run.jsonl").read_bytes()[:-5])
    run("plot", str(folder / "run.jsonl"), str(other), "-o", str(picture))
    text = picture.read_text()
    for name in ("run: training", "run: validation", "other: training", "run: test accuracy"):
        assert name in text
    png = tmp_path / "curves.png"
    run("plot", str(folder / "run.json"), "--out", str(png))
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_log_and_a_summary_hold_the_same_curves(folder: Path) -> None:
    of_log, of_summary = (read_curves(folder / f"run.{x}") for x in ("jsonl", "json"))
    assert of_log == of_summary
    assert of_log.keys() == {"training", "validation", "val accuracy", "test accuracy"}
    assert [epoch for epoch, _ in of_log["training"]] == [1, 2, 3, 4]


def test_without_matplotlib_the_way_to_it_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    text = refused("plot", str(folder / "run.jsonl"), "-o", str(tmp_path / "a.png"))
    assert "pip install 'jaxgraph[plot]'" in text
