"""Link prediction beside published figures: a graph auto-encoder on Cora and Citeseer.

    python -m benchmarks.link_prediction --data-dir DIR

The encoder is a GCN of two layers, 32 and 16 wide, without biases as in the paper, the decoder an
inner product, trained for 200 steps with Adam at 0.01 on 85% of the edges, with as many pairs that
are no edges, drawn in each step. 5% of the edges are for validation and 10% for test, drawn by the
seed, beside as many other pairs. Figures are those of the epoch with the lowest validation loss, in
percent; published ones are of GAE with features (Kipf and Welling, "Variational Graph
Auto-Encoders", 2016, table 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

import jaxgraph as jg
from benchmarks.command_line import make_parser, report

PUBLISHED = {"cora": (91.0, 92.0), "citeseer": (89.5, 89.9)}
"""ROC-AUC and average precision."""
TASK = jg.train.LinkPrediction()


class Encoder(nnx.Module):
    """The rows of nodes."""

    def __init__(self, in_features: int, rngs: nnx.Rngs) -> None:
        self.first = jg.nn.GCNConv(in_features, 32, use_bias=False, rngs=rngs)
        self.second = jg.nn.GCNConv(32, 16, use_bias=False, rngs=rngs)

    def __call__(self, relation: Any, x: Any, *, key: Any, train: bool) -> jax.Array:
        return self.second(relation, jax.nn.relu(self.first(relation, x)))


def trained(graph: jg.Graph, seed: int, epochs: int) -> Mapping[str, float]:
    """The test metrics of a run."""
    split = jg.transforms.link_split(graph, (0.05, 0.1), seed=seed)
    encoder = Encoder(graph.num_features, nnx.Rngs(seed))
    model = jg.nn.LinkReadout(encoder, jg.nn.InnerProduct())
    links = jg.sampling.Links()
    loader = jg.sampling.Loader(split, [], links=links, batch_size=split.num_edges, seed=seed)
    history = jg.train.fit(model, loader, optax.adam(0.01), epochs=epochs, seed=seed, task=TASK)
    return history.records[history.best_epoch - 1].metrics["test"]


def measure(names: list[str], data_dir: Path, seeds: int, epochs: int) -> Iterator[dict[str, Any]]:
    """A row for each data set."""
    for name in names:
        graph = jg.datasets.load(name, data_dir)
        found = [trained(graph, seed, epochs) for seed in range(seeds)]
        row: dict[str, Any] = {"data": name}
        for metric, published in zip(
            ("roc_auc", "average_precision"), PUBLISHED[name], strict=True
        ):
            values = 100 * np.array([each[metric] for each in found])
            row |= {metric: values.mean(), f"{metric} deviation": values.std()}
            row |= {f"{metric} published": published}
        yield row


def main() -> None:
    """Measures the data sets that are given, and prints a table."""
    parser = make_parser(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=PUBLISHED, default=list(PUBLISHED))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=200)
    options = parser.parse_args()
    rows = measure(options.only, options.data_dir, options.seeds, options.epochs)
    report("Graph auto-encoder", rows, options.json)


if __name__ == "__main__":
    main()
