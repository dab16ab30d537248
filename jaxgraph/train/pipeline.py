"""The pipeline of P3 (section 3.3): a step works on three mini-batches, each in another phase.

Step t computes the first layer's shares for batch t, the other layers of batch t - 1 forward and
backward, the first layer of batch t - 2 backward, and the step of the optimizer with the gradient
of batch t - 3. None of these reads a result of another, so that what one sends travels while the
others compute. Every batch keeps the weights that it began with:

    w_{t+1} = w_t - a grad f(w_{t-3})

At the end of an epoch the pipeline is emptied: the last batches take three more steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxgraph.ops.core.edges import match_variation, varying_axes
from jaxgraph.parallel import Shard, ShardedGraph
from jaxgraph.parallel.sampled_columns import GivenShares, NotPipelinedError, RecordedShares
from jaxgraph.parallel.samples import Sample
from jaxgraph.sampling import Loader
from jaxgraph.train.epoch import EpochProgram, epoch_on, programs_of
from jaxgraph.train.fit_state import LEARNERS, Held, TrainState, as_shape, replicate
from jaxgraph.train.latest_programs import LatestPrograms
from jaxgraph.train.objective import Split, objective
from jaxgraph.train.sampled import SampledEpoch, Step
from jaxgraph.train.step import Learner, has_no_loss, updated
from jaxgraph.train.task import Sums
from pallas_kernels.pytrees import pytree

STALENESS = 3
"""Steps of the optimizer between the weights that a gradient is of and the step that it makes."""
GATHERED_APART: dict[str, Any] = {"xla_gpu_all_gather_combine_threshold_bytes": 0}
"""Options for XLA, which would send all that is gathered at once.

Of the bytes that 8 H200s send, 0.28 are then under way while others compute, and 0.55 with these
(`benchmarks.p3_samples --only pipeline`).
"""
Pytree = Any


@pytree
class Batch:
    """A mini-batch on its way through the pipeline.

    Attributes:
      sample: its nodes and edges, on all devices.
      key: random key of its step.
      params, statistics: the variables that it began with.
      exists: whether it makes a step of the optimizer.
    """

    sample: Sample
    key: jax.Array
    params: nnx.State
    statistics: nnx.State
    exists: jax.Array


@pytree
class Flight:
    """The mini-batches in the pipeline. What devices hold of their own is [devices, ...].

    Attributes:
      forward: the batch whose first layer has been computed.
      shares: what that returned, of each device.
      backward: the batch whose other layers have been pulled back.
      pulled: the gradients of its shares, and of its parameters in these layers, of each device.
      loss: of that batch.
      gradient: of the batch that leaves, of each device.
      last_loss: of the batch that leaves.
      makes_step: whether that makes a step of the optimizer.
    """

    forward: Batch
    shares: Pytree
    backward: Batch
    pulled: tuple[Pytree, Pytree]
    loss: jax.Array
    gradient: Pytree
    last_loss: jax.Array
    makes_step: jax.Array


def pipelined_step(
    learner: Learner, state: TrainState, graph: ShardedGraph, flight: Flight, entering: Batch
) -> tuple[TrainState, Flight, Sums]:
    """Moves every batch on by a phase, and makes the step of the one that leaves; pure."""
    forward, backward = flight.forward, flight.backward
    batches = (entering, forward, backward)
    held = graph.shards, [each.sample for each in batches], (flight.shares, flight.pulled)
    batches = [dataclasses.replace(each, sample=None) for each in batches]
    (shares, pulled, gradient), (loss, sums, statistics) = _on_devices(
        graph, partial(_phases, learner)
    )(held, (batches, state.statistics))
    is_used = forward.exists & ~has_no_loss(learner, sums)
    total = jax.tree.map(lambda each: jnp.sum(each, axis=0), flight.gradient)
    last = flight.last_loss, state.statistics, total
    new = jax.tree.map(
        partial(jnp.where, flight.makes_step), updated(learner, state, graph, *last), state
    )
    statistics = jax.tree.map(partial(jnp.where, is_used), statistics, state.statistics)
    moved = Flight(
        forward=entering,
        shares=shares,
        backward=dataclasses.replace(forward, exists=is_used),
        pulled=pulled,
        loss=loss,
        gradient=gradient,
        last_loss=flight.loss,
        makes_step=backward.exists,
    )
    moved = lax.with_sharding_constraint(moved, _shardings(moved, graph))
    sums = jax.tree.map(lambda each: jnp.where(forward.exists, each, 0), sums)
    return dataclasses.replace(new, statistics=statistics), moved, sums


def _on_devices(graph: ShardedGraph, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(own, of all) -> (own, of all)` on every device, whose own are [devices, ...]."""
    own, of_all = PartitionSpec(graph.axis), PartitionSpec()

    def on_device(held: Any, given: Any) -> Any:
        found, same = function(jax.tree.map(lambda leaf: leaf[0], held), given)
        return jax.tree.map(lambda leaf: leaf[None], found), same

    specs = own, of_all
    return jax.shard_map(
        on_device, mesh=graph.mesh, in_specs=specs, out_specs=specs, check_vma=True
    )


