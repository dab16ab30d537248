import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from jaxgraph.cli.main import app
from jaxgraph.cli.plan import _remarks
from jaxgraph.planner import Option, load_plan
from jaxgraph.planner.choice import NEAR, Considered
from tests.cli import command
from tests.cli.command import refused

COUNTS = ["--num-nodes", "2e4", "--num-edges", "2e5", "--num-features", "16"]
COUNTS += ["--num-classes", "4"]


def test_a_graph_by_its_counts(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    chosen = ["--target", "cpux4", "--compile", "none", "--partitioner", "hash"]
    shown = command.run("plan", *COUNTS, *chosen, "--save", str(plan))
    assert "1 host(s), not compiled" in " ".join(shown.split())
    for text in ("sar prefetch", "p3 pushed, sar", "Recommended: jaxgraph"):
        assert text in shown
    assert load_plan(plan).num_devices == 4
    steps = re.findall(r"([\d.]+)(ms|s) +yes", shown)
    seconds = [float(number) / (1000 if unit == "ms" else 1) for number, unit in steps]
    assert min(seconds) * 0.99 <= load_plan(plan).seconds <= NEAR * min(seconds) * 1.01


def test_of_counts_a_command_is_recommended_that_cuts_a_graph_larger_than_memory(tmp_path) -> None:
    """METIS, which such a cut refuses, is not recommended, though its halos are smaller."""
    options = ["--target", "cpux2", "--compile", "none", "--halo-share", "0.01"]
    shown = command.run("plan", *COUNTS, *options)
    recommended = re.search(r"Recommended: (.*)", shown)
    assert "metis" in shown and recommended is not None
    edges, parts = tmp_path / "edges.npy", tmp_path / "parts"
    np.save(edges, np.random.default_rng(0).integers(0, 50, (200, 2)))
    text = recommended[1].replace("YOUR-GRAPH", str(edges)).replace("PARTS", str(parts))
    partition, train = (shlex.split(each)[1:] for each in text.split("&&"))
    assert "--process-memory" in partition
    command.run(*partition)
    assert "has no labels" in refused(*train)  # All its options are right.


@pytest.mark.parametrize(
    ("methods", "is_said"),
    [(("metis", "metis"), True), (("hash", "hash"), False), (("metis", "hash"), False)],
)
def test_ways_that_metis_cuts_are_said_to_be_ranked_unreliably(methods, is_said) -> None:
    modes = zip(("domain", "sar"), methods, strict=True)
    found = [Considered(Option(mode, method), None, 1.0, 0.5, "") for mode, method in modes]
    assert ("metis cuts are not ranked reliably" in " ".join(_remarks(found))) == is_said


def test_a_graph_that_is_here_is_compiled(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    small = ["--dataset", "karate", "--hidden", "4", "--degree-features"]
    shown = command.run("plan", *small, "--target", "cpu", "--save", str(path))
    assert "compiled for emulated CPU devices" in " ".join(shown.split())
    plan = load_plan(path)
    assert plan.compiled_for and plan.temporary > 0 and not plan.inside


def test_a_limit_too_small_shows_what_was_found_and_the_least() -> None:
    limited = ["--memory-limit", "1kB", "--compile", "none", "--partitioner", "hash"]
    result = CliRunner().invoke(app, ["plan", *COUNTS, "--target", "cpux2", *limited])
    assert result.exit_code == 2
    assert "the least that works on cpux2 is about" in result.stderr
    assert "for its arguments alone" in result.stdout


@pytest.mark.parametrize(("features", "mode"), [("4", "domain"), ("400", "p3")])
def test_mini_batches_are_planned_by_what_they_send(features: str, mode: str) -> None:
    drawn = ["--layers", "2", "--hidden", "4", "--sample", "5,5", "--batch-size", "256"]
    graph = ["--dataset", "sbm", "--num-nodes", "2000", "--num-features", features]
    shown = command.run("plan", *graph, *drawn, "--target", "h200x4", "--partitioner", "hash")
    recommended = re.search(r"Recommended: jaxgraph (.*)", shown)
    assert f"Chosen: {mode}" in shown and recommended is not None
    assert f"--num-nodes 2000 --num-features {features} --parts 4 --mode {mode}" in shown
    assert "--sample 5,5 --batch-size 256" in recommended[1]
    # All options of the command are right, up to one that is wrong.
    wrong = refused(*shlex.split(recommended[1]), "--predictions", "missing/out")
    assert "there is no folder missing" in wrong


@pytest.mark.slow
def test_training_takes_the_mode_that_is_planned() -> None:
    small = ["--dataset", "sbm", "--num-nodes", "200", "--hidden", "4", "--epochs", "2"]
    split = ["--labels-per-class", "5", "--val-per-class", "5"]
    shown = command.run("train", *small, *split, "--parts", "2", "--mode", "auto")
    chosen = re.search(r"^mode: (domain|sar|p3)", shown, re.MULTILINE)
    assert chosen is not None and f"2, {chosen[1]}" in shown
