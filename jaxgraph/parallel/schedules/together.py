"""The fold of several relations in one visit to the parts: rows that they share travel once.

Every relation has its own messages, state and adjoint. Their exchange is the same, and its halos
hold the rows that any of them reads. An array that several of them send is sent once, and so is its
gradient: the sum of theirs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.messages import Inputs, Wanted, floating_leaves, is_floating
from jaxgraph.ops.core.propagation import propagate_by
from jaxgraph.ops.core.running import add_at
from jaxgraph.ops.core.stored import when_ready
from jaxgraph.parallel.exchange import Call
from jaxgraph.parallel.schedules.ring import Visit, Work, visit_parts
from jaxgraph.parallel.schedules.sequential import Sequential, Task, looks_at_senders, positions
from pallas_kernels.pytrees import pytree

Pytree = Any


@dataclasses.dataclass(frozen=True)
class Shared:
    """Trees of rows, of which several may hold the same array.

    Attributes:
      leaves: each array once.
      trees: structure of each tree, and the places of its leaves among them.
    """

    leaves: list[jax.Array]
    trees: tuple[tuple[Any, tuple[int, ...]], ...]

    @classmethod
    def of(cls, trees: Sequence[Pytree]) -> Shared:
        """The arrays of some trees, each once."""
        leaves: list[jax.Array] = []
        numbers: dict[int, int] = {}
        found = []
        for tree in trees:
            own, structure = jax.tree.flatten(tree)
            for leaf in own:
                if id(leaf) not in numbers:
                    numbers[id(leaf)] = len(leaves)
                    leaves.append(leaf)
            found.append((structure, tuple(numbers[id(leaf)] for leaf in own)))
        return cls(leaves, tuple(found))


def trees_of(leaves: Sequence[Any], trees: Sequence[tuple[Any, tuple[int, ...]]]) -> list[Pytree]:
    """The trees that `Shared` took apart, of other leaves."""
    return [structure.unflatten([leaves[at] for at in places]) for structure, places in trees]


@pytree
class Together:
    """The messages of several relations of one exchange.

    Inputs and results are tuples with an entry for each relation, but for the senders' rows, which
    are a list of the arrays that any of them sends.

    Attributes:
      schedules: of each relation.
      trees: as of `Shared`, the senders' rows of each.
    """

    schedules: tuple[Sequential, ...]
    trees: tuple[tuple[Any, tuple[int, ...]], ...] = dataclasses.field(metadata={"static": True})

    @property
    def implementation(self) -> str:
        """The implementation that reduces the messages."""
        return self.schedules[0].implementation

    def reduce(self, message: Any, reducer: Any, inputs: Inputs) -> tuple[Pytree, Pytree]:
        """See `jaxgraph.ops.core.propagation.Schedule`."""
        tasks = self._tasks(message, reducer, inputs)

        def local(_: Pytree) -> tuple[Pytree, ...]:
            return tuple(task.fold_own() for task in tasks)

        def fetch(step: Any, after: jax.Array | None) -> Pytree:
            return self.schedules[0].fetch(inputs.sender, step, after)

        def work(step: Any, arrived: Pytree, states: tuple[Pytree, ...], after: Any) -> Work:
            found, done = [], None
            remote = trees_of(arrived, self.trees)
            for task, state, sender in zip(tasks, states, remote, strict=True):
                state, done = task.fold(step, sender, state, after)
                found.append(state)
                after = when_ready(done)
            return Work(tuple(found), None, done)

        states = visit_parts(self.schedules[0].exchange, Visit(local, fetch, work))
        results = [t.stages.finish(state, t.inputs) for t, state in zip(tasks, states, strict=True)]
        return tuple(outputs for outputs, _ in results), tuple(kept for _, kept in results)

    def pull(
        self,
        message: Any,
        reducer: Any,
        inputs: Inputs,
        results: tuple[Pytree, Pytree],
        gradient: Pytree,
        wanted: Wanted,
    ) -> Inputs:
        """See `jaxgraph.ops.core.propagation.Schedule`."""
        given = list(zip(*results, gradient, strict=True))
        tasks = [
            task.pulling(each[:2], each[2], _wanted_of(task.inputs, wanted))
            for task, each in zip(self._tasks(message, reducer, inputs), given, strict=True)
        ]
        reads = []
        for task, of, by, each in zip(tasks, message, reducer, given, strict=True):
            assert task.wanted is not None
            adjoint, chunk = by.adjoint(*each), task.schedule.relation.edge_chunk
            reads.append(looks_at_senders(of, by, task.inputs, adjoint, task.wanted, chunk))
        places = [_floating_places(tree, inputs.sender) for tree in self.trees]
        edges = self.schedules[0].relation.incoming
        read = {
            at for (_, tree), some in zip(self.trees, reads, strict=True) if some for at in tree
        }
        rows = self.schedules[0].exchange.halo_route().rows

        def added(totals: list[Any], some: Any, where: tuple[int, ...]) -> list[Any]:
            totals = list(totals)
            for at, each in zip(where, some or (), strict=False):
                totals[at] = each if totals[at] is None else totals[at] + each
            return totals

        def local(_: Pytree) -> tuple[list[jax.Array], list[Inputs]]:
            totals: list[Any] = [jnp.zeros_like(leaf) for leaf in floating_leaves(inputs.sender)]
            adjoints, grads = [task.adjoint for task in tasks], []
            totals = match_variation(totals, (edges, inputs, adjoints))
            for task, where in zip(tasks, places, strict=True):
                own = task.pull_own()
                totals = added(totals, own.sender, where)
                grads.append(dataclasses.replace(own, sender=[]))
            return totals, grads

        def fetch(step: Any, after: jax.Array | None) -> Pytree:
            some = [leaf for at, leaf in enumerate(inputs.sender) if at in read]
            arrived = iter(self.schedules[0].fetch(some, step, after) if some else [])
            empty = lambda leaf: jnp.zeros((rows, *leaf.shape[1:]), leaf.dtype)  # noqa: E731
            return [
                next(arrived) if at in read else match_variation(empty(leaf), edges)
                for at, leaf in enumerate(inputs.sender)
            ]

        def work(step: Any, arrived: Pytree, carry: Any, after: Any) -> Work:
            (totals, grads), found, done = carry, [], None
            answers: list[Any] = [None] * len(totals)
            remote = trees_of(arrived, self.trees)
            for task, sender, own, where in zip(tasks, remote, grads, places, strict=True):
                pulled = task.pull(step, sender, own, after)
                answers = added(answers, pulled.answer if wanted.sender else None, where)
                found.append(pulled.gradients)
                done, after = pulled.done, when_ready(pulled.done)
            answer = [each for each in answers if each is not None] or None
            return Work((totals, found), answer, done)

        def settle(step: Any, returned: Pytree, carry: Any) -> Any:
            totals, grads = carry
            where = positions(self.schedules[0].exchange.send, self.schedules[0].leaving(step))
            return add_at(totals, returned, where), grads

        visit = Visit(local, fetch, work, self.schedules[0].reply, settle)
        totals, grads = visit_parts(self.schedules[0].exchange, visit) if wanted.some else local(())
        joined = {
            part: [leaf for own in grads for leaf in getattr(own, part)]
            for part in ("params", "receiver", "edge")
        }
        return Inputs(sender=totals, **joined)

    def _tasks(self, message: Any, reducer: Any, inputs: Inputs) -> list[Task]:
        senders = trees_of(inputs.sender, self.trees)
        own = zip(inputs.params, senders, inputs.receiver, inputs.edge, strict=True)
        each = zip(
            self.schedules, message, reducer, map(Inputs, *zip(*own, strict=True)), strict=True
        )
        return [Task.of(*task) for task in each]


def _wanted_of(inputs: Inputs, of_any: Wanted) -> Wanted:
    """The wanted gradients of a relation among those that are wanted of any."""
    parts = zip(("params", "sender", "receiver", "edge"), inputs.parts, strict=True)
    return Wanted(**{p: getattr(of_any, p) and bool(floating_leaves(x)) for p, x in parts})


def _floating_places(tree: tuple[Any, tuple[int, ...]], leaves: Sequence[Any]) -> tuple[int, ...]:
    """The places of a tree's floating leaves among all floating leaves."""
    numbers, count = {}, 0
    for at, leaf in enumerate(leaves):
        if is_floating(leaf):
            numbers[at] = count
            count += 1
    return tuple(numbers[at] for at in tree[1] if at in numbers)


def propagate_together(calls: Sequence[Call]) -> list[Pytree]:
    """Reduces the messages of several relations of one exchange, in one visit to the parts."""
    inputs = [call.inputs for call in calls]
    shared = Shared.of([each.sender for each in inputs])
    schedules = tuple(Sequential(call.relation, call.self_loops) for call in calls)
    joined = Inputs(
        tuple(each.params for each in inputs),
        shared.leaves,
        tuple(each.receiver for each in inputs),
        tuple(each.edge for each in inputs),
    )
    messages: Any = tuple(call.message for call in calls)
    reducers: Any = tuple(call.reducer for call in calls)
    return [*propagate_by(Together(schedules, shared.trees), messages, reducers, joined)]
