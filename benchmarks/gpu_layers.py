"""Kernels per layer, counted in layers compiled for an H200.

    python -m benchmarks.gpu_layers       # needs pip install 'jaxgraph[cuda]', and no GPU or data

The layers are compiled for one device, at the sizes of ogbn-products and of ogbn-arxiv, whose
longest rows are cut, forward and with the gradients of features and parameters. Kernels of jaxgraph
are counted apart from XLA's: products of matrices, and fusions of operations on rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

import jaxgraph as jg
from benchmarks.generated import OGBN_ARXIV, OGBN_PRODUCTS, generate
from benchmarks.gpu_steps import scaled_manifest
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.planner.targets import find_target

LAYERS: dict[str, Callable[[int, nnx.Rngs], nnx.Module]] = {
    "GCNConv 256": lambda features, rngs: jg.nn.GCNConv(features, 256, rngs=rngs),
    "SAGEConv 256 (mean)": lambda features, rngs: jg.nn.SAGEConv(features, 256, rngs=rngs),
    "SAGEConv 256 (max)": lambda features, rngs: jg.nn.SAGEConv(
        features, 256, reduce="max", rngs=rngs
    ),
    "GATConv 4 x 128": lambda features, rngs: jg.nn.GATConv(features, 128, num_heads=4, rngs=rngs),
    "GATv2Conv 4 x 128": lambda features, rngs: jg.nn.GATv2Conv(
        features, 128, num_heads=4, rngs=rngs
    ),
}
"""Layers by name, for a number of features."""


def _arxiv() -> Manifest:
    graph = generate(OGBN_ARXIV)
    return tabulate(graph, jg.partition.partition(graph, 1, method="hash")).manifest


GRAPHS: dict[str, tuple[int, Callable[[], Manifest]]] = {
    "ogbn-products": (OGBN_PRODUCTS.num_features, lambda: scaled_manifest(1, "sar")),
    "ogbn-arxiv": (OGBN_ARXIV.num_features, _arxiv),
}
"""Features and shapes of a graph of that size."""


@dataclass(frozen=True)
class Kernels:
    """Kernels that a compiled program starts on the device, by kind.

    Attributes:
      ours: kernels of jaxgraph that reduce edges.
      joins: those that join the pieces of rows too long for a cluster.
      others: fusions, products of matrices and copies.
    """

    ours: int
    joins: int
    others: int


def count_kernels(text: str) -> Kernels:
    """Counts the kernels of a program for GPUs.

    Args:
      text: text of the compiled program.

    Returns:
      The number of kernels of each kind.
    """
    found = [line for line in text.splitlines() if 'custom_call_target="mosaic_gpu' in line]
    joins = sum("_join" in line for line in found)
    others = len(re.findall(r"= \S+ (?:fusion|copy|copy-start)\(", text))
    others += text.count(" custom-call(") - len(found)
    return Kernels(len(found) - joins, joins, others)


def compiled_layers(graph: str) -> Iterator[tuple[str, str, Kernels]]:
    """Compiles every layer.

    Args:
      graph: a name in `GRAPHS`.

    Yields:
      Its name, "forward" or "forward + backward", and its kernels.
    """
    features, manifest = GRAPHS[graph]
    source = jg.parallel.AbstractSource(manifest())
    sharded = jg.parallel.place(
        source, find_target("h200").mesh(emulate=False), implementation="mosaic_gpu"
    )
    for name, make in LAYERS.items():
        made = nnx.eval_shape(lambda make=make: make(features, nnx.Rngs(0)))
        definition, state = nnx.split(made)

        def forward(state: Any, shard: Any, x: jax.Array, definition: Any = definition) -> Any:
            return nnx.merge(definition, state)(shard, x)

        def both(state: Any, shard: Any, x: jax.Array, forward: Any = forward) -> Any:
            y, pull = jax.vjp(lambda state, x: forward(state, shard, x), state, x)
            return y, pull(y)[1]

        yield name, "forward", _kernels(forward, "rows", state, sharded)
        yield name, "forward + backward", _kernels(both, ("rows", "rows"), state, sharded)


def print_table() -> None:
    """Compiles every layer and prints its kernels."""
    print(f"{'graph':16}{'layer':24}{'':22}{'kernels':>8}{'joins':>7}{'of XLA':>8}")
    for graph in GRAPHS:
        for name, passes, kernels in compiled_layers(graph):
            counts = f"{kernels.ours:8}{kernels.joins:7}{kernels.others:8}"
            print(f"{graph:16}{name:24}{passes:22}{counts}", flush=True)


def _kernels(function: Callable[..., Any], outputs: Any, state: Any, sharded: Any) -> Kernels:
    run = jg.parallel.spmd(
        lambda state, shard: function(state, shard, shard.nodes), outputs=outputs
    )
    return count_kernels(run.lower(state, sharded).compile().as_text() or "")


if __name__ == "__main__":
    print_table()
