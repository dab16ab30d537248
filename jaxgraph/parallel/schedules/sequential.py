"""Sequential aggregation and rematerialisation: one remote part at a time, and none saved.

SAR, section 3.2, algorithms 1 and 2. The forward folds the messages from each part into a resumable
state. The backward has three plans for a remote part, and takes the one that the message function
allows and that moves the fewest bytes:

- *push* (the paper's case 1): no wanted gradient reads the senders' values. They are not fetched
  again; the receivers' part computes the senders' gradient and sends it back.
- *refetch* (case 2): the senders' values are fetched again.
- *at the sender*: the receivers' part sends what its rows contribute (for attention: gradient,
  logit, log of the normaliser and <g_i, y_i>), the senders' part visits the edges, and returns the
  gradient of the receivers' inputs (for GAT one number per head). Cheaper than refetching wherever
  the receivers' inputs are small; not in the paper.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.choice import choose_stages
from jaxgraph.ops.core.edges import EdgeGroups, match_variation
from jaxgraph.ops.core.message_programs import needed_inputs
from jaxgraph.ops.core.messages import (
    Inputs,
    MessageFn,
    Wanted,
    chunk_examples,
    evaluate_message,
    floating_leaves,
    masked_cotangent,
    with_floating_leaves,
)
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.core.rows import entry_at
from jaxgraph.ops.core.running import Places, Pulled, add_at
from jaxgraph.ops.core.stages import Stages
from jaxgraph.parallel.exchange import Exchange, HaloTable, RingOrder, Route, send_rows
from jaxgraph.parallel.relation import Relation
from jaxgraph.parallel.schedules.ring import Visit, Work, visit_parts
from pallas_kernels.pytrees import pytree

Pytree = Any


@pytree
class Sequential:
    """The messages of a relation, whose exchange fetches one remote part at a time.

    Attributes:
      relation: the relation.
      self_loops: whether nodes without an edge to themselves send themselves a message.
    """

    relation: Relation
    self_loops: bool = dataclasses.field(metadata={"static": True})
    visits_senders: ClassVar[bool] = True
    """True where the backward may visit edges on the device of their senders."""

    @property
    def implementation(self) -> str:
        return self.relation.implementation

    @property
    def exchange(self) -> Exchange:
        """The exchange of the relation."""
        return self.relation.exchange

    @property
    def reach(self) -> HaloTable | None:
        """The own rows that have edges from other parts."""
        return self.relation.arrays.reach

    def block(self) -> Block:
        """The edges whose senders are own rows."""
        return self.relation.block().with_loops(self.self_loops)

    def own(self, sender: Pytree) -> Pytree:
        """The own rows among the senders' rows."""
        return sender

    def send(self, route: Route, table: HaloTable | None, tree: Pytree, *step: Any, **hop: Any):
        """Sends rows to the partner of a step, and returns those that came."""
        return send_rows(self.exchange.axis, self.implementation, route, table, tree, *step, **hop)

    def fetch(self, sender: Pytree, step: jax.Array | int, after: jax.Array | None) -> Pytree:
        """The rows of the part behind at this step, [halo rows, ...]."""
        route, ahead = self.exchange.halo_route(), self.leaving(step)
        return self.send(route, self.exchange.send, sender, ahead, after, hop=step)

    def reply(self, step: jax.Array | int, answer: Pytree) -> Pytree:
        """Sends the gradient of fetched rows, and returns the received one of own rows."""
        return self.send(self.exchange.halo_route().answers(), None, answer, step)

    def settle(self, step: jax.Array | int, returned: Pytree, totals: list[jax.Array]) -> Any:
        """Adds the returned rows to the senders' gradients."""
        return add_at(totals, returned, positions(self.exchange.send, self.leaving(step)))

    def arriving(self, step: jax.Array | int) -> jax.Array | int:
        """The group of the edges that enter the own part from the part behind."""
        return step if self._is_ring else self._order.arriving(self._own_part(), step)

    def leaving(self, step: jax.Array | int) -> jax.Array | int:
        """The place in `send` of the part ahead, and 1 more than its group of outgoing edges."""
        return step if self._is_ring else self._order.leaving(self._own_part(), step)

    def _own_part(self) -> jax.Array:
        """The part of this device, int32 []."""
        return lax.axis_index(self.exchange.axis)

    @property
    def _is_ring(self) -> bool:
        """True where parts visit each other by their distance on the ring."""
        return self.exchange.hosts in (1, self.exchange.num_parts)

    @property
    def _order(self) -> RingOrder:
        return RingOrder(self.exchange.num_parts, self.exchange.hosts)

    def local_gradients(self, grads: Inputs) -> Inputs:
        """Gradients from the edges among the own nodes, of the shapes of the inputs."""
        return grads

    def reduce(self, message: MessageFn, reducer: Reducer, inputs: Inputs) -> tuple[Pytree, Pytree]:
        task = Task.of(self, message, reducer, inputs)
        return task.stages.finish(_fold(task), inputs)

    def pull(
        self,
        message: MessageFn,
        reducer: Reducer,
        inputs: Inputs,
        results: tuple[Pytree, Pytree],
        gradient: Pytree,
        wanted: Wanted,
    ) -> Inputs:
        task = Task.of(self, message, reducer, inputs).pulling(results, gradient, wanted)
        if not wanted.some:
            return task.pull_own()
        edges = self.relation.incoming
        # A kernel has an adjoint of its own; XLA removes the unused parts of the reducer's.
        of_reducer = reducer.adjoint(*results, gradient)
        plan = backward_plan(message, reducer, inputs, of_reducer, wanted, edges.chunk)
        # A halo that several relations read is not numbered as the rows that this one sends.
        if plan == "at-sender" and not (self.visits_senders and edges.halo_position is None):
            plan = "refetch"
        return visit_parts(self.exchange, _PLANS[plan](task))


