"""A run of training: its constants and the policy of its model, its progress, and its epochs."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxgraph.kinds import kind_of
from jaxgraph.layers import RematPolicy
from jaxgraph.nn.stack import Stack
from jaxgraph.parallel import ShardedGraph
from jaxgraph.parallel.streaming.rehearsal import Needs
from jaxgraph.train.aggregates import StreamedAggregate, with_aggregates
from jaxgraph.train.epoch import EpochProgram, Kept, Outcome, abstract_arguments, first_kept
from jaxgraph.train.evaluation import as_numbers
from jaxgraph.train.fit_state import FitState, collected, place_fit_state
from jaxgraph.train.history import EpochRecord
from jaxgraph.train.measured import Watch
from jaxgraph.train.state import TrainState, abstract_state, initial_state, random_key
from jaxgraph.train.step import Learner
from jaxgraph.train.streamed_epoch import StreamedEpoch, needs_of

if TYPE_CHECKING:
    from jaxgraph.planner.policy_search import MemoryPlan


@dataclasses.dataclass(frozen=True)
class Progress:
    """A run after an epoch; replaced as a whole, so that an interruption finds it consistent.

    Attributes:
      program: an epoch, on the graphs where it trains.
      state, kept, key: arrays on their mesh.
      epoch: number of completed epochs.
      best_epoch: number of the best epoch; 0 before the first.
      records: this call's records.
    """

    program: EpochProgram
    state: TrainState
    kept: Kept
    key: jax.Array
    epoch: int = 0
    best_epoch: int = 0
    records: tuple[EpochRecord, ...] = ()

    def compile(self) -> tuple[tuple[jax.stages.Compiled, ...], float]:
        """Compiles an epoch; returns its programs and the seconds."""
        started = time.perf_counter()
        compiled = self.program.compile(self.state, self.kept, self.key)
        return compiled, time.perf_counter() - started

    def needs(self) -> Needs | None:
        """The bytes that an epoch needs, where the graph is streamed."""
        if isinstance(self.program, StreamedEpoch):
            return self.program.needs(self.state, self.kept, self.key)
        return None

    def after(self, state: TrainState, kept: Kept, record: EpochRecord) -> Progress:
        best_epoch = record.epoch if record.is_best else self.best_epoch
        records = (*self.records, record)
        return Progress(self.program, state, kept, self.key, record.epoch, best_epoch, records)


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

    def begin(
        self, graphs: tuple[ShardedGraph, ...], epochs: int, state: FitState | None, seed: int
    ) -> Progress:
        """The run before its first epoch on these graphs, of so many epochs."""
        if self.aggregate_once:
            graphs = with_aggregates(self.model, graphs, epochs, self._fits)
        kind = StreamedEpoch if graphs[0].is_streamed else EpochProgram
        program = kind(self.learner, graphs, self.expected.best_params is not None)
        if state is None:
            first = initial_state(self.model, graphs[0], self.optimizer)
            kept, key = first_kept(first, graphs[0]), random_key(seed, graphs[0])
            return Progress(program, first, kept, key)
        abstract = abstract_state(self.model, self.optimizer, graphs[0])
        placed = place_fit_state(state, abstract, graphs[0])
        return Progress(program, *placed, int(state.epoch), int(state.best_epoch))

    def _fits(self, aggregate: StreamedAggregate) -> bool:
        """True where an aggregate, and epochs with it, keep the limit."""
        if self.limit is None:
            return True
        needs = needs_of(self.learner, self.model, self.optimizer, aggregate.graph)
        return max(needs.device, aggregate.function.needs.device) <= self.limit

    def collect(self, progress: Progress) -> FitState:
        """Copies the run to the host; the same in every process."""
        state, words = progress.state, jax.random.key_data(progress.key)
        kept: Any = progress.kept
        found = FitState(
            params=state.params,
            statistics=state.statistics,
            optimizer_state=state.optimizer_state,
            best_params=kept.params if self.expected.best_params is not None else None,
            best_statistics=kept.statistics if self.expected.best_params is not None else None,
            best_val_loss=kept.val_loss,
            key_data=jax.device_get(words),
            epoch=np.asarray(progress.epoch, np.int32),
            best_epoch=np.asarray(progress.best_epoch, np.int32),
        )
        return collected(found, self.expected, progress.program.graphs[0])

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
        seconds = max(time.perf_counter() - started, moved.program.compile_seconds)
        return moved, moved.program.graphs[0], seconds


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
            state, kept, outcome = progress.program.run(
                progress.state, progress.kept, progress.key, progress.epoch
            )
            # Waits for the devices and raises their errors before the epoch is kept.
            outcome = jax.device_get(outcome)
        slowest = None if watch is None else watch.slowest_part()
        seconds = time.perf_counter() - started
        record = _record(progress.epoch + 1, outcome, seconds, slowest)
        wrong = _not_finite(record)
        if wrong:
            raise LossError(f"epoch {record.epoch}: the {wrong}; {_first_spoiled(state.params)}")
        progress = progress.after(state, kept, record)
        yield progress
        if patience is not None:  # So many remain at least.
            left = min(left, patience - (progress.epoch - progress.best_epoch))
        if watch is not None:
            moved = watch.after(progress.records, left, partial(run.move, progress, left))
            progress = progress if moved is None else moved


def _record(epoch: int, outcome: Outcome, seconds: float, slowest: Any) -> EpochRecord:
    metrics = as_numbers(outcome.metrics)
    val_loss = metrics.get("val", {}).get("loss", math.nan)
    is_best = bool(outcome.is_best)
    return EpochRecord(epoch, float(outcome.loss), val_loss, seconds, metrics, is_best, slowest)


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


def with_policy(model: nnx.Module, policy: Sequence[RematPolicy]) -> nnx.Module:
    """The model, with the same variables and the policy of a plan."""
    if not isinstance(model, Stack):
        raise ValueError(
            f"the plan has policies of layers, and model is {kind_of(model)}, which has none; "
            "expected a jaxgraph.nn.Stack, such as the one that the plan was made for"
        )
    return model.with_policy(policy)


def within_limit(
    limit: int,
    model: nnx.Module,
    graphs: tuple[ShardedGraph, ...],
    optimizer: optax.GradientTransformation,
    program_of: Callable[[nnx.Module], EpochProgram],
) -> tuple[nnx.Module, MemoryPlan]:
    """The model with the cheapest policy under which an epoch fits, and the plan; reads no data."""
    # The one place where training reaches up: the planner compiles steps of training.
    from jaxgraph.planner.policy_search import Needed, cheapest_fitting

    arguments = abstract_arguments(model, optimizer, graphs[0])
    resident = sum(map(_bytes, jax.tree.leaves((arguments[:2], graphs))))

    def needs(model: nnx.Module) -> Needed:
        found: list[Any] = [p.memory_analysis() for p in program_of(model).compile(*arguments)]
        most = max(
            each.output_size_in_bytes - each.alias_size_in_bytes + each.temp_size_in_bytes
            for each in found
        )
        return Needed(resident, most, max(each.host_temp_size_in_bytes for each in found))

    return cheapest_fitting(model, graphs[0], limit, needs)


def _bytes(leaf: jax.ShapeDtypeStruct) -> int:
    """Of one device."""
    assert leaf.sharding is not None
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
