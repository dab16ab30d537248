"""A run of training: its constants and the policy of its model, its progress, and its epochs."""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxgraph.kinds import kind_of
from jaxgraph.layers import RematPolicy
from jaxgraph.nn.stack import Stack
from jaxgraph.parallel import ShardedGraph
from jaxgraph.train.aggregates import StreamedAggregate, with_aggregates
from jaxgraph.train.agreement import ElsewhereInterrupted, preempted, together
from jaxgraph.train.checkpoints import Saving
from jaxgraph.train.epoch import EpochProgram, Outcome, StreamedEpoch, epoch_on
from jaxgraph.train.fit_state import (
    FitState,
    Held,
    abstract_held,
    as_shape,
    collected,
    first_held,
    place_fit_state,
    restore,
)
from jaxgraph.train.history import DivergenceError, EpochRecord, History, TrainingInterrupted
from jaxgraph.train.passes import as_numbers
from jaxgraph.train.step import Learner, make_learner

if TYPE_CHECKING:
    from jaxgraph.planner.cost.watch import Watch
    from jaxgraph.planner.policy_search import MemoryPlan


@dataclasses.dataclass(frozen=True)
class Progress:
    """A run after an epoch; replaced as a whole, so that an interruption finds it consistent.

    Attributes:
      program: an epoch, on the graphs where it trains.
      held: arrays on their mesh.
      epoch: number of completed epochs.
      best_epoch: number of the best epoch; 0 before the first.
      records: this call's records.
    """

    program: EpochProgram
    held: Held
    epoch: int = 0
    best_epoch: int = 0
    records: tuple[EpochRecord, ...] = ()

    def after(self, held: Held, record: EpochRecord) -> Progress:
        """The run after one more epoch."""
        best_epoch = record.epoch if record.is_best else self.best_epoch
        return Progress(self.program, held, record.epoch, best_epoch, (*self.records, record))