def _fold(task: Task) -> Pytree:
    """Algorithm 1: the own part, then one remote part after another."""
    schedule = task.schedule

    def fetch(step: jax.Array | int, after: jax.Array | None) -> Pytree:
        return schedule.fetch(task.inputs.sender, step, after)

    def work(step: jax.Array | int, arrived: Pytree, state: Pytree, after: Any) -> Work:
        state, done = task.fold(step, arrived, state, after)
        return Work(state, None, done)

    return visit_parts(schedule.exchange, Visit(lambda _: task.fold_own(), fetch, work))


def positions(table: HaloTable | None, step: jax.Array | int) -> jax.Array:
    """The positions of the own rows among those shared with the part at `step` of the ring."""
    assert table is not None  # a graph of one part takes no steps
    return entry_at(table.position, step - 1)


@dataclasses.dataclass(frozen=True)
class Task:
    """The messages of one relation, and the gradient that is pulled back through them.

    Attributes:
      schedule: their schedule.
      stages: of their reduction.
      inputs: of the messages.
      adjoint: of the stages; None: nothing is pulled back.
      wanted: the gradients that are.
    """

    schedule: Sequential
    stages: Stages
    inputs: Inputs
    adjoint: Pytree = None
    wanted: Wanted | None = None

    @classmethod
    def of(cls, schedule: Sequential, message: MessageFn, reducer: Reducer, inputs: Inputs) -> Task:
        """The reduction of the messages of a relation."""
        edges = schedule.relation.incoming
        return cls(schedule, choose_stages(edges, message, reducer, inputs), inputs)

    def pulling(self, results: tuple[Pytree, Pytree], gradient: Pytree, wanted: Wanted) -> Task:
        """The task of pulling the gradient of some results back."""
        adjoint = self.stages.adjoint(*results, gradient)
        return dataclasses.replace(self, adjoint=adjoint, wanted=wanted)

    def fold_own(self) -> Pytree:
        """The state after the messages among the own nodes."""
        return self.stages.fold(self.schedule.block(), self._own)

    def fold(self, step: Any, sender: Pytree, state: Pytree, after: Any) -> tuple[Pytree, Pytree]:
        """Folds the messages of the part behind; returns the state, and a sign that it is done."""
        edges, group = self.schedule.relation.incoming, self.schedule.arriving(step)
        remote = dataclasses.replace(self.inputs, sender=sender)
        where = positions(self.schedule.reach, group)
        return self.stages.fold_group(edges, group, remote, state, where, after)

    def pull_own(self) -> Inputs:
        """Gradients from the edges among the own nodes."""
        own = self.stages.pull(self.schedule.block(), self._own, self.adjoint, self._pulled)
        return self.schedule.local_gradients(own)

    def pull(self, step: Any, sender: Pytree, grads: Inputs, after: Any) -> Pulled:
        """Adds the gradients of the messages of the part behind."""
        edges, group = self.schedule.relation.incoming, self.schedule.arriving(step)
        remote = dataclasses.replace(self.inputs, sender=sender)
        where = Places(None, positions(self.schedule.reach, group))
        return self.pull_group(edges, group, remote, self.adjoint, grads, where, after)

    def pull_group(
        self, edges: EdgeGroups, group: Any, remote: Inputs, adjoint: Pytree, *rest: Any
    ) -> Pulled:
        """Adds the gradients of the messages of one group of edges."""
        return self.stages.pull_group(edges, group, remote, adjoint, self._pulled, *rest)

    @property
    def _own(self) -> Inputs:
        return dataclasses.replace(self.inputs, sender=self.schedule.own(self.inputs.sender))

    @property
    def _pulled(self) -> Wanted:
        assert self.wanted is not None
        return self.wanted


def backward_plan(
    message: MessageFn,
    reducer: Reducer,
    inputs: Inputs,
    adjoint: Pytree,
    wanted: Wanted,
    chunk: int,
) -> str:
    """Chooses how the backward treats remote parts: "push", "refetch" or "at-sender"."""
    if not looks_at_senders(message, reducer, inputs, adjoint, wanted, chunk):
        return "push"
    senders = 2 * row_bytes(floating_leaves(inputs.sender))
    receivers = row_bytes(inputs.receiver) + row_bytes(adjoint)
    receivers += row_bytes(floating_leaves(inputs.receiver))
    if jax.tree.leaves(inputs.edge) or receivers >= senders:
        return "refetch"
    return "at-sender"


