"""The masks of `jaxgraph.ops.core.randomness`, reimplemented in plain NumPy.

A seed is a pair of integers: the key data of a threefry key. The words are computed in uint64 and
reduced modulo 2^32 after every step, so that nothing here depends on overflow.
"""

import math

import numpy as np

_MODULUS = np.uint64(2**32)


def node_keep_mask(
    words: tuple[int, int],
    node_ids: np.ndarray,
    num_columns: int,
    rate: float,
    column_offset: int = 0,
) -> np.ndarray:
    """True for the features of nodes that dropout keeps, bool [n, num_columns]."""
    first, second = _absorb(words, 0x27D4EB2F)
    ids = _words(node_ids)
    start = _mix(_add(_mix(ids ^ first), second))
    stride = _mix(_mix(_add(ids, second)) ^ first)
    return _bits(start, stride, column_offset + np.arange(num_columns)) >= _threshold(rate)


def edge_keep_mask(
    words: tuple[int, int],
    receivers: np.ndarray,
    senders: np.ndarray,
    repetition: np.ndarray,
    num_heads: int,
    rate: float,
) -> np.ndarray:
    """True for the attention coefficients that dropout keeps, bool [num_edges, num_heads]."""
    first, second = _absorb(words, 0x165667B1)
    receiver_words = _words(receivers)
    receiver_side = _mix(receiver_words ^ first)
    sender_side = _mix(_mix(_add(_words(senders), second)) ^ first)
    copy = _mix(_add(_words(repetition), second))
    start = _mix(_add(receiver_side, sender_side) ^ copy)
    stride = _mix(_add(start ^ second, receiver_words))
    return _bits(start, stride, np.arange(num_heads)) >= _threshold(rate)


def _threshold(rate: float) -> np.uint64:
    return np.uint64(min(math.floor(rate * 2**32 + 0.5), 2**32 - 1))


def _absorb(words: tuple[int, int], kind: int) -> tuple[np.ndarray, np.ndarray]:
    first = _mix(_words(np.array(words[0] ^ 0x9E3779B9 ^ kind)))
    second = _mix(_add(_words(np.array(words[1] ^ 0x85EBCA6B)), first))
    return _mix(first ^ second), second


def _bits(start: np.ndarray, stride: np.ndarray, columns: np.ndarray) -> np.ndarray:
    odd_stride = stride | np.uint64(1)
    return _mix(_add(start[:, None], _multiply(odd_stride[:, None], _words(columns)[None, :])))


def _mix(word: np.ndarray) -> np.ndarray:
    word = _multiply(word ^ (word >> np.uint64(16)), np.uint64(0x21F0AAAD))
    word = _multiply(word ^ (word >> np.uint64(15)), np.uint64(0x735A2D97))
    return word ^ (word >> np.uint64(15))


def _add(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return (left + right) % _MODULUS


def _multiply(left: np.ndarray, right: np.ndarray | np.uint64) -> np.ndarray:
    return (left * right) % _MODULUS


def _words(integers: np.ndarray) -> np.ndarray:
    return np.asarray(integers).astype(np.int64).astype(np.uint64) % _MODULUS
