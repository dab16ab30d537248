"""A run of training: its constants, the place where it trains, and its progress."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from functools import partial

import jax
import optax
from flax import nnx

from jaxgraph.parallel import ShardedGraph
from jaxgraph.parallel.streaming.graph import StreamedGraph
from jaxgraph.parallel.streaming.rehearsal import Needs
from jaxgraph.train.aggregates import aggregate_that_pays, with_aggregates
from jaxgraph.train.divergence import diverged, first_not_finite
from jaxgraph.train.epoch import EpochProgram, Kept, Outcome, first_kept
from jaxgraph.train.evaluation import as_numbers
from jaxgraph.train.fit_state import FitState, collect_fit_state, place_fit_state, place_key
from jaxgraph.train.history import EpochRecord
from jaxgraph.train.measured import Watch
from jaxgraph.train.state import TrainState, abstract_state, initial_state, random_key
from jaxgraph.train.step import Learner
from jaxgraph.train.streamed_epoch import StreamedEpoch, needs_of

__all__ = ["LossError", "Progress", "Run", "epochs_of"]


@dataclasses.dataclass(frozen=True)
class Run:
    """The constants of a run.

    Attributes:
      model, optimizer: as given.
      learner: both, and the task.
      expected: the structure of the run's state.
      aggregate_once: as given.
      limit: bytes of a device; None: any.
    """

    model: nnx.Module
    optimizer: optax.GradientTransformation
    learner: Learner
    expected: FitState
    aggregate_once: bool
    limit: int | None

    def place(self, graphs: tuple[ShardedGraph, ...], epochs: int) -> Place:
        """Prepares graphs for so many epochs."""
        abstract = abstract_state(self.model, self.optimizer, graphs[0])
        keeps_best = self.expected.best_params is not None
        if isinstance(graphs[0], StreamedGraph):
            graph = self._streamed(graphs[0], epochs)
            return Place(StreamedEpoch(self.learner, (graph,), keeps_best), abstract)
        if self.aggregate_once:
            graphs = with_aggregates(self.model, graphs, epochs)
        return Place(EpochProgram(self.learner, graphs, keeps_best), abstract)

    def _streamed(self, graph: StreamedGraph, epochs: int) -> StreamedGraph:
        """A streamed graph, with its aggregate where that pays and fits the limit."""
        found = aggregate_that_pays(self.model, graph, epochs) if self.aggregate_once else None
        if found is None:
            return graph
        if self.limit is not None:
            needs = needs_of(self.learner, self.model, self.optimizer, found.graph)
            if max(needs.device, found.function.needs.device) > self.limit:
                return graph
        return found.compute()

    def begin(
        self, graphs: tuple[ShardedGraph, ...], epochs: int, state: FitState | None, seed: int
    ) -> Progress:
        """The run before its first epoch here."""
        place = self.place(graphs, epochs)
        if state is not None:
            return place.progress(state)
        sharded = place.program.graphs[0]
        first = initial_state(self.model, sharded, self.optimizer)
        return Progress(place, first, first_kept(first, sharded), random_key(seed, sharded))

    def collect(self, progress: Progress) -> FitState:
        """Copies the run to the host."""
        return collect_fit_state(
            progress.state,
            progress.kept,
            progress.key,
            (progress.epoch, progress.best_epoch),
            expected=self.expected,
            abstract=progress.place.abstract,
            sharded=progress.place.program.graphs[0],
        )

    def learned(self, state: FitState) -> tuple[nnx.State, nnx.State]:
        """The parameters and statistics to leave in the model."""
        has_other = self.learner.optimizer.eval_params is not None and state.best_params is None
        if not (has_other and state.epoch):
            return state.learned
        last = TrainState(*jax.device_put((state.params, state.statistics, state.optimizer_state)))
        last = jax.jit(self.learner.evaluated)(last)
        return last.params, last.statistics

    def move(
        self, progress: Progress, epochs: int, sharded: ShardedGraph
    ) -> tuple[Progress, ShardedGraph, float]:
        """Continues on another sharded graph, for so many epochs; see `Watch.after`."""
        started = time.perf_counter()
        moved = self.begin((sharded,), epochs, self.collect(progress), 0)
        moved.compile()
        moved = dataclasses.replace(moved, records=progress.records)
        program = moved.place.program
        seconds = max(time.perf_counter() - started, program.compile_seconds)
        return moved, program.graphs[0], seconds


@dataclasses.dataclass(frozen=True)
class Place:
    """The graphs on which a run trains.

    Attributes:
      program: an epoch on them.
      abstract: the state on their mesh, as shapes with shardings.
    """

    program: EpochProgram | StreamedEpoch
    abstract: TrainState

    def progress(self, state: FitState) -> Progress:
        """Places a state here."""
        sharded = self.program.graphs[0]
        placed, kept = place_fit_state(state, self.abstract, sharded)
        numbers = (int(state.epoch), int(state.best_epoch))
        return Progress(self, placed, kept, place_key(state, sharded), *numbers)


@dataclasses.dataclass(frozen=True)
class Progress:
    """A run after an epoch; replaced as a whole, so that an interruption finds it consistent.

    Attributes:
      place: where it trains.
      state, kept, key: arrays on the mesh.
      epoch: number of completed epochs.
      best_epoch: number of the best epoch; 0 before the first.
      records: this call's records.
    """

    place: Place
    state: TrainState
    kept: Kept
    key: jax.Array
    epoch: int = 0
    best_epoch: int = 0
    records: tuple[EpochRecord, ...] = ()

    def compile(self) -> tuple[tuple[jax.stages.Compiled, ...], float]:
        """Compiles an epoch; returns its programs and the seconds."""
        started = time.perf_counter()
        compiled = self.place.program.compile(self.state, self.kept, self.key)
        return compiled, time.perf_counter() - started

    def needs(self) -> Needs | None:
        """The bytes that an epoch needs, where the graph is streamed."""
        program = self.place.program
        if isinstance(program, StreamedEpoch):
            return program.needs(self.state, self.kept, self.key)
        return None

    def after(self, state: TrainState, kept: Kept, record: EpochRecord) -> Progress:
        best_epoch = record.epoch if record.is_best else self.best_epoch
        records = (*self.records, record)
        return Progress(self.place, state, kept, self.key, record.epoch, best_epoch, records)


class LossError(Exception):
    """An epoch whose loss is not finite."""


def epochs_of(
    run: Run, progress: Progress, epochs: int, patience: int | None, watch: Watch | None
) -> Iterator[Progress]:
    """Runs epochs until the last one, the end of patience or a loss that is not finite."""
    for left in reversed(range(epochs)):
        if patience is not None and progress.epoch - progress.best_epoch >= patience:
            return
        started = time.perf_counter()
        with jax.profiler.StepTraceAnnotation("epoch", step_num=progress.epoch + 1):
            state, kept, outcome = progress.place.program.run(
                progress.state, progress.kept, progress.key, progress.epoch
            )
            # Waits for the devices and raises their errors before the epoch is kept.
            outcome = jax.device_get(outcome)
        record = _record(progress.epoch + 1, outcome, started)
        if watch is not None:
            record = dataclasses.replace(record, slowest_part=watch.slowest_part())
        wrong = diverged(record)
        if wrong:
            program, before = progress.place.program, progress.state
            first = first_not_finite(program, before, state, progress.key, progress.epoch)
            raise LossError(f"{wrong}; {first}")
        progress = progress.after(state, kept, record)
        yield progress
        if patience is not None:  # So many remain at least.
            left = min(left, patience - (progress.epoch - progress.best_epoch))
        if watch is not None:
            moved = watch.after(progress.records, left, partial(run.move, progress, left))
            progress = progress if moved is None else moved


def _record(epoch: int, outcome: Outcome, started: float) -> EpochRecord:
    metrics = as_numbers(outcome.metrics)
    val = metrics.get("val", {})
    return EpochRecord(
        epoch=epoch,
        loss=float(outcome.loss),
        val_loss=val.get("loss", math.nan),
        seconds=time.perf_counter() - started,
        metrics=metrics,
        is_best=bool(outcome.is_best),
    )
