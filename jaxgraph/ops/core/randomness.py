"""Stateless random masks, drawn from a key and global ids instead of from array positions.

A mask bit is a function of (key, node id, column) or of (key, receiver id, sender id, repetition,
head) alone, and of the number of the set of nodes or edges where there are several: it does not
depend on the batch, the partition or the number of devices. A row is
hashed to a start and an odd stride, and bit c of the row is `mix(start + stride * c) >= threshold`,
so that a bit costs one mix. All of it is elementwise uint32 arithmetic, so a compiler fuses a mask
into its use. For rows of nodes, start and stride are stored; the mask never is.
"""

import math
from collections.abc import Sequence
from functools import partial
from numbers import Real
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph.ops.core.rows import take_rows
from jaxgraph.ops.core.stored import stored

Seed: TypeAlias = jax.Array | Sequence[jax.Array]
"""A scalar typed key, or its two words from `seed_words`."""

# Arbitrary odd constants, one for each word of the key and one for each kind of mask, so that small
# keys, and the node and edge masks of one key, start from unrelated states.
_FIRST_WORD = np.uint32(0x9E3779B9)
_SECOND_WORD = np.uint32(0x85EBCA6B)
_NODE_MASK = np.uint32(0x27D4EB2F)
_EDGE_MASK = np.uint32(0x165667B1)
_SET = 0xC2B2AE3D


def seed_words(key: Seed) -> tuple[jax.Array, jax.Array]:
    """Returns the two words of a key from which every mask is drawn.

    The two words of a threefry key are returned unchanged; longer keys are folded into two. A pair
    of words passes through, so that code which cannot carry a typed key (a kernel, a custom
    derivative) can carry its words.
    """
    if isinstance(key, Sequence):
        return key[0], key[1]
    if not isinstance(key, jax.Array) or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        of = f" of dtype {key.dtype}" if isinstance(key, jax.Array | np.ndarray) else ""
        raise ValueError(
            f"key must be a typed key, got {type(key).__name__}{of}; make it with "
            "jax.random.key(seed), or wrap raw key data with jax.random.wrap_key_data"
        )
    if key.shape != ():
        raise ValueError(f"key must be one key of shape (), got shape {key.shape}; pass key[i]")
    words = jax.random.key_data(key).reshape(-1)
    first, second = words[0], words[1]
    for index in range(2, words.size):
        first, second = second, _mix(_mix(first ^ _FIRST_WORD) ^ words[index])
    return first, second


def of_set(key: Any, number: int) -> Any:
    """The seed of the masks of one of several sets of nodes or edges: of the first, the key."""
    if not number:
        return key
    first, second = seed_words(key)
    return first ^ np.uint32(number * _SET % 2**32), second


def keep_threshold(rate: float) -> int:
    """Returns the smallest hash with which an element is kept.

    threshold = round(rate * 2^32), at most 2^32 - 1; a rate of 0 keeps everything.
    """
    if not isinstance(rate, Real) or isinstance(rate, bool) or not 0.0 <= float(rate) < 1.0:
        raise ValueError(
            f"rate must be a Python number in [0, 1), known before compilation, got {rate!r}; "
            "it is the probability of dropping, not of keeping"
        )
    return min(math.floor(float(rate) * 2**32 + 0.5), 2**32 - 1)


def node_keep_mask(
    key: Seed,
    node_ids: jax.Array | np.ndarray,
    num_columns: int,
    rate: float,
    column_offset: int | jax.Array = 0,
) -> jax.Array:
    """Draws the dropout mask of node features.

    keep[v, c] = hash(key, node_ids[v], column_offset + c) >= rate * 2^32
    """
    threshold = np.uint32(keep_threshold(rate))
    ids = _as_words(node_ids)
    offset = _as_words(column_offset)
    return _node_hash(seed_words(key), ids, offset, num_columns) >= threshold


def entry_keep_mask(
    key: Seed,
    node_ids: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    rate: float,
    column_offset: int | jax.Array = 0,
) -> jax.Array:
    """Draws which entries of sparse features survive dropout: the same as of dense ones.

    keep[e] = hash(key, node_ids[rows[e]], column_offset + columns[e]) >= rate * 2^32
    """
    threshold = np.uint32(keep_threshold(rate))
    ids, offset = _as_words(node_ids), _as_words(column_offset)
    return _entry_hash(seed_words(key), ids, rows, _as_words(columns) + offset) >= threshold


