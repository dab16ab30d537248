"""Labels as inputs, and Correct & Smooth: test accuracy of the four ways to use labels.

    python -m benchmarks.labels --data-dir DIR

A GCN of 2 layers of 64 on each data set, with few training nodes (the public split of the citation
graphs; elsewhere 20 a class, and 30 for validation) and with many (60%, 20% for validation). Means
of the test accuracy over seeds, which also draw the splits, in the epoch with the lowest validation
loss. Correct & Smooth takes the best of its candidates on the validation nodes.
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
from jaxgraph.metrics import accuracy

DATA_SETS = ("cora", "citeseer", "amazon-photo", "coauthor-cs")
PUBLIC = ("cora", "citeseer")
CANDIDATES: dict[str, Any] = {
    "correct_alpha": (0.5, 0.8, 0.95),
    "smooth_alpha": (0.2, 0.5, 0.8),
    "autoscale": (True, False),
}


def graph_of(name: str, data_dir: Path, split: str, seed: int) -> jg.Graph:
    """A data set with one of its splits."""
    graph = jg.datasets.load(name, data_dir)
    if split == "many":
        return jg.transforms.random_split(graph, fractions=(0.6, 0.2, 0.2), seed=seed)
    return graph if name in PUBLIC else jg.transforms.random_split(graph, seed=seed)


def test_accuracies(graph: jg.Graph, seed: int, epochs: int) -> dict[str, float]:
    """Those of one seed, in percent."""
    found, labels = {}, np.asarray(graph.labels)
    for way in ("plain", "labels"):
        given, task = graph, jg.train.NodeClassification()
        if way == "labels":
            given = jg.transforms.with_label_columns(graph)
            task = jg.train.MaskedLabelPrediction()
        model = jg.nn.GCN(
            given.num_features, 64, graph.num_classes, dropout=0.5, rngs=nnx.Rngs(seed)
        )
        adam = optax.chain(optax.add_decayed_weights(5e-4), optax.adam(1e-2))
        sharded = jg.parallel.shard(given, None, jg.parallel.make_mesh(1))
        jg.train.fit(model, sharded, adam, epochs=epochs, seed=seed, task=task)
        logits = jg.train.predict(model, sharded)
        smooth = jg.train.correct_and_smooth(
            np.asarray(jax.nn.softmax(logits)), sharded, **CANDIDATES
        )
        for name, outputs in ((way, logits), (f"{way} + C&S", smooth)):
            found[name] = 100 * accuracy(outputs, labels, graph.test_mask)
    return found


def measure(names: list[str], data_dir: Path, seeds: int, epochs: int) -> Iterator[dict[str, Any]]:
    """A row for each data set and split."""
    for name in names:
        for split in ("few", "many"):
            runs = [
                test_accuracies(graph_of(name, data_dir, split, seed), seed, epochs)
                for seed in range(seeds)
            ]
            means = {way: float(np.mean([run[way] for run in runs])) for way in runs[0]}
            spread = float(np.std([run["plain"] for run in runs]))
            yield {"data": name, "training nodes": split, **means, "std of plain": spread}


def main() -> None:
    """Measures the data sets that are given, and prints a table."""
    parser = make_parser(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=200)
    options = parser.parse_args()
    rows = measure(options.only, options.data_dir, options.seeds, options.epochs)
    report("Test accuracy, %", rows, options.json)


if __name__ == "__main__":
    main()