def _worked(pulled: Pulled) -> Work:
    return Work(pulled.gradients, pulled.answer, pulled.done)


def row_bytes(tree: Pytree) -> int:
    """The bytes of one row of all arrays [rows, ...] of a tree, which may be shapes."""
    return sum(math.prod(leaf.shape[1:]) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _at_receiver(task: Task, *, refetch: bool) -> Visit:
    """Algorithm 2: the receivers' part computes the gradient of the remote senders and sends it."""
    schedule, inputs = task.schedule, task.inputs
    edges, exchange = schedule.relation.incoming, schedule.exchange
    rows = exchange.halo_route().rows

    def fetch(step: jax.Array | int, after: jax.Array | None) -> Pytree:
        if refetch:
            return schedule.fetch(inputs.sender, step, after)
        empty = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape[1:]), x.dtype), inputs.sender)
        return match_variation(empty, edges)

    def work(step: jax.Array | int, arrived: Pytree, grads: Inputs, after: Any) -> Work:
        return _worked(task.pull(step, arrived, grads, after))

    def settle(step: jax.Array | int, returned: Pytree, grads: Inputs) -> Inputs:
        return dataclasses.replace(grads, sender=schedule.settle(step, returned, grads.sender))

    return Visit(lambda _: task.pull_own(), fetch, work, schedule.reply, settle)


def _at_sender(task: Task) -> Visit:
    """The senders' part computes all gradients and returns those of the receivers' inputs."""
    schedule, inputs = task.schedule, task.inputs
    relation, exchange = schedule.relation, schedule.exchange
    outgoing = relation.arrays.outgoing or relation.incoming  # one part takes no steps
    route = exchange.reach_route(relation.arrays.reach_units)

    def fetch(step: jax.Array | int, after: jax.Array | None) -> Pytree:
        rows, behind = (inputs.receiver, task.adjoint), schedule.arriving(step)
        return schedule.send(route, schedule.reach, rows, behind, after, hop=step)

    def work(step: jax.Array | int, arrived: Pytree, grads: Inputs, after: Any) -> Work:
        receiver, adjoint = arrived
        remote = dataclasses.replace(inputs, receiver=receiver)
        group = schedule.leaving(step)
        places = Places(positions(exchange.send, group), None)
        return _worked(task.pull_group(outgoing, group - 1, remote, adjoint, grads, places, after))

    def reply(step: jax.Array | int, answer: Pytree) -> Pytree:
        return schedule.send(route.answers(), None, answer, step)

    def settle(step: jax.Array | int, returned: Pytree, grads: Inputs) -> Inputs:
        position = positions(schedule.reach, schedule.arriving(step))
        rows = add_at(grads.receiver, returned, position)
        return dataclasses.replace(grads, receiver=rows)

    return Visit(lambda _: task.pull_own(), fetch, work, reply, settle)


_PLANS: dict[str, Callable[[Task], Visit]] = {
    "push": partial(_at_receiver, refetch=False),
    "refetch": partial(_at_receiver, refetch=True),
    "at-sender": _at_sender,
}


def looks_at_senders(
    message: Callable[[Pytree, Pytree, Pytree, Pytree], Pytree],
    reducer: Reducer,
    inputs: Inputs,
    adjoint: Pytree,
    wanted: Wanted,
    chunk: int,
) -> bool:
    """True where a wanted gradient of the messages depends on the values of the senders."""

    names = [each.name for each in dataclasses.fields(wanted) if getattr(wanted, each.name)]

    def gradients(sender: Pytree, others: Inputs, adjoint: Pytree) -> Pytree:
        values = dataclasses.replace(others, sender=sender)
        parts = {name: getattr(values, name) for name in names}

        def evaluate(floating: dict[str, list[jax.Array]]) -> Pytree:
            new = {n: with_floating_leaves(parts[n], leaves) for n, leaves in floating.items()}
            return evaluate_message(message, dataclasses.replace(values, **new))

        floating = {name: floating_leaves(part) for name, part in parts.items()}
        messages, pull = jax.vjp(evaluate, floating)
        some = jnp.zeros(chunk, jnp.int32)
        keep = reducer.per_edge(some, some, some)
        gradient = reducer.cotangent(messages, adjoint, keep)
        return pull(masked_cotangent(gradient, messages, some == 0))[0]

    examples = chunk_examples(inputs, chunk)
    rows = chunk_examples(Inputs((), adjoint, (), ()), chunk).sender
    others = dataclasses.replace(examples, sender=())
    jaxpr = jax.make_jaxpr(gradients)(examples.sender, others, rows).jaxpr
    senders = len(jax.tree.leaves(inputs.sender))
    return bool(needed_inputs(jaxpr) & set(jaxpr.invars[:senders]))