@dataclasses.dataclass(frozen=True)
class Run:
    """The constants of a run.

    Attributes:
      model, optimizer: as given.
      learner: both, and the task.
      expected: the structure of the run's state.
      saving: of its checkpoints.
      limit: bytes of a device; None: any.
      aggregate_once, patience, on_epoch: as given.
      epoch_on: makes the program of an epoch from a learner and graphs.
    """

    model: nnx.Module
    optimizer: optax.GradientTransformation
    learner: Learner
    expected: FitState
    saving: Saving
    limit: int | None
    aggregate_once: bool
    patience: int | None
    on_epoch: Callable[[EpochRecord], Any] | None
    epoch_on: Callable[[Learner, tuple[ShardedGraph, ...]], EpochProgram] = epoch_on

    def under(self, model: nnx.Module) -> Run:
        """The run with the policy of another model, which has the same variables."""
        task, eval_params = self.learner.task, self.learner.optimizer.eval_params
        learner = make_learner(model, self.optimizer, task, eval_params)
        return dataclasses.replace(self, learner=learner)

    def under_policy(self, policy: Sequence[RematPolicy]) -> Run:
        """The run with the policy of a plan."""
        if not isinstance(self.model, Stack):
            raise ValueError(
                f"the plan has policies of layers, and model is {kind_of(self.model)}, which has "
                "none; expected a jaxgraph.nn.Stack, such as the one that the plan was made for"
            )
        return self.under(self.model.with_policy(policy))

    def within_limit(self, graphs: tuple[ShardedGraph, ...], epochs: int) -> tuple[Run, MemoryPlan]:
        """The run with the cheapest policy under which an epoch fits, and the plan."""
        # Training reaches up: the planner compiles its steps.
        from jaxgraph.planner.policy_search import Needed, cheapest_fitting

        assert self.limit is not None
        graphs = jax.tree.map(lambda leaf: as_shape(leaf, leaf.sharding), graphs)
        if self.aggregate_once:
            graphs = with_aggregates(self.model, graphs, epochs)
        held = abstract_held(self.model, self.optimizer, graphs[0])
        resident = sum(map(_bytes, jax.tree.leaves((held[:2], graphs))))

        def needs(model: nnx.Module) -> Needed:
            programs: Any = epoch_on(self.under(model).learner, graphs).compile(held)
            found = [each.memory_analysis() for each in programs]
            most = max(
                each.output_size_in_bytes - each.alias_size_in_bytes + each.temp_size_in_bytes
                for each in found
            )
            return Needed(resident, most, max(each.host_temp_size_in_bytes for each in found))

        model, plan = cheapest_fitting(self.model, graphs[0], self.limit, needs)
        return self.under(model), plan

    def begin(
        self, graphs: tuple[ShardedGraph, ...], epochs: int, state: FitState | None, seed: int
    ) -> Progress:
        """The run before its first epoch on these graphs, of so many epochs."""
        if self.aggregate_once:
            graphs = with_aggregates(self.model, graphs, epochs, self._fits)
        program, graph = self.epoch_on(self.learner, graphs), graphs[0]
        if state is None:
            return Progress(program, first_held(self.model, self.optimizer, graph, seed))
        abstract = abstract_held(self.model, self.optimizer, graph)
        held = place_fit_state(state, abstract.state, graph)
        return Progress(program, held, int(state.epoch), int(state.best_epoch))

    def _fits(self, aggregate: StreamedAggregate) -> bool:
        """True where an aggregate, and epochs with it, keep the limit."""
        if self.limit is None:
            return True
        held = abstract_held(self.model, self.optimizer, aggregate.graph)
        needs = StreamedEpoch(self.learner, (aggregate.graph,)).needs(held)
        return max(needs.device, aggregate.function.needs.device) <= self.limit

    def collect(self, progress: Progress) -> FitState:
        """Copies the run to the host; the same in every process."""
        numbers, graph = (progress.epoch, progress.best_epoch), progress.program.graphs[0]
        return collected(progress.held, *numbers, self.expected, graph)

    def move(
        self, progress: Progress, epochs: int, sharded: ShardedGraph
    ) -> tuple[Progress, ShardedGraph, float]:
        """Continues on another sharded graph, for so many epochs; see `Watch.after`."""
        started = time.perf_counter()
        moved = self.begin((sharded,), epochs, self.collect(progress), 0)
        moved.program.compile(moved.held)
        moved = dataclasses.replace(moved, records=progress.records)
        seconds = max(time.perf_counter() - started, moved.program.compile_seconds)
        return moved, moved.program.graphs[0], seconds

    def epochs(self, progress: Progress, epochs: int, watch: Watch | None) -> Iterator[Progress]:
        """Runs epochs until the last one, the end of patience or a loss that is not finite."""
        patience = self.patience
        for left in reversed(range(epochs)):
            if patience is not None and progress.epoch - progress.best_epoch >= patience:
                return
            started = time.perf_counter()
            with jax.profiler.StepTraceAnnotation("epoch", step_num=progress.epoch + 1):
                held, outcome = progress.program.run(progress.held, progress.epoch)
                # Waits for the devices and raises their errors before the epoch is kept.
                outcome = jax.device_get(outcome)
            slowest = None if watch is None else watch.slowest_part()
            seconds = time.perf_counter() - started
            record = _record(progress.epoch + 1, outcome, seconds, slowest)
            wrong = _not_finite(record)
            if wrong:
                spoiled = _first_spoiled(held.state.params)
                raise LossError(f"epoch {record.epoch}: the {wrong}; {spoiled}")
            progress = progress.after(held, record)
            yield progress
            if patience is not None:  # So many remain at least.
                left = min(left, patience - (progress.epoch - progress.best_epoch))
            if watch is not None:
                moved = watch.after(progress.records, left, partial(self.move, progress, left))
                progress = progress if moved is None else moved

    def train(self, progress: Progress, left: int, watch: Watch | None, begun: History) -> History:
        """Runs so many epochs, saves them, and leaves what they learned in the model."""
        saving, on_epoch = self.saving, self.on_epoch
        # Whether all processes are between the same epochs, so that they can gather their rows.
        is_alike = jax.process_count() == 1

        def save(state: FitState, *, wait: bool) -> None:
            samples = () if watch is None else watch.samples()
            together(lambda: saving.save(state, progress.records, samples, wait=wait))

        def end() -> History:
            state = self.collect(progress)
            restore(self.model, *state.learned)
            save(state, wait=True)
            measured = None if watch is None else watch.measured(progress.records)
            records = (*saving.resumed.records, *progress.records)
            return dataclasses.replace(begun, records=records, state=state, measured=measured)

        def after_epoch() -> Any:
            saving.check()
            return on_epoch is not None and on_epoch(progress.records[-1])

        try:
            for new in self.epochs(progress, left, watch):
                progress, is_alike = new, True
                is_last = together(after_epoch)
                if preempted(progress.epoch):
                    raise ElsewhereInterrupted(signal.SIGTERM)
                if is_last:
                    break
                if saving.due(progress.epoch):
                    save(self.collect(progress), wait=False)
                is_alike = jax.process_count() == 1
        except KeyboardInterrupt as error:
            if not is_alike:
                raise
            number = error.number if isinstance(error, ElsewhereInterrupted) else None
            raise TrainingInterrupted(end(), number) from error
        except LossError as error:
            history = end()
            last = "" if saving.last is None else f"; the last good checkpoint is {saving.last}"
            raise DivergenceError(f"{error}{last}", history) from None
        except BaseException:
            if is_alike:
                end()
            raise
        return end()


class LossError(Exception):
    """An epoch whose loss is not finite."""


def _record(epoch: int, outcome: Outcome, seconds: float, slowest: Any) -> EpochRecord:
    metrics = as_numbers(outcome.metrics)
    val_loss = metrics.get("val", {}).get("loss", math.nan)
    is_best = bool(outcome.is_best)
    of_epoch = epoch, float(outcome.loss), val_loss, seconds, metrics, is_best, slowest
    return EpochRecord(*of_epoch, outcome.waited, outcome.copied)


def _not_finite(record: EpochRecord) -> str:
    """Names the first loss of an epoch that is not finite; "" if all are finite."""
    losses = {"training loss (dropout on)": record.loss}
    for split, name in (("train", "training loss"), ("val", "validation loss")):
        if split in record.metrics:
            losses[f"{name} after the step"] = record.metrics[split]["loss"]
    wrong = [f"{name} is {loss}" for name, loss in losses.items() if not math.isfinite(loss)]
    return wrong[0] if wrong else ""


def _first_spoiled(params: nnx.State) -> str:
    """A clause about the first parameter that is not finite."""
    entries: Any = nnx.to_flat_state(params)
    flags = jax.device_get(_are_finite([jax.tree.leaves(value) for _, value in entries]))
    wrong = [path for (path, _), flag in zip(entries, flags, strict=True) if not flag]
    if not wrong:
        return "all parameters are finite"
    return f"the first parameter that is not finite after it is {'.'.join(map(str, wrong[0]))}"


@jax.jit
def _are_finite(leaves: list[list[jax.Array]]) -> list[jax.Array]:
    return [jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in each])) for each in leaves]


def _bytes(leaf: jax.ShapeDtypeStruct) -> int:
    """Of one device."""
    assert leaf.sharding is not None
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