def edge_keep_mask(
    key: Seed,
    receiver_ids: jax.Array | np.ndarray,
    sender_ids: jax.Array | np.ndarray,
    repetition: int | jax.Array | np.ndarray,
    num_heads: int,
    rate: float,
) -> jax.Array:
    """Draws the dropout mask of attention coefficients.

    keep[e, h] = hash(key, receiver_ids[e], sender_ids[e], repetition[e], h) >= rate * 2^32
    """
    threshold = np.uint32(keep_threshold(rate))
    ends = _as_words(receiver_ids), _as_words(sender_ids)
    words = _edge_hash(seed_words(key), *ends, _as_words(repetition), num_heads)
    return words >= threshold


# Traced once for all layers and passes that draw masks of the same shapes.
@partial(jax.jit, static_argnums=3)
def _node_hash(
    seed: tuple[jax.Array, jax.Array], ids: jax.Array, offset: jax.Array, num_columns: int
) -> jax.Array:
    """uint32 [n, num_columns] of uint32 ids [n]."""
    start, stride = _starts_and_strides(seed, ids)
    return _row_bits(start, stride, num_columns, offset)


@jax.jit
def _entry_hash(
    seed: tuple[jax.Array, jax.Array], ids: jax.Array, rows: jax.Array, columns: jax.Array
) -> jax.Array:
    """uint32 [entries] of uint32 ids [n], and rows and uint32 columns [entries]."""
    start, stride = (take_rows(words, rows) for words in _starts_and_strides(seed, ids))
    return _mix(start + (stride | np.uint32(1)) * columns)


def _starts_and_strides(
    seed: tuple[jax.Array, jax.Array], ids: jax.Array
) -> tuple[jax.Array, jax.Array]:
    first, second = _absorb(seed, _NODE_MASK)
    start = _mix(_mix(ids ^ first) + second)
    stride = _mix(_mix(ids + second) ^ first)
    # Fused, every column would hash its row again.
    return stored(start), stored(stride)


@partial(jax.jit, static_argnums=4)
def _edge_hash(
    seed: tuple[jax.Array, jax.Array],
    receivers: jax.Array,
    senders: jax.Array,
    copies: jax.Array,
    num_heads: int,
) -> jax.Array:
    """uint32 [c, num_heads] of uint32 ids [c], and copies [c] or []."""
    first, second = _absorb(seed, _EDGE_MASK)
    # The rounds differ for receiver and sender, so that (i, j) and (j, i) differ.
    pair = _mix(receivers ^ first) + _mix(_mix(senders + second) ^ first)
    start = _mix(pair ^ _mix(copies + second))
    stride = _mix((start ^ second) + receivers)
    return _row_bits(start, stride, num_heads, np.uint32(0))


def _absorb(words: tuple[jax.Array, jax.Array], kind: np.uint32) -> tuple[jax.Array, jax.Array]:
    """Spreads both words of the seed, and the kind of mask, over two words."""
    first = _mix(words[0] ^ _FIRST_WORD ^ kind)
    second = _mix((words[1] ^ _SECOND_WORD) + first)
    return _mix(first ^ second), second


def _row_bits(
    start: jax.Array, stride: jax.Array, num_columns: int, offset: jax.Array | np.uint32
) -> jax.Array:
    """Hashes rows (start, stride) to uint32 [n, num_columns]: mix(start + (stride | 1) * c)."""
    columns = jax.lax.iota(jnp.uint32, num_columns) + offset
    odd_stride = stride | np.uint32(1)
    return _mix(start[:, None] + odd_stride[:, None] * columns[None, :])


def _mix(word: jax.Array) -> jax.Array:
    """Bijection of uint32 in which every input bit flips every output bit half of the time.

    Two rounds of xor-shift and multiplication: the constants of the `lowbias32` family, found by
    search (C. Wellons, "Prospecting for Hash Functions", 2018).
    """
    word = (word ^ (word >> np.uint32(16))) * np.uint32(0x21F0AAAD)
    word = (word ^ (word >> np.uint32(15))) * np.uint32(0x735A2D97)
    return word ^ (word >> np.uint32(15))


def _as_words(numbers: Any) -> jax.Array:
    return jnp.asarray(numbers).astype(jnp.uint32)
