"""Reductions of messages at their receivers, each in resumable form.

A reduction is four functions on states. A state is a pytree of arrays with one row per receiver. It
starts empty, folds the messages of any subset of the edges, and merges with the state of another
subset. So SAR can fold one partition after another (SAR, section 3.2).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph.ops.core import randomness
from jaxgraph.ops.core.precision import (
    accumulation_dtype,
    inner_product,
    inner_products_of_heads,
    to_accumulation,
)
from jaxgraph.ops.core.stored import stored
from pallas_kernels.pytrees import pytree

Pytree = Any


class Reducer:
    """A reduction of messages [edges, ...] to one value per receiver.

    `mask` is bool [edges] and `keep` the result of `per_edge` for the edges. States have the type
    of `accumulation_dtype`.
    """

    def empty(self, messages: Pytree, rows: int) -> Pytree:
        """The state of `rows` receivers without messages."""

    def lift(self, messages: Pytree, mask: jax.Array, keep: jax.Array | None) -> Pytree:
        """One state per edge."""

    def merge(self, *states: Pytree) -> Pytree:
        """The state of receivers after the messages of all these states."""

    def fold(self, state: Pytree, lanes: Pytree) -> Pytree:
        """`state` [rows, ...] after lifted messages, given as [rows, lanes of a row, ...]."""
        return self.merge(state, *_each_lane(lanes))

    def finish(self, state: Pytree, messages: Pytree) -> Any:
        """The outputs, in the type of the messages, and the residuals of the state."""

    def adjoint(self, outputs: Pytree, kept: Pytree, gradient: Pytree) -> Pytree:
        """The arrays per receiver that the backward computes before it visits any edge."""

    def cotangent(self, messages: Pytree, adjoint: Pytree, keep: jax.Array | None) -> Pytree:
        """The gradient of the messages, from the `adjoint` rows of their receivers."""

    def per_edge(
        self, receiver_ids: jax.Array, sender_ids: jax.Array, repetition: jax.Array | int
    ) -> jax.Array | None:
        """The data of the reduction for each edge, such as its dropout mask, or None."""
        return None


def masked(mask: jax.Array, values: jax.Array, otherwise: float) -> jax.Array:
    """`values` [edges, ...] in their accumulation type; `otherwise` where `mask` is False."""
    shape = mask.shape + (1,) * (values.ndim - mask.ndim)
    values = to_accumulation(values)
    return jnp.where(mask.reshape(shape), values, jnp.asarray(otherwise, values.dtype))


def empty_rows(leaf: Any, rows: int, value: float) -> jax.Array:
    """[rows, ...] of one value, in the accumulation type of messages like `leaf`."""
    return jnp.full((rows, *leaf.shape[1:]), value, accumulation_dtype(leaf.dtype))


def _total(*terms: jax.Array) -> jax.Array:
    """The unrolled sum: XLA fuses it with the computation of the terms in one loop."""
    return functools.reduce(jnp.add, terms)


def _each_lane(tree: Pytree) -> list[Pytree]:
    """The first, second, ... lane of every row, [rows, ...] each."""
    leaves, structure = jax.tree.flatten(tree)
    lanes = zip(*([leaf[:, i] for i in range(leaf.shape[1])] for leaf in leaves), strict=True)
    return [jax.tree.unflatten(structure, each) for each in lanes]


def _rounded(values: Pytree, messages: Pytree) -> Pytree:
    return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), values, messages)


@pytree
class Sum(Reducer):
    """y_i = sum_j m_ij, in `dtype`; None: in the type of the messages.

    With `wide`, the types of the messages' leaves, y_i keeps its accumulation type, for what
    divides it and rounds once; its gradient is rounded to `wide`.
    """

    dtype: np.dtype | None = dataclasses.field(default=None, metadata={"static": True})
    wide: tuple[np.dtype, ...] = dataclasses.field(default=(), metadata={"static": True})

    def empty(self, messages: Pytree, rows: int) -> Pytree:
        return jax.tree.map(lambda leaf: empty_rows(leaf, rows, 0.0), messages)

    def lift(self, messages: Pytree, mask: jax.Array, keep: jax.Array | None) -> Pytree:
        return jax.tree.map(lambda leaf: masked(mask, leaf, 0.0), messages)

    def merge(self, *states: Pytree) -> Pytree:
        return jax.tree.map(_total, *states)

    def finish(self, state: Pytree, messages: Pytree) -> tuple[Pytree, Pytree]:
        if self.wide:
            return state, ()
        if self.dtype is None:
            return _rounded(state, messages), ()
        return jax.tree.map(lambda leaf: leaf.astype(self.dtype), state), ()

    def adjoint(self, outputs: Pytree, kept: Pytree, gradient: Pytree) -> Pytree:
        if not self.wide:
            return gradient
        leaves, structure = jax.tree.flatten(gradient)
        pairs = zip(leaves, self.wide, strict=True)
        return structure.unflatten([leaf.astype(dtype) for leaf, dtype in pairs])

    def cotangent(self, messages: Pytree, adjoint: Pytree, keep: jax.Array | None) -> Pytree:
        return adjoint


@pytree
class Mean(Sum):
    """y_i = sum_j m_ij / n_i, with n_i the number of messages; 0 without messages.

    A state holds the sums and n [rows], both of which are added. Backward: dm_ij = g_i / n_i.
    """

    def empty(self, messages: Pytree, rows: int) -> Pytree:
        return super().empty(messages, rows), jnp.zeros(rows, _kept_dtype(messages))

    def lift(self, messages: Pytree, mask: jax.Array, keep: jax.Array | None) -> Pytree:
        return super().lift(messages, mask, keep), mask.astype(_kept_dtype(messages))

    def finish(self, state: Pytree, messages: Pytree) -> tuple[Pytree, Pytree]:
        sums, count = state
        return super().finish(_divided(sums, count), messages)[0], count

    def adjoint(self, outputs: Pytree, kept: Pytree, gradient: Pytree) -> Pytree:
        return _divided(jax.tree.map(to_accumulation, gradient), kept)


def _kept_dtype(messages: Pytree) -> np.dtype:
    return accumulation_dtype(jnp.result_type(*jax.tree.leaves(messages)))


def _divided(tree: Pytree, count: jax.Array) -> Pytree:
    """Every row divided by its count, and by 1 where that is 0."""
    count = jnp.maximum(count, 1)

    def one(leaf: jax.Array) -> jax.Array:
        return leaf / count.astype(leaf.dtype).reshape(-1, *(1,) * (leaf.ndim - 1))

    return jax.tree.map(one, tree)


@pytree
class Extremum(Reducer):
    """y_i = max_j m_ij (or min), 0 without messages; NaN where a message is NaN.

    For messages whose bits do not depend on where they are computed
    (`jaxgraph.ops.core.message_programs.rounds_alike`): the messages equal to y_i share the
    gradient equally, and NaN equals NaN. `jaxgraph.ops.core.input_classes.ClassExtremum` is for all
    others.

    A state holds the best message and the number of messages equal to it.
    """

    sign: float = dataclasses.field(default=1.0, metadata={"static": True})

    def empty(self, messages: Pytree, rows: int) -> Pytree:
        best = jax.tree.map(lambda leaf: empty_rows(leaf, rows, self.worst(leaf)), messages)
        count = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, _count_dtype(leaf)), best)
        return best, count

    def lift(self, messages: Pytree, mask: jax.Array, keep: jax.Array | None) -> Pytree:
        def counts(leaf: jax.Array) -> jax.Array:
            return masked(mask, jnp.ones(leaf.shape, _count_dtype(leaf)), 0)

        best = jax.tree.map(lambda leaf: masked(mask, leaf, self.worst(leaf)), messages)
        return best, jax.tree.map(counts, messages)

    def worst(self, leaf: Any) -> Any:
        """Returns the worst number of an array's type, which beats no other."""
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return -self.sign * jnp.inf
        if leaf.dtype == jnp.bool_:
            return self.sign < 0
        bounds = jnp.iinfo(leaf.dtype)
        return bounds.min if self.sign > 0 else bounds.max

    def beats(self, left: jax.Array, right: jax.Array) -> jax.Array:
        """True where `left` is better; NaN is better than every number."""
        better = left > right if self.sign > 0 else left < right
        return better | (is_nan(left) & ~is_nan(right))

    def merge(self, *states: Pytree) -> Pytree:
        return functools.reduce(self._merge_two, states)

    def _merge_two(self, left: Pytree, right: Pytree) -> Pytree:
        takes_right = jax.tree.map(self.beats, right[0], left[0])
        takes_left = jax.tree.map(self.beats, left[0], right[0])
        best = jax.tree.map(jnp.where, takes_right, right[0], left[0])

        def count(takes_left, takes_right, left: jax.Array, right: jax.Array) -> jax.Array:
            return jnp.where(takes_right, 0, left) + jnp.where(takes_left, 0, right)

        return best, jax.tree.map(count, takes_left, takes_right, left[1], right[1])

    def finish(self, state: Pytree, messages: Pytree) -> tuple[Pytree, Pytree]:
        best, count = state
        found = jax.tree.map(lambda best, count: jnp.where(count > 0, best, 0), best, count)
        return _rounded(found, messages), count

    def adjoint(self, outputs: Pytree, kept: Pytree, gradient: Pytree) -> Pytree:
        return outputs, jax.tree.map(share_of, gradient, kept)

    def cotangent(self, messages: Pytree, adjoint: Pytree, keep: jax.Array | None) -> Pytree:
        def share(m: jax.Array, y: jax.Array, gradient: jax.Array) -> jax.Array:
            wins = (m == y) | (is_nan(m) & is_nan(y))
            return jnp.where(wins, gradient, 0)

        return jax.tree.map(share, messages, *adjoint)


