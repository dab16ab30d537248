"""A run of `fit` with checkpoints in one of two processes; killed by `test_kills`.

python -m tests.train.checkpoints.run FOLDER RESULT RANK PORT FAULTS KIND

KIND is "plain", or "typed" for a graph of several sets. RESULT gets a line after every epoch, then
one of JSON with the history and the bytes of the state.
With FAULTS, the second process first makes mistakes that must end the run of both.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import optax

from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.nn import SAGEConv
from jaxgraph.parallel import make_mesh, place, shard
from jaxgraph.train import Checkpoints, EpochRecord, History, TrainingInterrupted, fit
from tests.law.test_typed import OfSets, graph_of_sets
from tests.parallel.typed_shards import scattered
from tests.train.small_model import RowsNet, random_partition, small_graph

EPOCHS, EVERY, PROCESSES, SEED = 18, 3, 2, 3
SECONDS = 0.05
"""The least that an epoch takes, so that a signal meets epochs, too."""


def mistake(record: EpochRecord) -> bool:
    raise LookupError("a mistake of the callback")


def unwritable(record: EpochRecord) -> bool:
    raise OSError("no space left")


def interrupted(record: EpochRecord) -> bool:
    raise KeyboardInterrupt


def enough(record: EpochRecord) -> bool:
    return record.epoch == 2


FAULTS: dict[str, Callable[[EpochRecord], bool]] = {
    "mistake": mistake,
    "unwritable": unwritable,
    "interrupted": interrupted,
    "enough": enough,
}


def faults(train: Callable[..., Any]) -> dict[str, str]:
    """What each process sees of a callback that only the last one has."""
    found = {}
    for name, callback in FAULTS.items():
        try:
            history = train(on_epoch=callback if jax.process_index() == PROCESSES - 1 else None)
            found[name] = f"{len(history.records)} epochs"
        except TrainingInterrupted as error:
            found[name] = f"interrupted after {len(error.history.records)}, by {error.number}"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def main(folder: str, result: str, rank: str, port: str, with_faults: str, kind: str) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", PROCESSES, int(rank))
    mesh, optimizer = make_mesh(PROCESSES), optax.adam(0.02)
    if kind == "typed":
        sets = graph_of_sets()
        sharded = shard(sets, scattered(sets, PROCESSES), mesh)
    else:
        graph = small_graph()
        sharded = place(tabulate(graph, random_partition(graph, PROCESSES)), mesh)

    def train(**options: Any) -> History:
        """A run of a new model."""
        model = OfSets(SAGEConv) if kind == "typed" else RowsNet()
        return fit(model, sharded, optimizer, epochs=EPOCHS, seed=SEED, **options)

    found: dict[str, Any] = {}
    if with_faults == "1":
        found["faults"] = faults(train)

    def on_epoch(record: EpochRecord) -> None:
        with Path(result).open("a") as file:
            file.write(f"{record.epoch}\n")
        time.sleep(SECONDS)

    status = 0
    try:
        history = train(checkpoint=Checkpoints(folder, every=EVERY, resume=True), on_epoch=on_epoch)
    except TrainingInterrupted as error:
        history, status = error.history, 128 + (error.number or 0)
    found |= {"loss": history.loss, "resumed": history.resumed}
    found["state"] = [leaf.tobytes().hex() for leaf in jax.tree.leaves(history.state)]
    with Path(result).open("a") as file:
        file.write(json.dumps(found) + "\n")
    # At once: at exit, jax.distributed would wait for a process that may have been killed.
    os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
