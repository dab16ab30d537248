"""The log that `fit` writes by `on_epoch`, and the slowest part in it."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgraph import nn
from jaxgraph.analysis import traffic_by_link
from jaxgraph.parallel import make_mesh, shard
from jaxgraph.partition import partition
from jaxgraph.train import EpochLog, EpochRecord, fit, read_log
from jaxgraph.train.history import SlowestPart
from tests.train.small_model import CLASSES, FEATURES, SmallNet, small_graph

ADAM = optax.adam(0.02)


def gcn(**options: Any) -> nn.GCN:
    return nn.GCN(FEATURES, 8, CLASSES, dropout=0.5, rngs=nnx.Rngs(0), **options)


@pytest.mark.slow
def test_a_line_holds_the_record_and_the_costs_of_its_epoch(tmp_path: Path) -> None:
    graph, path = small_graph(60), tmp_path / "run.jsonl"
    parts = partition(graph, 4, method="hash")
    sharded = shard(graph, parts, make_mesh(4, hosts=2))
    log, programs, counts = EpochLog(path, per_host=2), [], []

    def begin(compiled: Any) -> None:
        programs.extend(compiled)
        log.compiled(compiled)

    def end(record: Any) -> None:
        log(record)
        counts.append(len(read_log(path)))

    history = fit(gcn(), sharded, ADAM, epochs=3, on_epoch=end, on_compile=begin)
    assert counts == [1, 2, 3]
    (program,) = programs
    memory, sent = program.memory_analysis(), traffic_by_link(program, 2)
    for line, record in zip(read_log(path), history.records, strict=True):
        for name in ("epoch", "loss", "val_loss", "seconds", "is_best", "metrics"):
            assert line[name] == getattr(record, name), name
        assert line["bytes_sent"] == {
            "total": sent.total,
            "between_hosts": sum(sent.between.values()),
        }
        assert 0 < line["bytes_sent"]["between_hosts"] < line["bytes_sent"]["total"]
        assert line["memory"]["program"] >= memory.temp_size_in_bytes > 0
        assert line["memory"]["resident"] > 10e6 and line["memory"]["device_peak"] is None
        assert line["slowest_part"] is None


def test_a_continued_run_appends(tmp_path: Path) -> None:
    graph, path = small_graph(60), tmp_path / "run.jsonl"
    whole = fit(SmallNet(), graph, ADAM, epochs=6)
    first = fit(SmallNet(), graph, ADAM, epochs=3, on_epoch=EpochLog(path))
    lost = lambda record: EpochLog(path)(record) or record.epoch == 5  # noqa: E731
    fit(SmallNet(), graph, ADAM, epochs=3, state=first.state, on_epoch=lost)
    fit(SmallNet(), graph, ADAM, epochs=3, state=first.state, on_epoch=EpochLog(path))
    assert len(path.read_text().splitlines()) == 3 + 2 + 3
    assert [line["epoch"] for line in read_log(path)] == [1, 2, 3, 4, 5, 6]
    assert [line["loss"] for line in read_log(path)] == whole.loss


def test_a_line_names_the_slowest_part(tmp_path: Path) -> None:
    metrics = {"val": {"loss": np.nan}}
    record = EpochRecord(1, 2.0, np.nan, 0.5, metrics, True, SlowestPart(3, 0.25))
    EpochLog(tmp_path / "run.jsonl")(record)
    (line,) = read_log(tmp_path / "run.jsonl")
    assert line["slowest_part"] == {"part": 3, "seconds": 0.25}
    assert line["val_loss"] is None and line["metrics"] == {"val": {"loss": None}}


def test_training_goes_on_where_the_log_cannot(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log, graph = EpochLog(folder / "run.jsonl"), small_graph(60)
    folder.rmdir()
    with pytest.warns(
        RuntimeWarning, match=r"run.jsonl could not be written \(No such file"
    ) as all_:
        history = fit(SmallNet(), graph, ADAM, epochs=3, on_epoch=log)
    assert len(history.records) == 3 and len(all_) == 1


def test_processes_write_their_own_files_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = fit(SmallNet(), small_graph(60), ADAM, epochs=1).records[0]
    logs = [EpochLog(tmp_path / name) for name in ("run.jsonl", "run-{process}.jsonl")]
    for process in (0, 1):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        for log in logs:
            log(record)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run-0.jsonl",
        "run-1.jsonl",
        "run.jsonl",
    ]
    assert all(len(read_log(path)) == 1 for path in tmp_path.iterdir())
