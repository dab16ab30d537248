"""The history of training: a record of each epoch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxgraph.run_log import plain

if TYPE_CHECKING:
    from jaxgraph.parallel.streaming.rehearsal import Needs
    from jaxgraph.partition import Partition
    from jaxgraph.planner import Sample
    from jaxgraph.planner.policy_search import MemoryPlan
    from jaxgraph.train.fit_state import FitState


@dataclasses.dataclass(frozen=True)
class SlowestPart:
    """The part whose layers take longest, forward and backward.

    Attributes:
      part: its number.
      seconds: of its layers that are measured, medians so far.
    """

    part: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class EpochRecord:
    """The results of one epoch.

    Attributes:
      epoch: number of the epoch, from 1; a continued run continues the count.
      loss: training loss of the step (dropout on, before the parameters changed).
      val_loss: validation loss after the step; NaN without validation nodes.
      seconds: time of step and evaluation, without compilation; but a mini-batch that is larger
        than those before has the step compiled again in its epoch.
      metrics: the task's metrics after the step, by split; of "train" those of the step itself,
        before the parameters changed, where the task evaluates no training nodes
        (`MaskedLabelPrediction`).
      is_best: whether the validation loss is lower than in all earlier epochs, including those
        before a continued run; always true without validation nodes.
      slowest_part: the slowest part by the measurements before the epoch; None unless `fit`
        measures, until it has measured all parts.
      waited: share of the time of the steps in which the devices waited for a mini-batch; None:
        steps were over whole graphs.
      copied: the share of the features of other devices, among those that mini-batches read, of
        which the device had a copy: the hit rate of `cache_bytes`, or of the copies of columns in
        mode "p3" (`feature_budget`). None: there are no other devices.
    """

    epoch: int
    loss: float
    val_loss: float
    seconds: float
    metrics: Mapping[str, Mapping[str, float]]
    is_best: bool
    slowest_part: SlowestPart | None = None
    waited: float | None = None
    copied: float | None = None

    @property
    def val_accuracy(self) -> float:
        """Validation accuracy after the step; NaN where the task, or the graph, has none."""
        return self.metrics.get("val", {}).get("accuracy", math.nan)


@dataclasses.dataclass(frozen=True)
class Move:
    """A move of a run to another partition.

    Attributes:
      epoch: number of the last epoch before it.
      partition: the parts from then on.
      predicted_gain: seconds of an epoch that it was predicted to save.
      predicted_seconds: what it was predicted to take, from the times of the run before it.
      seconds: what it took: to split and place the graph, to compile the epoch, and to compile
        measurements.
      measured_gain: median of the epochs before, since the move before, less that of those after
        it; None if no epoch followed.
    """

    epoch: int
    partition: Partition = dataclasses.field(repr=False, compare=False)
    predicted_gain: float
    predicted_seconds: float
    seconds: float
    measured_gain: float | None = None


@dataclasses.dataclass(frozen=True)
class Measured:
    """The measurements that a run of `fit` took between its epochs.

    Attributes:
      samples: the time of every layer and part that was measured, for
        `jaxgraph.planner.fit_layers`.
      windows: how many measurements they are the medians of.
      seconds: what the measurements took.
      share: the same over the time of all epochs.
      compile_seconds: for compiling what is measured, before the first epoch and after each move;
        not in `seconds`, as `History.compile_seconds` is not in those of epochs.
      search_seconds: of all searches for a better partition.
      moves: to other partitions, in their order.
    """

    samples: tuple[Sample, ...] = dataclasses.field(repr=False)
    windows: int
    seconds: float
    share: float
    compile_seconds: float
    search_seconds: float = 0.0
    moves: tuple[Move, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the numbers for JSON, without samples and partitions."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del fields["samples"]
        moves = [{k: v for k, v in vars(move).items() if k != "partition"} for move in self.moves]
        return fields | {"moves": moves}


@dataclasses.dataclass(frozen=True)
class History:
    """The record of a call of `fit`, with one entry per epoch.

    Attributes:
      records: one for each epoch of this call; a run continued by `state` begins at a later number.
        Those of a run that was resumed from a checkpoint are of all its epochs.
      compile_seconds: compilation time before the first epoch; nearly 0 if this process has
        compiled the same program earlier.
      state: state of the run after the last record, for `fit(..., state=history.state)`.
      memory_plan: the plan that keeps `memory_limit`; None: there was none.
      measured: the measurements between epochs, and the moves to other partitions; None unless
        `fit` was asked to measure.
      needs: the bytes that an epoch of a streamed graph needs and moves; None: of other graphs.
      resumed: number of the epoch after which this call resumed the run from a checkpoint; 0: it
        did not.
    """

    records: tuple[EpochRecord, ...]
    compile_seconds: float
    state: FitState | None = dataclasses.field(default=None, repr=False, compare=False)
    memory_plan: MemoryPlan | None = dataclasses.field(default=None, repr=False, compare=False)
    measured: Measured | None = dataclasses.field(default=None, compare=False)
    needs: Needs | None = dataclasses.field(default=None, compare=False)
    resumed: int = dataclasses.field(default=0, repr=False, compare=False)

    def __repr__(self) -> str:
        parts = [f"{len(self.records)} epochs"]
        if self.records:
            parts.append(f"best {self.best_epoch}")
            parts.append(f"loss {self.loss[0]:.4g} -> {self.loss[-1]:.4g}")
            of_val = self.records[-1].metrics.get("val", {})
            parts += [f"val {name} {value:.4g}" for name, value in of_val.items()]
        return f"History({', '.join(parts)})"

    @property
    def loss(self) -> list[float]:
        """Training loss of each epoch, dropout on."""
        return [record.loss for record in self.records]

    @property
    def val_loss(self) -> list[float]:
        """Validation loss after each epoch; NaN without validation nodes."""
        return [record.val_loss for record in self.records]

    @property
    def val_accuracy(self) -> list[float]:
        """Validation accuracy after each epoch; NaN if there is none."""
        return [record.val_accuracy for record in self.records]

    @property
    def epoch_seconds(self) -> list[float]:
        """Time of each epoch, without compilation."""
        return [record.seconds for record in self.records]

    @property
    def best_epoch(self) -> int:
        """The epoch of the lowest validation loss, from 1; the last one without validation nodes.

        In a continued run it may precede the first record.

        Raises:
          ValueError: training was interrupted in its first epoch.
        """
        best = self._best_epoch
        if not best:
            raise ValueError(
                "no epoch has ended, so that none is the best; look at history.records first"
            )
        return best

    @property
    def _best_epoch(self) -> int:
        """0 before the first epoch."""
        before = 0 if self.state is None else int(self.state.best_epoch)
        return max((record.epoch for record in self.records if record.is_best), default=before)

    @property
    def metrics(self) -> dict[str, dict[str, list[float]]]:
        """Every metric after each epoch: `metrics["test"]["accuracy"][best_epoch - 1]`.

        In a continued run the index is `best_epoch - records[0].epoch`.
        """
        first = self.records[0].metrics if self.records else {}
        return {
            split: {
                name: [record.metrics[split][name] for record in self.records]
                for name in first[split]
            }
            for split in first
        }

    def to_dict(self) -> dict[str, Any]:
        """Returns the history without its state for JSON, with None for NaN."""
        contents = {
            "loss": self.loss,
            "val_loss": self.val_loss,
            "val_accuracy": self.val_accuracy,
            "epoch_seconds": self.epoch_seconds,
            "compile_seconds": self.compile_seconds,
            "best_epoch": self._best_epoch or None,
            "metrics": self.metrics,
        }
        if not any("accuracy" in of_split for r in self.records for of_split in r.metrics.values()):
            del contents["val_accuracy"]
        waited = [record.waited for record in self.records]
        if any(share is not None for share in waited):
            contents["waited"] = waited
        copied = [record.copied for record in self.records]
        if any(share is not None for share in copied):
            contents["copied"] = copied
        if self.needs is not None:
            contents["needs"] = dataclasses.asdict(self.needs)
        if self.measured is not None:
            contents["measured"] = self.measured.to_dict()
        return plain(contents)


class TrainingInterrupted(KeyboardInterrupt):
    """`fit` was interrupted, by Ctrl-C or by `on_epoch`; the model holds what it learned so far.

    It ends a program like any KeyboardInterrupt; a program that catches it can continue. In several
    processes, all are interrupted after the same epoch.

    Attributes:
      history: the completed epochs; `fit(..., state=error.history.state)` continues the run.
      number: the signal that ended the run where this process has not seen it: SIGTERM for
        whichever process, or one that another process has received; else None.
    """

    def __init__(self, history: History, number: int | None = None) -> None:
        count = len(history.records)
        super().__init__(f"interrupted after {count} epoch(s); the model holds what they learned")
        self.history, self.number = history, number


class DivergenceError(FloatingPointError):
    """The loss is not finite; the model holds the best parameters so far.

    Attributes:
      loss: name and epoch of the loss, the first parameter that is not finite, and the last
        checkpoint.
      history: the earlier epochs; its state precedes the diverged epoch, from which a lower
        learning rate can continue.
    """

    def __init__(self, loss: str, history: History) -> None:
        super().__init__(
            f"{loss}. Lower the learning rate, clip gradients (optax.clip_by_global_norm), "
            "normalise the features, or set jax_debug_nans to see where it starts; a split without "
            "a labelled node has a loss of NaN, too. The model holds its best parameters so far, "
            "and history.state of this error is the state before that epoch"
        )
        self.loss = loss
        self.history = history
