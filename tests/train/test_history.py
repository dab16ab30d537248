"""The record of a run."""

import json
import math

import pytest

from jaxgraph.train import DivergenceError, EpochRecord, History


def record(epoch: int, val_loss: float, is_best: bool) -> EpochRecord:
    metrics = {"train": {"loss": 1.0}, "val": {"loss": val_loss, "accuracy": 0.25 * epoch}}
    return EpochRecord(epoch, 3.0 - epoch, val_loss, 0.5, metrics, is_best)


def history() -> History:
    losses = ((3.0, True), (1.0, True), (2.0, False))
    records = tuple(record(epoch, *of_epoch) for epoch, of_epoch in enumerate(losses, 1))
    return History(records, compile_seconds=4.0)


def test_has_one_entry_an_epoch() -> None:
    assert history().loss == [2.0, 1.0, 0.0]
    assert history().val_loss == [3.0, 1.0, 2.0]
    assert history().val_accuracy == [0.25, 0.5, 0.75]
    assert history().epoch_seconds == [0.5, 0.5, 0.5]
    assert history().metrics["val"]["accuracy"] == [0.25, 0.5, 0.75]
    assert history().metrics["train"] == {"loss": [1.0, 1.0, 1.0]}


def test_is_one_line() -> None:
    text = "History(3 epochs, best 2, loss 2 -> 0, val loss 2, val accuracy 0.75)"
    assert repr(history()) == text
    assert repr(History((), compile_seconds=1.0)) == "History(0 epochs)"


def test_a_task_without_accuracy_has_none() -> None:
    of_task = EpochRecord(1, 2.0, 1.0, 0.5, {"val": {"loss": 1.0, "mse": 1.0}}, True)
    assert math.isnan(of_task.val_accuracy) and "accuracy" not in repr(of_task)
    assert "val_accuracy" not in History((of_task,), compile_seconds=0.0).to_dict()
    assert "val_accuracy" in history().to_dict()


def test_json_holds_the_lists() -> None:
    read = json.loads(history().to_json())
    assert read == history().to_dict()
    assert read["val_loss"] == [3.0, 1.0, 2.0]
    assert read["best_epoch"] == 2
    assert read["compile_seconds"] == 4.0


def test_a_history_of_no_epoch_is_empty_json() -> None:
    """Training that is interrupted in its first epoch leaves this history."""
    empty = History((), compile_seconds=1.0)
    assert json.loads(empty.to_json())["best_epoch"] is None
    assert empty.metrics == {} and empty.loss == []
    with pytest.raises(ValueError, match="no epoch has ended"):
        _ = empty.best_epoch


def test_a_divergence_says_which_loss_and_what_to_do() -> None:
    error = DivergenceError("the training loss of epoch 4 is nan", history())
    assert error.loss == "the training loss of epoch 4 is nan"
    assert str(error).startswith(error.loss + ". Lower the learning rate")
