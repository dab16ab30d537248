"""Mini-batches beside full batch: test accuracy, and epochs and seconds to the same accuracy.

    python -m benchmarks.sampled_accuracy --data-dir DIR

A model of 2 layers of 64 on each data set, with 60% of the nodes for training and 20% for
validation, drawn by the seed, and features scaled to rows of norm 1. Steps of the pipeline take
gradients of the weights of three steps before (P3, equation 3), in mode "p3" on one device: results
do not depend on their number. Full batch takes features as they are read, sparse or dense, and
aggregates them once; mini-batches take dense ones, and steps of a twentieth the size: at four times
that, late gradients of features that are not scaled do not learn (Amazon Photo). All evaluate the
whole graph after each epoch, which the seconds count; compilation they do not. Accuracies are those
of the epoch with the lowest validation loss. The goal is the validation accuracy there of the full
batch with the same seed, less one deviation over the seeds; epochs and seconds to it are medians.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optax
from flax import nnx
from scipy.sparse import issparse
from sklearn.preprocessing import normalize

import jaxgraph as jg
from benchmarks.command_line import make_parser, report

DATA_SETS = ("cora", "amazon-photo", "coauthor-cs")
MODELS = {"sage": jg.nn.GraphSAGE, "gcn": jg.nn.GCN}
BATCH, FANOUTS = 256, (10, 10)
WAYS = {"full batch": 1e-2, "mini-batches": 5e-4, "pipeline": 5e-4}
"""The learning rates."""


def trained(graph: jg.Graph, model_of: Any, way: str, seed: int, epochs: int) -> jg.train.History:
    """The history of a run."""
    model = model_of(graph.num_features, 64, graph.num_classes, dropout=0.5, rngs=nnx.Rngs(seed))
    source: Any = graph
    if way != "full batch":
        dense = graph.nodes.toarray() if issparse(graph.nodes) else graph.nodes
        graph = graph.replace(nodes=dense)
        mode = "p3" if way == "pipeline" else "sar"
        sharded = jg.parallel.shard(graph, None, jg.parallel.make_mesh(1), mode)
        loader = jg.sampling.Loader
        source = loader(graph, FANOUTS, sharded=sharded, batch_size=BATCH, seed=seed)
    adam = optax.chain(optax.add_decayed_weights(5e-4), optax.adam(WAYS[way]))
    how: dict[str, Any] = {"epochs": epochs, "seed": seed, "staleness": 3 * (way == "pipeline")}
    return jg.train.fit(model, source, adam, **how)


def best(history: jg.train.History, split: str) -> float:
    """The accuracy of the best epoch, in percent."""
    return 100 * history.records[history.best_epoch - 1].metrics[split]["accuracy"]


def until(history: jg.train.History, goal: float) -> tuple[float, float]:
    """Epochs and seconds until the validation accuracy reaches a goal; infinite without it."""
    records, seconds = history.records, np.cumsum(history.epoch_seconds)
    reached = [index for index, record in enumerate(records) if 100 * record.val_accuracy >= goal]
    return (reached[0] + 1, float(seconds[reached[0]])) if reached else (np.inf, np.inf)


def measure(
    names: list[str], data_dir: Path, model: str, seeds: int, epochs: tuple[int, int]
) -> Iterator[dict[str, Any]]:
    """A row for each data set and way."""
    for name in names:
        graph = jg.datasets.load(name, data_dir)
        graph = graph.replace(nodes=normalize(graph.nodes))
        runs: dict[str, list[jg.train.History]] = {way: [] for way in WAYS}
        for seed in range(seeds):
            split = jg.transforms.random_split(graph, fractions=(0.6, 0.2, 0.2), seed=seed)
            for way in WAYS:
                count = epochs[way != "full batch"]
                runs[way].append(trained(split, MODELS[model], way, seed, count))
        reached = [best(history, "val") for history in runs["full batch"]]
        goals = np.asarray(reached) - np.std(reached)
        for way, histories in runs.items():
            test = [best(history, "test") for history in histories]
            to_goal = np.median([until(*each) for each in zip(histories, goals, strict=True)], 0)
            yield {
                "data": name,
                "way": way,
                "epochs": len(histories[0].records),
                "test accuracy": float(np.mean(test)),
                "deviation": float(np.std(test)),
                "epochs to goal": float(to_goal[0]),
                "s to goal": float(to_goal[1]),
                "s an epoch": float(np.median([x.epoch_seconds for x in histories])),
            }


def main() -> None:
    """Measures the data sets that are given, and prints a table."""
    parser = make_parser(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--model", choices=MODELS, default="sage")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, nargs=2, default=(200, 120), metavar=("FULL", "MINI"))
    options = parser.parse_args()
    epochs = tuple(options.epochs)
    rows = measure(options.only, options.data_dir, options.model, options.seeds, epochs)
    report(f"Mini-batches of {BATCH}, fan-outs {list(FANOUTS)}", rows, options.json)


if __name__ == "__main__":
    main()
