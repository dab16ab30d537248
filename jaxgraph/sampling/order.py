"""The order of the seeds of an epoch, the same in every process and on any number of devices."""

from __future__ import annotations

import numpy as np

from jaxgraph.seeds import mix


def epoch_key(seed: int, epoch: int) -> int:
    """The key of the draws of an epoch, a number of 64 bits."""
    words = mix(np.array([seed], np.uint64) + np.uint64(1 << 32))
    return int(mix(words ^ np.uint64(epoch))[0])


def shuffled(nodes: np.ndarray, key: int) -> np.ndarray:
    """The nodes in the order of a hash of each."""
    return nodes[np.argsort(mix(nodes.astype(np.uint64) ^ np.uint64(key)), kind="stable")]


def of_devices(seeds: np.ndarray, owner: np.ndarray, devices: int) -> list[np.ndarray]:
    """The seeds of each device: equally many, and as many of its own nodes as that allows."""
    if devices == 1:
        return [seeds]
    return np.array_split(seeds[np.argsort(owner[seeds], kind="stable")], devices)
