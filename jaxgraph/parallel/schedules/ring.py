"""The order of visits to the parts on the ring: strictly one by one, or one ahead."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.ops.core.stored import when_ready
from jaxgraph.parallel.exchange import Exchange

Pytree = Any
Step = jax.Array | int


@dataclasses.dataclass(frozen=True)
class Work:
    """The results of the work on one remote part.

    Attributes:
      carry: running results.
      answer: rows to send back to the part, or None.
      done: arrays that exist when the work is over; None if there was no work.
    """

    carry: Pytree
    answer: Pytree
    done: Pytree


def _no_reply(step: Step, answer: Pytree) -> Pytree:
    return answer


def _nothing_to_settle(step: Step, returned: Pytree, carry: Pytree) -> Pytree:
    return carry


@dataclasses.dataclass(frozen=True)
class Visit:
    """The functions that `visit_parts` calls for the own part and for every other one.

    Attributes:
      local: `local(carry)`, the own part.
      fetch: `fetch(step, after)`, rows of the part behind at this step.
      work: `work(step, arrived, carry, after)`; `after` is 0; starting from it orders the work.
      reply: `reply(step, answer)`, sends the answer and returns the one received.
      settle: `settle(step, returned, carry)`, adds it to the results.
    """

    local: Callable[[Pytree], Pytree]
    fetch: Callable[[Step, jax.Array | None], Pytree]
    work: Callable[[Step, Pytree, Pytree, jax.Array | None], Work]
    reply: Callable[[Step, Pytree], Pytree] = _no_reply
    settle: Callable[[Step, Pytree, Pytree], Pytree] = _nothing_to_settle


def visit_parts(exchange: Exchange, visit: Visit) -> Pytree:
    """Visits the own part and every other part of the ring.

    A scan forces the order, so that one remote part is resident at a time. With `exchange.prefetch`
    the steps are unrolled: while a part is worked on, the next one is on its way, and so is the
    answer to the last one.
    """
    visit, steps = _named(visit), exchange.num_parts - 1
    if steps and exchange.prefetch:
        return _prefetched(steps, visit)
    carry = visit.local(None)
    if steps == 0:
        return carry

    def body(carry: Pytree, step: jax.Array) -> tuple[Pytree, None]:
        work = visit.work(step, visit.fetch(step, None), carry, None)
        carry = work.carry
        if work.answer is not None:
            carry = visit.settle(step, visit.reply(step, work.answer), carry)
        return carry, None

    return lax.scan(body, carry, jnp.arange(1, steps + 1, dtype=jnp.int32))[0]


def _named(visit: Visit) -> Visit:
    """Names the work of each function in the compiled program, for profiles."""

    def named(field: str) -> Callable[..., Any]:
        function = getattr(visit, field)

        def run(*arguments: Any) -> Any:
            # Unrolled steps have numbers.
            step = arguments[0]
            name = f"sar_{field}_{step}" if isinstance(step, int) else f"sar_{field}"
            with jax.named_scope(name):
                return function(*arguments)

        return run

    return Visit(**{field.name: named(field.name) for field in dataclasses.fields(Visit)})


def _prefetched(steps: int, visit: Visit) -> Pytree:
    """The unrolled order: permutes are outside of conditionals, where XLA can overlap them.

    One barrier per step makes the next fetch wait for the arrival of the current part and for the
    end of the last work, so that at most two parts are resident; no work waits for the fetch.
    """
    arrived = visit.fetch(1, None)
    carry = visit.local(None)
    pending, after = None, when_ready(carry)
    for step in range(1, steps + 1):
        after, arrived, carry, pending = lax.optimization_barrier((after, arrived, carry, pending))
        returned = None if pending is None else visit.reply(step - 1, pending)
        following = visit.fetch(step + 1, after) if step < steps else None
        work = visit.work(step, arrived, carry, after)
        carry = work.carry
        if returned is not None:
            carry = visit.settle(step - 1, returned, carry)
        arrived, pending, after = following, work.answer, when_ready(work.done)
    return carry if pending is None else visit.settle(steps, visit.reply(steps, pending), carry)
