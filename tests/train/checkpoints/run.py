"""A run of `fit` with checkpoints, alone or as one of two processes; killed by `test_kills`.

python -m tests.train.checkpoints.run FOLDER RESULT KIND [RANK PORT]

KIND is "train", "raise", "interrupt", "stop" or "full": what process 1 does in its callback after
epoch 4. RESULT gets a line after every epoch, and at last the history and the parameters as hex.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import jax
import optax

from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel import make_mesh, place
from jaxgraph.train import Checkpoints, EpochRecord, TrainingInterrupted, fit
from tests.train.small_model import RowsNet, random_partition, small_graph

EPOCHS, EVERY, DEVICES, SEED = 24, 3, 2, 3
SECONDS = 0.03
"""The least that an epoch takes, so that kills hit epochs, too."""


def train(folder: str, result: Path, kind: str) -> None:
    rank = jax.process_index()
    graph = small_graph()
    sharded = place(tabulate(graph, random_partition(graph, DEVICES)), make_mesh(DEVICES))

    def on_epoch(record: EpochRecord) -> bool:
        with result.open("a") as file:
            file.write(f"{record.epoch}\n")
        time.sleep(SECONDS)
        if record.epoch == 4 and rank == DEVICES - 1 and jax.process_count() > 1:
            if kind == "raise":
                raise LookupError("a mistake of the callback")
            if kind == "interrupt":
                raise KeyboardInterrupt
            return kind == "stop"
        return False

    model = RowsNet()
    checkpoint = Checkpoints(folder, every=EVERY, resume=True)
    try:
        history = fit(
            model,
            sharded,
            optax.adam(0.02),
            epochs=EPOCHS,
            seed=SEED,
            checkpoint=checkpoint,
            on_epoch=on_epoch,
        )
    except TrainingInterrupted as error:
        print("interrupted after", len(error.history.records), flush=True)
        end(130 if error.number is None else 128 + error.number)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        end(1)
    else:
        leaves = [leaf.tobytes().hex() for leaf in jax.tree.leaves(history.state)]
        found: dict[str, Any] = {"loss": history.loss, "state": leaves, "resumed": history.resumed}
        with result.open("a") as file:
            file.write(json.dumps(found) + "\n")
        end(0)


def end(status: int) -> None:
    """Ends at once: at exit, jax.distributed waits for a process that may have been killed."""
    sys.stdout.flush()
    os._exit(status)


def main(folder: str, result: str, kind: str, rank: str = "", port: str = "") -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1 if rank else DEVICES)
    jax.config.update("jax_enable_compilation_cache", False)
    if rank:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", DEVICES, int(rank))
    train(folder, Path(result), kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
