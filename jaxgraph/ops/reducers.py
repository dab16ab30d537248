"""Reductions of messages at their receivers, each in resumable form.

A reduction is four functions on states. A state is a pytree of arrays with one row per receiver; it
can be started empty, take in the messages of any subset of the edges, and be merged with the state
of another subset. That is what lets SAR fold in one partition after another (SAR, section 3.2).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxgraph.ops import randomness
from jaxgraph.ops.precision import accumulation_dtype, to_accumulation

__all__ = ["Extremum", "Reducer", "Softmax", "Sum"]

Pytree = Any


class Reducer(Protocol):
    """How messages [edges, ...] become one value per receiver.

    `mask` is bool [edges] and `keep` what `keep_mask` returned for the edges. States are kept in
    the type of `accumulation_dtype`.
    """

    @property
    def compares(self) -> bool:
        """Whether `cotangent` looks for the messages that are equal to an output."""
        ...

    def empty(self, messages: Pytree, rows: int) -> Pytree:
        """The state of `rows` receivers that have taken in nothing."""
        ...

    def lift(self, messages: Pytree, mask: jax.Array, keep: jax.Array | None) -> Pytree:
        """One state per edge."""
        ...

    def collapse(self, messages: Pytree, mask: jax.Array, keep: jax.Array | None) -> Pytree:
        """The state, [1, ...], of a receiver that has taken in all the edges."""
        ...

    def merge(self, left: Pytree, right: Pytree) -> Pytree:
        """The states of receivers that have taken in what both have."""
        ...

    def finish(self, state: Pytree, messages: Pytree) -> tuple[Pytree, Pytree]:
        """The outputs, in the type of the messages, and what the backward needs of the state."""
        ...

    def adjoint(self, outputs: Pytree, kept: Pytree, gradient: Pytree) -> Pytree:
        """What the backward needs per receiver, before any edge is looked at."""
        ...

    def cotangent(self, messages: Pytree, adjoint: Pytree, keep: jax.Array | None) -> Pytree:
        """The gradient of the messages, from the `adjoint` rows of their receivers."""
        ...

    def keep_mask(
        self, receiver_ids: jax.Array, sender_ids: jax.Array, repetition: jax.Array
    ) -> jax.Array | None:
        """The dropout mask of the edges, or None where nothing is dropped."""
        ...


def _masked(mask: jax.Array, values: jax.Array, otherwise: float) -> jax.Array:
    shape = mask.shape + (1,) * (values.ndim - mask.ndim)
    values = to_accumulation(values)
    return jnp.where(mask.reshape(shape), values, jnp.asarray(otherwise, values.dtype))


def _empty(leaf: Any, rows: int, value: float) -> jax.Array:
    return jnp.full((rows, *leaf.shape[1:]), value, accumulation_dtype(leaf.dtype))


def _rounded(values: Pytree, messages: Pytree) -> Pytree:
    return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), values, messages)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sum:
    """y_i = sum_j m_ij."""

    compares = False

    def empty(self, messages: Pytree, rows: int) -> Pytree:
        return jax.tree.map(lambda leaf: _empty(leaf, rows, 0.0), messages)

    def lift(self, messages: Pytree, mask: jax.Array, keep: jax.Array | None) -> Pytree:
        return jax.tree.map(lambda leaf: _masked(mask, leaf, 0.0), messages)

    def collapse(self, messages: Pytree, mask: jax.Array, keep: jax.Array | None) -> Pytree:
        lifted = self.lift(messages, mask, keep)
        return jax.tree.map(lambda leaf: jnp.sum(leaf, 0, keepdims=True), lifted)

    def merge(self, left: Pytree, right: Pytree) -> Pytree:
        return jax.tree.map(jnp.add, left, right)

    def finish(self, state: Pytree, messages: Pytree) -> tuple[Pytree, Pytree]:
        return _rounded(state, messages), ()

    def adjoint(self, outputs: Pytree, kept: Pytree, gradient: Pytree) -> Pytree:
        return gradient

    def cotangent(self, messages: Pytree, adjoint: Pytree, keep: jax.Array | None) -> Pytree:
        return adjoint

    def keep_mask(self, receiver_ids, sender_ids, repetition) -> jax.Array | None:
        return None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Extremum:
    """y_i = max_j m_ij (or min), 0 without messages; equal winners share the gradient equally."""

    sign: float = dataclasses.field(default=1.0, metadata={"static": True})
    compares = True

    def empty(self, messages: Pytree, rows: int) -> Pytree:
        best = jax.tree.map(lambda leaf: _empty(leaf, rows, -self.sign * jnp.inf), messages)
        winners = jax.tree.map(lambda leaf: _empty(leaf, rows, 0.0), messages)
        return best, winners

    def lift(self, messages: Pytree, mask: jax.Array, keep: jax.Array | None) -> Pytree:
        best = jax.tree.map(lambda leaf: _masked(mask, leaf, -self.sign * jnp.inf), messages)
        winners = jax.tree.map(lambda leaf: _masked(mask, jnp.ones_like(leaf), 0.0), messages)
        return best, winners

    def collapse(self, messages: Pytree, mask: jax.Array, keep: jax.Array | None) -> Pytree:
        best, winners = self.lift(messages, mask, keep)
        reduce = jnp.max if self.sign > 0 else jnp.min
        top = jax.tree.map(lambda leaf: reduce(leaf, 0, keepdims=True), best)
        count = jax.tree.map(
            lambda leaf, peak, ones: jnp.sum(jnp.where(leaf == peak, ones, 0), 0, keepdims=True),
            best,
            top,
            winners,
        )
        return top, count

    def merge(self, left: Pytree, right: Pytree) -> Pytree:
        pick = jnp.maximum if self.sign > 0 else jnp.minimum
        best = jax.tree.map(pick, left[0], right[0])

        def count(peak, left_peak, left_count, right_peak, right_count):
            zero = jnp.zeros((), left_count.dtype)
            return jnp.where(left_peak == peak, left_count, zero) + jnp.where(
                right_peak == peak, right_count, zero
            )

        return best, jax.tree.map(count, best, left[0], left[1], right[0], right[1])

    def finish(self, state: Pytree, messages: Pytree) -> tuple[Pytree, Pytree]:
        best, winners = state
        found = jax.tree.map(lambda y, n: jnp.where(n > 0, y, 0), best, winners)
        return _rounded(found, messages), winners

    def adjoint(self, outputs: Pytree, kept: Pytree, gradient: Pytree) -> Pytree:
        share = jax.tree.map(lambda g, n: to_accumulation(g) / jnp.maximum(n, 1), gradient, kept)
        return outputs, share

    def cotangent(self, messages: Pytree, adjoint: Pytree, keep: jax.Array | None) -> Pytree:
        best, share = adjoint
        return jax.tree.map(lambda m, y, g: jnp.where(m == y, g, 0), messages, best, share)

    def keep_mask(self, receiver_ids, sender_ids, repetition) -> jax.Array | None:
        return None


def _finite(peak: jax.Array) -> jax.Array:
    """`peak`, and 0 where nothing but -inf was seen, since exp(-inf - -inf) would be NaN."""
    return jnp.where(jnp.isneginf(peak), jnp.zeros((), peak.dtype), peak)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Softmax:
    """y_i = sum_j alpha_ij d_ij v_ij,  alpha_ij = exp(e_ij) / sum_k exp(e_ik).

    Messages are `(logits [edges, heads], values [edges, heads, features])`. The maximum runs with
    the edges, so that no pass over them comes first. d_ij is 0 with probability `rate` and else
    1 / (1 - rate), drawn from (seed, receiver id, sender id, repetition, head).

    Backward, with m_i the maximum of e_ij, z_i = sum_k exp(e_ik - m_i), p_ij = exp(e_ij - m_i), and
    the gradient g_i of y_i divided by z_i: dv_ij = p_ij d_ij g_i and
    de_ij = p_ij (d_ij <g_i, v_ij> - <g_i, y_i>). Nothing per edge is kept, and unlike with
    exp(e_ij - (m_i + log z_i)) no digits of log z_i are lost where m_i is large.
    SAR, section 3.3; Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
    """

    seed: tuple[jax.Array, jax.Array] | None = None
    rate: float = dataclasses.field(default=0.0, metadata={"static": True})
    heads: int = dataclasses.field(default=1, metadata={"static": True})
    compares = False

    def empty(self, messages: Pytree, rows: int) -> Pytree:
        logits, values = messages
        return _empty(logits, rows, -jnp.inf), _empty(logits, rows, 0.0), _empty(values, rows, 0.0)

    def lift(self, messages: Pytree, mask: jax.Array, keep: jax.Array | None) -> Pytree:
        logits, values = messages
        peak = _masked(mask, logits, -jnp.inf)
        total = _masked(mask, jnp.ones_like(logits), 0.0)
        return peak, total, self._drop(_masked(mask, values, 0.0), keep)

    def collapse(self, messages: Pytree, mask: jax.Array, keep: jax.Array | None) -> Pytree:
        logits, values = messages
        logits = _masked(mask, logits, -jnp.inf)
        peak = jnp.max(logits, 0, keepdims=True)
        weights = jnp.exp(logits - _finite(peak))
        total = jnp.sum(weights, 0, keepdims=True)
        kept = self._drop(_masked(mask, values, 0.0), keep)
        return peak, total, jnp.sum(weights[..., None] * kept, 0, keepdims=True)

    def merge(self, left: Pytree, right: Pytree) -> Pytree:
        peak = jnp.maximum(left[0], right[0])
        shift = _finite(peak)
        scale_left, scale_right = jnp.exp(left[0] - shift), jnp.exp(right[0] - shift)
        total = scale_left * left[1] + scale_right * right[1]
        values = scale_left[..., None] * left[2] + scale_right[..., None] * right[2]
        return peak, total, values

    def finish(self, state: Pytree, messages: Pytree) -> tuple[Pytree, Pytree]:
        peak, total, values = state
        total = jnp.where(total > 0, total, 1)
        outputs = (values / total[..., None]).astype(messages[1].dtype)
        return outputs, (_finite(peak), total)

    def adjoint(self, outputs: Pytree, kept: Pytree, gradient: Pytree) -> Pytree:
        peak, total = kept
        scaled = to_accumulation(gradient) / total[..., None]
        inner = jnp.sum(scaled * outputs, -1)
        # A quotient can underflow float16, not bfloat16, which has the range of float32.
        if gradient.dtype != jnp.float16:
            scaled = scaled.astype(gradient.dtype)
        return scaled, peak, inner

    def cotangent(self, messages: Pytree, adjoint: Pytree, keep: jax.Array | None) -> Pytree:
        logits, values = messages
        gradient, peak, inner = adjoint
        powers = jnp.exp(logits - peak)
        dropped = self._drop(powers[..., None], keep)[..., 0]
        gradient = to_accumulation(gradient)
        product = jnp.sum(gradient * values, -1)
        return dropped * product - powers * inner, dropped[..., None] * gradient

    def keep_mask(self, receiver_ids, sender_ids, repetition) -> jax.Array | None:
        if self.seed is None or self.rate == 0.0:
            return None
        return randomness.edge_keep_mask(
            self.seed, receiver_ids, sender_ids, repetition, self.heads, self.rate
        )

    def _drop(self, values: jax.Array, keep: jax.Array | None) -> jax.Array:
        if keep is None:
            return values
        scale = jnp.asarray(1.0 / (1.0 - self.rate), values.dtype)
        return jnp.where(keep[..., None], values * scale, 0)
