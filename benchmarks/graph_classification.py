"""Classes of whole graphs: test accuracy of GIN by the protocol of its paper.

    python -m benchmarks.graph_classification --data-dir DIR

Xu et al., "How powerful are graph neural networks?", 2019, section 7: ten folds, GIN of 5 layers of
32 with batch norm, a sum over the nodes of a graph, batches of 32 graphs, Adam with 0.01, halved
every 50 epochs, and dropout of 0.5 before the last layer or none. The accuracy is the mean over the
folds at the epoch where that mean is highest, with the deviation over the folds there. An epoch is
one pass over the training graphs; the paper's code takes 50 batches at random. The paper reads out
every layer by a linear map of its own, and here one map reads all layers (`jumping="cat"`). Seconds
of an epoch have the evaluation of all graphs, and no compilation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

import jaxgraph as jg
from benchmarks.command_line import make_parser, report
from jaxgraph.analysis import compilations

PAPER = {"mutag": "89.4 +- 5.6", "proteins": "76.2 +- 2.8"}
FOLDS, LAYERS, WIDTH, BATCH, HALVED = 10, 5, 32, 32, 50


class Head(nnx.Module):
    """The last layer, with dropout before it."""

    def __init__(self, classes: int, dropout: float, rngs: nnx.Rngs) -> None:
        self.linear, self.dropout = jg.nn.Linear(WIDTH, classes, rngs=rngs), dropout

    def __call__(self, graphs: Any, x: jax.Array, *, key: Any, train: bool) -> jax.Array:
        if train and self.dropout:
            x = jg.nn.dropout(graphs, x, key, rate=self.dropout)
        return self.linear(graphs, x)


def trained(
    loader: jg.sampling.Loader, graph: jg.TypedGraph, dropout: float, seed: int, epochs: int
) -> jg.train.History:
    """The history of a fold."""
    classes, rngs = graph.node_sets["graph"].num_classes, nnx.Rngs(seed)
    features = graph.node_sets["node"].num_features
    options: dict[str, Any] = {"num_layers": LAYERS, "norm": "batch", "jumping": "cat"}
    gin = jg.nn.GIN(features, WIDTH, WIDTH, **options, rngs=rngs)
    model = jg.nn.GraphReadout(gin, Head(classes, dropout, rngs))
    rate = optax.exponential_decay(0.01, HALVED * len(loader), 0.5, staircase=True)
    return jg.train.fit(model, loader, optax.adam(rate), epochs=epochs, seed=seed)


def best(curves: np.ndarray) -> dict[str, float]:
    """The accuracy at the best epoch of the mean of the folds' curves, [folds, epochs]."""
    epoch = int(curves.mean(axis=0).argmax())
    found = {"test accuracy": curves[:, epoch].mean(), "deviation": curves[:, epoch].std()}
    return {"epoch": epoch + 1, **{name: float(value) for name, value in found.items()}}


def measure(
    names: list[str], data_dir: Path, dropouts: list[float], seed: int, epochs: int
) -> Iterator[dict[str, Any]]:
    """A row for each data set and rate of dropout."""
    for name in names:
        graph: Any = jg.datasets.load(name, data_dir, edge_data=False)
        folds = jg.transforms.folds(graph, FOLDS, seed=seed)
        for dropout in dropouts:
            histories, compiled, like = [], [], None
            for fold in folds:
                # The step that is compiled for the first fold serves all.
                options: dict[str, Any] = {"batch_size": BATCH, "seed": seed, "like": like}
                like = jg.sampling.Loader(fold, [-1] * LAYERS, **options)
                with compilations() as found:
                    histories.append(trained(like, fold, dropout, seed, epochs))
                compiled.append(len(found))
            records = [each.records for each in histories]
            curves = [[100 * x.metrics["test"]["accuracy"] for x in each] for each in records]
            yield {
                "data": name,
                "dropout": dropout,
                **best(np.array(curves)),
                "paper": PAPER[name],
                "s an epoch": float(np.median([x.epoch_seconds for x in histories])),
                "programs": compiled,
            }


def main() -> None:
    """Measures the data sets that are given, and prints a table."""
    parser = make_parser(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=PAPER, default=list(PAPER))
    parser.add_argument("--dropout", nargs="+", type=float, default=[0.0, 0.5])
    parser.add_argument("--epochs", type=int, default=350)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows = measure(options.only, options.data_dir, options.dropout, options.seed, options.epochs)
    report(f"GIN on {FOLDS} folds", rows, options.json)


if __name__ == "__main__":
    main()
