"""The record of a run."""

import json
import math

import pytest

from jaxgraph.train import EpochRecord, History


def record(epoch: int, val_loss: float, is_best: bool) -> EpochRecord:
    metrics = {"train": {"loss": 1.0}, "val": {"loss": val_loss, "accuracy": 0.25 * epoch}}
    return EpochRecord(epoch, 3.0 - epoch, val_loss, 0.5, metrics, is_best)


def history() -> History:
    losses = ((3.0, True), (1.0, True), (2.0, False))
    records = tuple(record(epoch, *of_epoch) for epoch, of_epoch in enumerate(losses, 1))
    return History(records, compile_seconds=4.0)


def test_a_history_has_one_entry_an_epoch_and_is_json() -> None:
    found = history()
    assert found.loss == [2.0, 1.0, 0.0] and found.epoch_seconds == [0.5, 0.5, 0.5]
    assert found.val_loss == [3.0, 1.0, 2.0] and found.best_epoch == 2
    assert found.val_accuracy == found.metrics["val"]["accuracy"] == [0.25, 0.5, 0.75]
    assert repr(found) == "History(3 epochs, best 2, loss 2 -> 0, val loss 2, val accuracy 0.75)"
    read = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert read == found.to_dict()
    assert (read["best_epoch"], read["compile_seconds"]) == (2, 4.0)


def test_what_a_run_does_not_have_is_left_out_or_null() -> None:
    of_task = EpochRecord(1, 2.0, math.nan, 0.5, {"val": {"loss": math.nan, "mse": 1.0}}, True)
    assert math.isnan(of_task.val_accuracy)
    read = History((of_task,), compile_seconds=0.0).to_dict()
    assert "val_accuracy" not in read and read["val_loss"] == [None]


def test_a_history_of_no_epoch_is_empty_json() -> None:
    """Training that is interrupted in its first epoch leaves this history."""
    empty = History((), compile_seconds=1.0)
    assert repr(empty) == "History(0 epochs)"
    assert empty.to_dict()["best_epoch"] is None
    assert empty.metrics == {} and empty.loss == []
    with pytest.raises(ValueError, match="no epoch has ended"):
        _ = empty.best_epoch
