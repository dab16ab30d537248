"""Maxima and minima of computed messages, whose winner is identified by its inputs.

XLA may round a message differently in the forward and in the backward, which recomputes it, so the
value of a message does not identify the winner. Edges of a receiver that read the same bits from
their sender and from their data have the same message under any rounding: they are one *class*,
identified by a fingerprint of these bits. The winner of a receiver is a class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgraph.ops.core.message_functions import sum_message
from jaxgraph.ops.core.message_programs import needed_inputs, rounds_alike
from jaxgraph.ops.core.messages import Inputs, MessageFn, chunk_examples, evaluate_message
from jaxgraph.ops.core.reducers import Extremum, Sum, empty_rows, masked, share_of
from pallas_kernels.pytrees import pytree

Pytree = Any
Words = tuple[jax.Array, jax.Array]
"""Two words of a fingerprint, uint32 [edges] or [rows, ...] each."""

_FIRST_EDGE_COLUMN = 1 << 31
"""Columns of edge data are numbered from here on, those of senders from 0."""


def extremum_of(
    message: MessageFn, inputs: Inputs, chunk: int, by_value: Extremum
) -> tuple[MessageFn, Extremum, Inputs]:
    """Chooses how winners of a maximum or minimum are identified: by value or by inputs."""
    if message is sum_message:
        return message, by_value, inputs
    examples = chunk_examples(inputs, chunk)
    arguments = (examples.params, examples.sender, examples.receiver, examples.edge)
    program = jax.make_jaxpr(message)(*arguments)
    if rounds_alike(program.jaxpr):
        return message, by_value, inputs
    reads = _reads(program.jaxpr, arguments)
    leaves = jax.tree.leaves(inputs.sender)
    of_senders = {some: _of_rows(leaves, some, 0) for some, _ in reads if some}
    edge_leaves = jax.tree.leaves(inputs.edge)
    of_edges = {some: _of_rows(edge_leaves, some, _FIRST_EDGE_COLUMN) for _, some in reads if some}
    sender, edge = (inputs.sender, of_senders), (inputs.edge, of_edges)
    inputs = Inputs(inputs.params, sender, inputs.receiver, edge)
    return ClassedMessage(message, reads), ClassExtremum(by_value.sign), inputs


def _reads(
    jaxpr: Any, arguments: tuple[Pytree, ...]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """The leaves of the sender and of the edge that each array of a message depends on."""
    counts = [len(jax.tree.leaves(part)) for part in arguments]
    first = np.cumsum([0, *counts])

    def some(needed: set[Any], part: int) -> tuple[int, ...]:
        variables = jaxpr.invars[first[part] : first[part + 1]]
        return tuple(i for i, var in enumerate(variables) if var in needed)

    each = [needed_inputs(jaxpr, [var]) for var in jaxpr.outvars]
    return tuple((some(needed, 1), some(needed, 3)) for needed in each)


@dataclasses.dataclass(frozen=True)
class ClassedMessage:
    """A message and, for each of its arrays, the class of the edge.

    The sender is `(rows, words)` and the edge `(slots, words)`; the words are fingerprints of rows
    and slots, for each set of leaves that a message reads.

    Attributes:
      message: the message alone.
      reads: for each of its arrays, the leaves of sender and edge that it depends on.
    """

    message: MessageFn
    reads: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

    def __call__(
        self, params: Pytree, sender: Pytree, receiver: Pytree, edge: Pytree
    ) -> tuple[Pytree, list[Words]]:
        seen = Inputs(params, sender[0], receiver, edge[0])
        messages = evaluate_message(self.message, seen)
        return messages, self.classes(sender[1], edge[1])

    def classes(self, sender: dict[Any, Words], edge: dict[Any, Words]) -> list[Words]:
        """Returns the class of the edges for each array of the message; (0, 0) is no class."""
        found, nothing = [], (np.zeros(1, np.uint32),) * 2
        for of_sender, of_edge in self.reads:
            words = sender.get(of_sender, nothing), edge.get(of_edge, nothing)
            high, low = (a + b for a, b in zip(*words, strict=True))
            found.append((high, low | np.uint32(1)))
        return found

    def wins(self, params: Pytree, sender: Pytree, receiver: list[Words], edge: Pytree) -> list:
        """A message: int32 1 for edges of the class that won at their receiver, else 0."""
        pairs = zip(self.classes(sender, edge), receiver, strict=True)
        return [_same(_spread(own, won[0]), won).astype(jnp.int32) for own, won in pairs]


@pytree
class ClassExtremum(Extremum):
    """y_i = max_j m_ij (or min), 0 without messages, for a `ClassedMessage`.

    The edges of the winning class share the gradient equally. Among classes with equal messages the
    smallest fingerprint wins, so that the gradient is a subgradient. NaN beats every number.

    A state is the best message and its class. States have a total order, so the order of merging
    changes nothing. The backward counts the edges of the winning class (`count_winners`): a forward
    that counted while it merged would lose the edges of a class that loses one merge by a rounding
    and wins in the end.
    """

    def empty(self, messages: Pytree, rows: int) -> Pytree:
        def nothing(leaf: Any) -> tuple[jax.Array, ...]:
            words = jnp.zeros((rows, *leaf.shape[1:]), jnp.uint32)
            return empty_rows(leaf, rows, self.worst(leaf)), words, words

        return [nothing(leaf) for leaf in jax.tree.leaves(messages[0])]

    def lift(self, messages: Pytree, mask: jax.Array, keep: jax.Array | None) -> Pytree:
        def one(leaf: jax.Array, words: Words) -> tuple[jax.Array, ...]:
            high, low = _spread(words, leaf)
            best = masked(mask, leaf, self.worst(leaf))
            return best, masked(mask, high, 0), masked(mask, low, 0)

        return [one(*pair) for pair in zip(*_flat(messages), strict=True)]

    def _merge_two(self, left: Pytree, right: Pytree) -> Pytree:
        def both(left: tuple[jax.Array, ...], right: tuple[jax.Array, ...]) -> Any:
            best, high, low = zip(left, right, strict=True)
            before = (high[1] < high[0]) | ((high[1] == high[0]) & (low[1] < low[0]))
            ahead = self.beats(best[1], best[0]) | (~self.beats(best[0], best[1]) & before)
            takes_right = (low[1] != 0) & ((low[0] == 0) | ahead)
            return tuple(jnp.where(takes_right, b, a) for a, b in (best, high, low))

        return [both(*pair) for pair in zip(left, right, strict=True)]

    def finish(self, state: Pytree, messages: Pytree) -> tuple[Pytree, Pytree]:
        leaves, structure = jax.tree.flatten(messages[0])
        found = [
            jnp.where(low != 0, best, 0).astype(leaf.dtype)
            for (best, _, low), leaf in zip(state, leaves, strict=True)
        ]
        return structure.unflatten(found), [(high, low) for _, high, low in state]

    def adjoint(self, outputs: Pytree, kept: Pytree, gradient: Pytree) -> Pytree:
        classes, counts = kept
        shares = map(share_of, jax.tree.leaves(gradient), counts)
        return [(share, *words) for share, words in zip(shares, classes, strict=True)]

    def cotangent(self, messages: Pytree, adjoint: Pytree, keep: jax.Array | None) -> Pytree:
        leaves, classes = _flat(messages)
        gradients = [
            jnp.where(_same(_spread(own, leaf), won), share, 0)
            for leaf, own, (share, *won) in zip(leaves, classes, adjoint, strict=True)
        ]
        return jax.tree.structure(messages[0]).unflatten(gradients), classes


def count_winners(
    reduce: Callable[[MessageFn, Sum, Inputs], tuple[Pytree, Pytree]],
    message: MessageFn,
    inputs: Inputs,
    results: tuple[Pytree, Pytree],
) -> tuple[Pytree, Pytree]:
    """Adds the number of edges of the winning class to the results of a `ClassExtremum`."""
    if not isinstance(message, ClassedMessage):
        return results
    outputs, classes = results
    seen = Inputs((), inputs.sender[1], classes, inputs.edge[1])
    return outputs, (classes, reduce(message.wins, Sum(), seen)[0])


def _flat(messages: tuple[Pytree, list[Words]]) -> tuple[list[jax.Array], list[Words]]:
    return jax.tree.leaves(messages[0]), messages[1]


def _same(left: Any, right: Any) -> jax.Array:
    return (left[0] == right[0]) & (left[1] == right[1])


def _spread(words: Words, like: jax.Array) -> Words:
    """Words of edges, repeated for every number of their messages."""

    def one(word: jax.Array) -> jax.Array:
        axes = (1,) * (like.ndim - word.ndim)
        return jnp.broadcast_to(word.reshape(*word.shape, *axes), like.shape)

    return one(words[0]), one(words[1])


def _of_rows(leaves: list[jax.Array], some: tuple[int, ...], first: int) -> Words:
    """The fingerprint of every row of some leaves, from the bits of all its numbers."""
    high, low = [], []
    for index, leaf in enumerate(leaves):
        bits = _bits(leaf)
        bits = bits.reshape(len(bits), -1)
        columns = np.arange(first, first + bits.shape[1], dtype=np.uint32)
        first += bits.shape[1]
        if index in some:
            words = _mixed(bits, columns)
            high.append(words[0].sum(1, dtype=jnp.uint32))
            low.append(words[1].sum(1, dtype=jnp.uint32))
    return sum(high[1:], high[0]), sum(low[1:], low[0])


def _bits(leaf: jax.Array) -> jax.Array:
    """The bits of every number, uint32 [..., words of a number]."""
    if leaf.dtype == jnp.bool_:
        leaf = leaf.astype(jnp.uint32)
    size = leaf.dtype.itemsize
    if size > 4:
        return lax.bitcast_convert_type(leaf, jnp.uint32)
    return lax.bitcast_convert_type(leaf, f"uint{8 * size}").astype(jnp.uint32)[..., None]


def _mixed(bits: jax.Array, columns: np.ndarray) -> Words:
    """Hashes every word to two, by its column, so that different rows have different sums."""
    keys = (columns * np.uint32(0x9E3779B1), columns * np.uint32(0x85EBCA77))
    high, low = (_scrambled(np.add(key, np.uint32(i + 1))) for i, key in enumerate(keys))
    return _scrambled(bits ^ high), _scrambled(bits ^ low)


def _scrambled(word: Any) -> Any:
    """A permutation of the words of 32 bits (MurmurHash3, Appleby, 2011)."""
    word = (word ^ (word >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    word = (word ^ (word >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return word ^ (word >> np.uint32(16))