def _phases(learner: Learner, held: Any, of_all: Any) -> Any:
    """The work of a step on a device: another phase of each of three batches."""
    shard, samples, (shares, (pulled, of_others)) = held
    batches, statistics = of_all
    run = partial(_run, learner, shard)
    entering, forward, backward = (
        dataclasses.replace(batch, sample=sample)
        for batch, sample in zip(batches, samples, strict=True)
    )
    # The gradient of each device is that of its own share: all are added a step later.
    of_forward, of_backward = (
        match_variation(batch.params, shard.node_mask) for batch in (forward, backward)
    )

    def others(params: nnx.State, shares: Pytree) -> Any:
        # What training writes, such as a running mean, is that after the batch before.
        batch = dataclasses.replace(forward, statistics=statistics)
        return run(batch, params, GivenShares(shares))

    with jax.named_scope("p3_1M_forward"):
        new_shares, _ = _first_layer(run, entering, entering.params)
    with jax.named_scope("p3_1D"):
        of_loss = jax.value_and_grad(others, (0, 1), has_aux=True)
        (loss, (sums, new)), (of_params, of_shares) = of_loss(of_forward, shares)
    with jax.named_scope("p3_1M_backward"):
        _, pull, _ = jax.vjp(partial(_first_layer, run, backward), of_backward, has_aux=True)
        gradient = jax.tree.map(jnp.add, pull(pulled)[0], of_others)
    own = new_shares, (of_shares, of_params), gradient
    return own, (loss, sums, jax.tree.map(_equal, new))


def _equal(value: jax.Array) -> jax.Array:
    """A value that is equal on all devices, though JAX takes its parameters for different ones."""
    axes = tuple(varying_axes(value))
    return lax.pmax(value, axes) if axes else value


def _run(learner: Learner, shard: Shard, batch: Batch, params: nnx.State, at_sync: Any) -> Any:
    """The objective of a batch, whose layers on columns ask `at_sync` for the devices' sum."""
    shard = dataclasses.replace(shard, sample=dataclasses.replace(batch.sample, at_sync=at_sync))
    model = Split(learner.graphdef, params, batch.statistics)
    return objective(model, shard, batch.key, learner.task, True)


def _first_layer(
    run: Any, batch: Batch, params: nnx.State
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """The sums of the devices' shares of a batch, and its loss, which XLA leaves out if unused."""
    recorded = RecordedShares()
    loss, _ = run(batch, params, recorded)
    if not recorded.values:
        raise NotPipelinedError(
            f"staleness={STALENESS} pipelines a first layer whose shares are added over devices, "
            "and the model gathers its features instead; train with staleness=0"
        )
    return tuple(recorded.values), loss


def empty_flight(
    learner: Learner, state: TrainState, graph: ShardedGraph, entering: Batch
) -> Flight:
    """A pipeline without batches: the first one stands for those that are missing."""

    def first_layer(held: Any, batch: Batch) -> Any:
        shard, sample = held
        batch = dataclasses.replace(batch, sample=sample)
        return _first_layer(partial(_run, learner, shard), batch, batch.params)

    of_all, held = dataclasses.replace(entering, sample=None), (graph.shards, entering.sample)
    found = jax.eval_shape(_on_devices(graph, first_layer), held, of_all)
    shares, loss = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), found)
    gradient = jax.tree.map(
        lambda leaf: jnp.zeros((graph.mesh.size, *leaf.shape), leaf.dtype), state.params
    )
    none = jnp.bool_(False)
    missing = dataclasses.replace(entering, exists=none)
    flight = Flight(missing, shares, missing, (shares, gradient), loss, gradient, loss, none)
    return lax.with_sharding_constraint(flight, _shardings(flight, graph))


