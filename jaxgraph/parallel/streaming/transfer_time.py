"""The share of a part's rows from which it is sent whole, by times measured on this machine."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

_ROWS, _COLUMNS, _ROUNDS = 1 << 15, 128, 3


def share_of_whole(mesh: Mesh) -> float:
    """The share of rows from which a transfer of all rows takes less time than packing some.

    A device of the host reads rows in place. Then packing took less time at any share: an epoch of
    a GCN with 131,072 nodes in 8 parts 3.1 s, and 3.8 s with whole parts.
    """
    here = [each for each in mesh.devices.flat if each in jax.local_devices()]
    if not here or here[0].platform == "cpu":
        return math.inf
    share = measured_share(here[0])
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        share = float(multihost_utils.broadcast_one_to_all(np.float32(share)))
    return share


@functools.cache
def measured_share(device: Any) -> float:
    """Measures T_copy / (T_copy + T_trans), once: NeuGraph, section 3.2."""
    rows, chosen = np.ones((_ROWS, _COLUMNS), np.float32), np.arange(0, _ROWS, 2)
    packed = np.empty((len(chosen), _COLUMNS), np.float32)
    copied = _seconds(lambda: np.take(rows, chosen, axis=0, out=packed, mode="clip"))
    sent = _seconds(lambda: jax.block_until_ready(jax.device_put(rows, device)))
    copy, transfer = packed.nbytes / copied, rows.nbytes / sent
    return copy / (copy + transfer)


def _seconds(run: Callable[[], Any]) -> float:
    """The median time of a few runs after the first."""
    run()
    found = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        run()
        found.append(time.perf_counter() - started)
    return statistics.median(found)
