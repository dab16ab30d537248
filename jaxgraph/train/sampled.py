"""An epoch of mini-batches: a step for each, and the evaluation of the whole graph."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import jax
import numpy as np
from flax import nnx

from jaxgraph.nn import BatchNorm
from jaxgraph.nn.readout import Readout
from jaxgraph.parallel import ShardedGraph
from jaxgraph.parallel.spmd import on_host
from jaxgraph.sampling import Loader
from jaxgraph.sampling.batches import Usage
from jaxgraph.train.arguments import check_link_types
from jaxgraph.train.epoch import EpochProgram, Outcome, graph_key, programs_of
from jaxgraph.train.fit_state import Held, TrainState, as_shape, replicate
from jaxgraph.train.identity import definition
from jaxgraph.train.task import Sums, Task

Step = Callable[[TrainState, ShardedGraph, jax.Array, bool], tuple[TrainState, Sums]]
"""`(state, batch, key, whether the batch is new)`, a step of an epoch."""


@dataclasses.dataclass(frozen=True)
class SampledEpoch(EpochProgram):
    """Runs epochs of the batches of a loader, whose graph is the only one of `graphs`.

    Attributes:
      loader: the loader.
    """

    loader: Loader = dataclasses.field(kw_only=True)

    after: ClassVar[int] = 0
    """Steps of an epoch after that of its last batch."""

    def run(self, held: Held, epoch: int) -> tuple[Held, Outcome]:
        """See `EpochProgram.run`."""
        (graph,), programs = self.graphs, programs_of(self.learner)
        state, total, of_epoch = self.steps(held, epoch)
        evaluation = programs.evaluate(state, graph)
        kept, outcome = programs.choose(state, held.kept, graph, [total], [evaluation])
        return Held(state, kept, held.key), dataclasses.replace(outcome, **of_epoch)

    def steps(self, held: Held, epoch: int) -> tuple[TrainState, Sums, dict[str, float | None]]:
        """The steps of an epoch, and the shares `waited` and `copied` of its `Outcome`."""
        (graph,), programs = self.graphs, programs_of(self.learner)
        state, number = held.state, replicate(np.int32(epoch), graph)
        total, usage, started = None, Usage(), time.perf_counter()
        is_emulated = graph.mesh.devices.flat[0].platform == "cpu" and graph.num_parts > 1
        step = self.stepper()

        def is_idle() -> bool:
            return total is None or all(leaf.is_ready() for leaf in jax.tree.leaves(total))

        batches = self.loader.batches_waited_for(epoch, is_idle, usage)
        for index, (batch, is_new) in enumerate(_with_last_again(batches, self.after)):
            of_batch = graph_key(held.key, number, replicate(np.int32(index), graph))
            before = total
            state, sums = step(state, batch, of_batch, is_new)
            total = sums if before is None else programs.add(before, sums)
            # One step is in flight, and one waits for it: batches do not pile up on the devices. On
            # emulated devices two steps at once can starve each other's collectives (22 s).
            jax.block_until_ready(total if is_emulated else before)
        assert total is not None
        jax.block_until_ready(total)
        waited = usage.waited / (time.perf_counter() - started)
        return state, total, {"waited": waited, "copied": usage.share_copied}

    def stepper(self) -> Step:
        """The function of an epoch's steps."""
        batch_step = programs_of(self.learner).batch_step
        return lambda state, batch, key, is_new: batch_step(state, batch, key)

    def lowered(self, held: Held, batch: ShardedGraph) -> list[jax.stages.Lowered]:
        """The programs of `stepper`, that of a step first; its last output are the sums."""
        return [programs_of(self.learner).batch_step.lower(held.state, batch, held.key)]

    def compile(self, held: Held) -> tuple[jax.stages.Compiled, ...]:
        """Compiles the programs of `run`, and runs nothing."""
        (graph,), programs, (state, kept, _) = self.graphs, programs_of(self.learner), held
        started = time.perf_counter()
        steps = self.lowered(held, self.loader.abstract_batch())
        evaluation = programs.evaluate.lower(state, graph)
        replicated = replicate(np.int32(0), graph).sharding
        sums, evaluated = jax.tree.map(
            lambda leaf: as_shape(leaf, replicated), (steps[0].out_info[-1], evaluation.out_info)
        )
        others = [programs.choose.lower(state, kept, graph, [sums], [evaluated])]
        others += [programs.add.lower(sums, sums)] if len(self.loader) + self.after > 1 else []
        compiled = tuple(each.compile() for each in (*steps, evaluation, *others))
        programs.times.append(time.perf_counter() - started)
        return compiled


