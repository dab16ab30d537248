"""One of two processes that train on one mesh; run by `test_fit_two_processes`.

python -m tests.train.two_processes RANK PORT RESULT PARTS

PARTS is a folder with the parts of a graph of several sets, or "batches" to train on these alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from jaxgraph.layout.column_tables import ColumnRequest
from jaxgraph.layout.shard_tables import PartSource, tabulate
from jaxgraph.nn import GraphSAGE, SAGEConv
from jaxgraph.parallel import make_mesh, open_parts, place
from jaxgraph.sampling import Loader
from jaxgraph.train import NodeClassification, correct_and_smooth, evaluate, fit, predict
from jaxgraph.train.graph_digest import of_graphs
from tests.law.test_typed import OfSets
from tests.train.small_model import (
    CLASSES,
    FEATURES,
    SmallNet,
    TableNet,
    random_partition,
    small_graph,
)

PROCESSES, DEVICES_EACH, EPOCHS, SEED = 2, 2, 6, 3


class OwnParts:
    """A source that fails where a process reads a part of another one's devices."""

    def __init__(self, source: PartSource, rank: int) -> None:
        self.manifest = source.manifest
        self.read: list[int] = []
        self._source = source
        # Of parts that are streamed, each device has every so manieth.
        devices, parts = PROCESSES * DEVICES_EACH, range(source.manifest.num_parts)
        self._own = [part for part in parts if part % devices // DEVICES_EACH == rank]

    def part(self, index: int) -> Mapping[str, np.ndarray]:
        if index not in self._own:
            raise AssertionError(f"part {index} belongs to another process than {self._own}")
        self.read.append(index)
        return self._source.part(index)


def train(sharded: Any) -> dict[str, Any]:
    """Trains and evaluates two models, on both processes or on one, and returns the results."""
    model, table = SmallNet(dropout=0.5), TableNet(61)
    history = fit(model, sharded, optax.adam(0.02), epochs=EPOCHS, seed=SEED)
    adam = optax.adam(0.02)
    half = fit(table, sharded, adam, epochs=EPOCHS // 2)
    of_table = fit(table, sharded, adam, epochs=EPOCHS // 2, state=half.state)
    return {
        "loss": history.loss,
        "val_loss": history.val_loss,
        "table_loss": half.loss + of_table.loss,
        "table": np.asarray(table.table[...]).tolist(),
        "kernel": np.asarray(model.first.kernel[...]).tolist(),
        "test_loss": evaluate(model, sharded)["test"]["loss"],
        "logits": predict(model, sharded).tolist(),
    }


def train_streamed(sharded: Any) -> dict[str, Any]:
    """Trains a model on a graph, streamed or not, and returns the results."""
    model = SmallNet(dropout=0.5)
    history = fit(model, sharded, optax.adam(0.02), epochs=EPOCHS, aggregate_once=False, seed=SEED)
    return {
        "loss": history.loss,
        "val_loss": history.val_loss,
        "test_loss": evaluate(model, sharded)["test"]["loss"],
        "logits": predict(model, sharded).tolist(),
    }


def smooth(sharded: Any) -> list[list[float]]:
    """Corrects and smooths predictions that are all alike."""
    alike = np.full((61, CLASSES), 1 / CLASSES)
    return correct_and_smooth(alike, sharded, correct_steps=4, smooth_steps=3).tolist()


def train_typed(sharded: Any) -> dict[str, Any]:
    """Trains a model on a graph of several sets, and returns the results."""
    model = OfSets(SAGEConv)
    history = fit(model, sharded, optax.adam(0.02), epochs=EPOCHS // 2, seed=SEED)
    return {
        "loss": history.loss,
        "val_loss": history.val_loss,
        "rows": np.asarray(model.rows.rows[...]).tolist(),
        "logits": predict(model, sharded).tolist(),
    }


def train_on_batches(sharded: Any) -> dict[str, Any]:
    """Trains a model on mini-batches, and returns the results."""
    sizes, found = (FEATURES, 8, CLASSES), {}
    for cache in (0, 500):
        model = GraphSAGE(*sizes, num_layers=2, dropout=0.4, norm="layer", rngs=nnx.Rngs(0))
        loader = Loader(small_graph(61), [3, 2], sharded=sharded, batch_size=6, cache_bytes=cache)
        history = fit(model, loader, optax.adam(0.02), epochs=3, seed=SEED)
        found |= {f"loss {cache}": history.loss, f"val_loss {cache}": history.val_loss}
        found[f"logits {cache}"] = predict(model, sharded).tolist()
    return found


def train_by_column(sharded: Any) -> dict[str, Any]:
    """Trains a model on mini-batches of a graph in mode "p3", step by step and in the pipeline."""
    sizes, found = (FEATURES, 8, CLASSES), {}
    for staleness in (0, 3):
        model = GraphSAGE(*sizes, num_layers=2, dropout=0.4, norm="layer", rngs=nnx.Rngs(0))
        loader = Loader(small_graph(61), [3, 2], sharded=sharded, batch_size=6)
        adam = optax.adam(0.02)
        history = fit(model, loader, adam, epochs=3, seed=SEED, staleness=staleness)
        found |= {f"loss {staleness}": history.loss, f"val_loss {staleness}": history.val_loss}
        found[f"logits {staleness}"] = predict(model, sharded).tolist()
    return found


def refused(sharded: Any, rank: int) -> dict[str, str]:
    """What `fit` says where the last process has other arguments; each case differs in one."""
    other = rank == PROCESSES - 1
    cases: dict[str, dict[str, Any]] = {
        "seed": {"seed": 1 if other else 0},
        "optimizer": {"optimizer": optax.adam(0.1 if other else 0.02)},
        "dropout": {"model": SmallNet(dropout=0.9 if other else 0.5)},
        "parameters": {"model": SmallNet(seed=rank)},
        "task": {"task": NodeClassification(label_smoothing=0.5 if other else 0)},
    }
    found = {}
    for name, options in cases.items():
        arguments = {"model": SmallNet(), "optimizer": optax.adam(0.02), "epochs": 2} | options
        model, optimizer = arguments.pop("model"), arguments.pop("optimizer")
        try:
            fit(model, sharded, optimizer, **arguments)
        except ValueError as error:
            found[name] = str(error)
    return found


def main(rank: int, port: int, result: Path, folder: Path) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES_EACH)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", PROCESSES, rank)
    parts = PROCESSES * DEVICES_EACH
    graph = small_graph(61)
    source = OwnParts(tabulate(graph, random_partition(graph, parts)), rank)
    sharded = place(source, make_mesh(parts, hosts=PROCESSES))
    if folder.name == "batches":
        found = {"pulled": train_on_batches(sharded)}
        tables = tabulate(graph, random_partition(graph, parts), "domain", columns=ColumnRequest())
        source = OwnParts(tables, rank)
        by_column = place(source, make_mesh(parts, hosts=PROCESSES), "p3")
        found["pushed"] = train_by_column(by_column)
        result.write_text(json.dumps(found))
        return
    found = train(sharded)
    found["read"] = source.read
    found["refused"] = refused(sharded, rank)
    waiting = OwnParts(tabulate(graph, random_partition(graph, 2 * parts), "sar"), rank)
    streamed = place(waiting, make_mesh(parts, hosts=PROCESSES), "stream")
    found["streamed"] = train_streamed(streamed) | {"read": waiting.read}
    found["smoothed"] = [smooth(graph) for graph in (sharded, streamed)]
    found["digests"] = [of_graphs([graph]) for graph in (sharded, streamed)]
    typed = place(open_parts(folder), make_mesh(parts, hosts=PROCESSES))
    found["typed"] = train_typed(typed)
    found["typed digests"] = of_graphs([typed])
    result.write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