def _shardings(flight: Flight, graph: ShardedGraph) -> Flight:
    """The sharding of every array of a pipeline."""

    own = NamedSharding(graph.mesh, PartitionSpec(graph.axis))
    found = jax.tree.map(lambda _: NamedSharding(graph.mesh, PartitionSpec()), flight)

    def with_own(tree: Any, *names: str) -> Any:
        held = {name: jax.tree.map(lambda _: own, getattr(tree, name)) for name in names}
        return dataclasses.replace(tree, **held)

    batches = {name: with_own(getattr(found, name), "sample") for name in ("forward", "backward")}
    return with_own(dataclasses.replace(found, **batches), "shares", "pulled", "gradient")


@dataclasses.dataclass(frozen=True)
class _Programs:
    """The compiled functions of a pipeline.

    Attributes:
      empty: `(state, graph, batch)`, see `empty_flight`.
      step: `(state, graph, flight, batch)`, see `pipelined_step`.
    """

    empty: LatestPrograms
    step: LatestPrograms


@lru_cache(maxsize=LEARNERS)
def _programs_of(learner: Learner) -> _Programs:
    """The compiled functions of a learner's pipeline."""
    options = GATHERED_APART | (learner.compiler_options or {})
    return _Programs(
        LatestPrograms(partial(empty_flight, learner)),
        LatestPrograms(partial(pipelined_step, learner), compiler_options=options),
    )


@dataclasses.dataclass(frozen=True)
class PipelinedEpoch(SampledEpoch):
    """Runs epochs of batches in the pipeline, which is empty before and after each."""

    after: ClassVar[int] = STALENESS

    def stepper(self) -> Step:
        """See `SampledEpoch.stepper`."""
        (graph,), programs = self.graphs, _programs_of(self.learner)
        flight: Flight | None = None

        def step(state: TrainState, batch: ShardedGraph, key: jax.Array, enters: bool) -> Any:
            nonlocal flight
            entering = self._entering(state, batch, key, enters)
            if flight is None:
                flight = programs.empty(state, graph, entering)
            state, flight, sums = programs.step(state, graph, flight, entering)
            return state, sums

        return step

    def lowered(self, held: Held, batch: ShardedGraph) -> list[jax.stages.Lowered]:
        """See `SampledEpoch.lowered`."""
        (graph,), (state, _, key) = self.graphs, held
        # Traced alone, a batch is checked as all functions of a shard are.
        programs_of(self.learner).batch_step.lower(state, batch, key)
        entering = self._entering(state, batch, key, enters=True)
        programs = _programs_of(self.learner)
        empty = programs.empty.lower(state, graph, entering)
        flight = jax.tree.map(as_shape, empty.out_info, _shardings(empty.out_info, graph))
        return [programs.step.lower(state, graph, flight, entering), empty]

    def _entering(
        self, state: TrainState, batch: ShardedGraph, key: jax.Array, enters: bool
    ) -> Batch:
        (graph,), sample = self.graphs, batch.shards.sample
        assert sample is not None
        exists = replicate(np.bool_(enters), graph)
        return Batch(sample, key, state.params, state.statistics, exists)


def epoch_program_of(loader: Loader | None, staleness: Any) -> Callable[..., EpochProgram]:
    """The maker of the program of an epoch, given a learner and graphs."""
    is_int = isinstance(staleness, int) and not isinstance(staleness, bool)
    if not is_int or staleness not in (0, STALENESS):
        raise ValueError(
            f"staleness is {staleness!r}; expected 0, or {STALENESS}, as of a pipeline of "
            "three batches"
        )
    if not staleness:
        return epoch_on if loader is None else partial(SampledEpoch, loader=loader)
    if loader is None or loader.sharded.shards.columns is None:
        raise ValueError(
            f"staleness={staleness} is for mini-batches of a graph in mode 'p3': make a "
            "jaxgraph.sampling.Loader with sharded=shard(graph, partition, mesh, 'p3'), or leave "
            "staleness out"
        )
    return partial(PipelinedEpoch, loader=loader)