def _with_last_again(batches: Iterator[Any], times: int) -> Iterator[tuple[Any, bool]]:
    """The batches, each with True; then the last one so many times with False."""
    last = None
    for last in batches:
        yield last, True
    yield from [(last, False)] * times


def check_loader(model: nnx.Module, loader: Loader, task: Task) -> None:
    """Checks that a model can learn a task by the batches of a loader."""
    fanouts, name = loader.fanouts, type(model).__name__
    layers = getattr(model, "edge_layers", None)
    encoder = getattr(model, "encoder", None) if isinstance(model, Readout) else None
    of_encoder = getattr(encoder, "edge_layers", None)
    if fanouts and of_encoder is not None and of_encoder != len(fanouts):
        raise ValueError(
            f"the encoder, {type(encoder).__name__}, has {of_encoder} layers that read edges, and "
            f"the loader {len(fanouts)} fanouts, {fanouts}; give it one for each layer"
        )
    if layers == 0:
        raise ValueError(
            f"{name} propagates several times over the same nodes, and a batch has other nodes for "
            "each layer; train it on the whole graph, fit(model, graph, ...)"
        )
    if layers is not None and {len(each) for each in loader.draws.fanouts} != {1}:
        raise ValueError(
            f"{name} is for one set of edges, and the loader's graph has several; take layers for "
            "several sets, such as jaxgraph.nn.HeteroConv"
        )
    if layers is not None and layers != len(fanouts):
        raise ValueError(
            f"{name} has {layers} layers that read edges, and the loader {len(fanouts)} fanouts, "
            f"{fanouts}; give it one for each layer"
        )
    if loader.links is not None:
        check_link_types(model, loader.links.pairs.types)
    if loader.has_cache and type(task).in_training is not Task.in_training:
        raise ValueError(
            f"{type(task).__name__} changes the nodes in every step, and the loader has copies of "
            "some on each device; make it without cache_bytes"
        )
    shards = loader.sharded.shards
    if shards.train_mask is not None and loader.links is None:
        ids, mask = on_host(shards.node_ids, shards.train_mask)
        without = np.setdiff1d(loader.seeds, ids[mask])
        if len(without):
            raise ValueError(
                f"{len(without)} of the loader's {len(loader.seeds)} seeds, such as "
                f"{without[0]}, are no training nodes of the sharded graph and have no loss; make "
                "it without nodes, or with some of numpy.flatnonzero(graph.train_mask), and shard "
                "the graph that has this mask"
            )
    has_rows = any(
        each.get_metadata().get("rows") == "nodes"
        for each in jax.tree.leaves(nnx.state(model), is_leaf=_is_variable)
        if _is_variable(each)
    )
    if has_rows and loader.fanouts:
        raise ValueError(
            "the model has a variable with one row per node (NodeEmbedding), and the optimizer "
            "would move the rows of all nodes in every batch; use node features, or train on the "
            "whole graph"
        )
    has_norm = any(isinstance(part, BatchNorm) for _, part in nnx.iter_modules(model))
    if loader.shares_nodes and has_norm:
        raise ValueError(
            "the model has a BatchNorm, whose mean and variance are over the nodes of a batch, and "
            f"on {loader.sharded.num_parts} devices some nodes are in several devices' share of "
            "it: the result would depend on their number. Take norm='layer', or one device"
        )


def _is_variable(part: Any) -> bool:
    return isinstance(part, nnx.Variable)


def loader_digests(loader: Loader) -> dict[str, str]:
    """The digests of a loader that a resumed run must share, by name."""
    of_loader: dict[str, Any] = {
        **dataclasses.asdict(loader.draws),
        "batch_size": loader.batch_size,
        "seed": loader.seed,
        "nodes": loader.seeds,
        "links": None if loader.links is None else dataclasses.asdict(loader.links.given),
        "weights": loader.weights,
    }
    return {f"loader.{name}": definition(value) for name, value in of_loader.items()}