def is_nan(x: jax.Array) -> jax.Array:
    """True where `x` is NaN; integers never are."""
    return x != x


def share_of(gradient: jax.Array, count: jax.Array) -> jax.Array:
    """Divides a gradient among `count` equal winners; without winners it is unchanged."""
    gradient = to_accumulation(gradient)
    if not jnp.issubdtype(gradient.dtype, jnp.floating):
        return gradient
    return gradient / jnp.maximum(count, 1).astype(gradient.dtype)


def _count_dtype(leaf: Any) -> np.dtype:
    """The type of counts: for floating messages that of the kernels' states, else int32."""
    is_number = jnp.issubdtype(leaf.dtype, jnp.floating)
    return accumulation_dtype(leaf.dtype) if is_number else jnp.dtype(jnp.int32)


def _finite(peak: jax.Array) -> jax.Array:
    """`peak`, and 0 where it is -inf, since exp(-inf - -inf) would be NaN."""
    return jnp.where(jnp.isneginf(peak), jnp.zeros((), peak.dtype), peak)


def kept_of_softmax(peak: jax.Array, total: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The residuals of a `Softmax` state: finite peak and positive total, also without messages."""
    return _finite(peak), jnp.where(total > 0, total, 1)


@pytree
class Softmax(Reducer):
    """y_i = sum_j alpha_ij d_ij v_ij,  alpha_ij = exp(e_ij) / sum_k exp(e_ik).

    Messages are `(logits [edges, heads], values [edges, heads, features])`. The maximum is a
    running one, so no first pass over the edges is needed. d_ij is 0 with probability `rate` and
    else 1 / (1 - rate), drawn from (seed, receiver id, sender id, repetition, head).

    Backward, with m_i the maximum of e_ij, z_i = sum_k exp(e_ik - m_i), p_ij = exp(e_ij - m_i), and
    the gradient g_i of y_i divided by z_i: dv_ij = p_ij d_ij g_i and
    de_ij = p_ij (d_ij <g_i, v_ij> - <g_i, y_i>). Nothing per edge is saved. Unlike exp(e_ij - (m_i
    + log z_i)), p_ij loses no digits of log z_i where m_i is large.
    SAR, section 3.3; Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
    """

    seed: tuple[jax.Array, jax.Array] | None = None
    rate: float = dataclasses.field(default=0.0, metadata={"static": True})
    heads: int = dataclasses.field(default=1, metadata={"static": True})

    def empty(self, messages: Pytree, rows: int) -> Pytree:
        logits, values = messages
        peak, total = (empty_rows(logits, rows, each) for each in (-jnp.inf, 0.0))
        return peak, total, empty_rows(values, rows, 0.0)

    def lift(self, messages: Pytree, mask: jax.Array, keep: jax.Array | None) -> Pytree:
        logits, values = messages
        peak = masked(mask, logits, -jnp.inf)
        total = masked(mask, jnp.ones_like(logits), 0.0)
        return peak, total, self._drop(masked(mask, values, 0.0), keep)

    def merge(self, *states: Pytree) -> Pytree:
        peaks, totals, values = zip(*states, strict=True)
        peak = functools.reduce(jnp.maximum, peaks)
        shift = _finite(peak)
        scales = [jnp.exp(each - shift) for each in peaks]
        total = _total(*(scale * each for scale, each in zip(scales, totals, strict=True)))
        scaled = (scale[..., None] * each for scale, each in zip(scales, values, strict=True))
        return peak, total, _total(*scaled)

    def fold(self, state: Pytree, lanes: Pytree) -> Pytree:
        peaks, totals, values = lanes
        peak = functools.reduce(jnp.maximum, (state[0], *_each_lane(peaks)))
        shift = _finite(peak)
        # All powers in one array: one loop per lane would take long to compile.
        scales = jnp.exp(peaks - shift[:, None])
        old = jnp.exp(state[0] - shift)
        total = _total(old * state[1], *_each_lane(scales * totals))
        scaled = (
            scale[..., None] * each
            for scale, each in zip(_each_lane(scales), _each_lane(values), strict=True)
        )
        return peak, total, _total(old[..., None] * state[2], *scaled)

    def finish(self, state: Pytree, messages: Pytree) -> tuple[Pytree, Pytree]:
        peak, total, values = state
        kept = kept_of_softmax(peak, total)
        return self.joined((values / kept[1][..., None]).astype(messages[1].dtype), kept)

    def joined(self, values: jax.Array, kept: Pytree) -> tuple[Pytree, Pytree]:
        """The outputs and the residuals, from the outputs of every head."""
        return values, kept

    def adjoint(self, outputs: Pytree, kept: Pytree, gradient: Pytree) -> Pytree:
        peak, total = kept
        scaled = to_accumulation(gradient) / total[..., None]
        inner = inner_product(scaled, outputs)
        # A quotient can underflow in float16, but not in bfloat16, which has the range of float32.
        if gradient.dtype != jnp.float16:
            scaled = scaled.astype(gradient.dtype)
        return scaled, peak, inner

    def undivided_adjoint(
        self, outputs: Pytree, kept: Pytree, gradient: jax.Array
    ) -> tuple[jax.Array, ...]:
        """A substitute for `adjoint` that does not store g / z, an array of the size of g."""
        peak, total = kept
        return gradient, peak, jnp.sum(to_accumulation(gradient) * outputs, -1), 1 / total

    def cotangent(self, messages: Pytree, adjoint: Pytree, keep: jax.Array | None) -> Pytree:
        logits, values = messages
        gradient, peak, inner, *inverse = adjoint
        powers = jnp.exp(logits - peak)
        if inverse:
            powers = powers * inverse[0]
        gradient = to_accumulation(gradient)
        # Dropped after the multiplication: dropped values may be NaN.
        product = powers * inner_product(gradient, values)
        of_logits = self._drop(product[..., None], keep)[..., 0] - powers * inner
        return of_logits, self._drop(powers[..., None] * gradient, keep)

    def of_set(self, number: int) -> Softmax:
        """The reducer that drops by the random bits of one of several sets of edges."""
        if self.seed is None:
            return self
        return dataclasses.replace(self, seed=randomness.of_set(self.seed, number))

    def per_edge(self, receiver_ids, sender_ids, repetition) -> jax.Array | None:
        if self.seed is None or self.rate == 0.0:
            return None
        keep = randomness.edge_keep_mask(
            self.seed, receiver_ids, sender_ids, repetition, self.heads, self.rate
        )
        # Stored, one bit per head: fused, every feature of a message would hash its edge again.
        return stored(keep)

    def _drop(self, values: jax.Array, keep: jax.Array | None) -> jax.Array:
        if keep is None:
            return values
        scale = jnp.asarray(1.0 / (1.0 - self.rate), values.dtype)
        return jnp.where(keep[..., None], values * scale, 0)


@pytree
class HeadMean(Softmax):
    """y_i = (1 / heads) sum_h y_ih [features], with y_ih the output of `Softmax` for head h.

    Backward: all y_ih have the same gradient, g_i / heads. Kernels read one row for all heads,
    [rows, 1, features] (`undivided_adjoint`), and devices send that row. XLA reads one row per head
    (`adjoint`): it would otherwise hold the repeated rows of many edges.
    """

    def joined(self, values: jax.Array, kept: Pytree) -> tuple[jax.Array, Pytree]:
        mean = _total(*(to_accumulation(values[:, head]) for head in range(self.heads)))
        return (mean * (1 / self.heads)).astype(values.dtype), (*kept, values)

    def adjoint(self, outputs: Pytree, kept: Pytree, gradient: Pytree) -> Pytree:
        *kept, values = kept
        shared = (to_accumulation(gradient) * (1 / self.heads))[:, None].astype(gradient.dtype)
        return super().adjoint(values, kept, jnp.broadcast_to(shared, values.shape))

    def undivided_adjoint(
        self, outputs: Pytree, kept: Pytree, gradient: jax.Array
    ) -> tuple[jax.Array, ...]:
        peak, total, values = kept
        inner = inner_products_of_heads(gradient, values)
        return gradient[:, None], peak, inner, 1 / (self.heads * total)


@pytree
class Normalizer(Softmax):
    """y_i = (m_i, z_i), which normalise logits at a receiver: alpha_ij = exp(e_ij - m_i) / z_i.

    Takes the messages of `Softmax` with 0 features. It has no derivative: ops that use it define
    theirs.
    """

    def joined(self, values: jax.Array, kept: Pytree) -> tuple[Pytree, Pytree]:
        return kept, ()
