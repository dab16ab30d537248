"""Of how many kernels a layer consists that is compiled for an H200.

    python -m benchmarks.gpu_layers       # needs pip install 'jaxgraph[cuda]', and no GPU or data

The layers stand on one device, at the size of ogbn-products, forward and with the gradients of
features and parameters. Kernels of jaxgraph are counted apart from what XLA adds: products of
matrices, and fusions of what is computed row by row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

import jaxgraph as jg
from benchmarks.compile_only import h200_mesh
from benchmarks.generated import OGBN_PRODUCTS
from benchmarks.gpu_steps import scaled_manifest

FEATURES = OGBN_PRODUCTS.num_features

LAYERS: dict[str, Callable[[nnx.Rngs], nnx.Module]] = {
    "GCNConv 256": lambda rngs: jg.nn.GCNConv(FEATURES, 256, rngs=rngs),
    "SAGEConv 256 (mean)": lambda rngs: jg.nn.SAGEConv(FEATURES, 256, rngs=rngs),
    "SAGEConv 256 (max)": lambda rngs: jg.nn.SAGEConv(FEATURES, 256, reduce="max", rngs=rngs),
    "GATConv 4 x 128": lambda rngs: jg.nn.GATConv(FEATURES, 128, num_heads=4, rngs=rngs),
    "GATv2Conv 4 x 128": lambda rngs: jg.nn.GATv2Conv(FEATURES, 128, num_heads=4, rngs=rngs),
}
"""Layers by name."""


@dataclass(frozen=True)
class Kernels:
    """What a compiled program starts on the device.

    Attributes:
      ours: kernels of jaxgraph that reduce edges.
      joins: those that join the pieces of rows that are cut, and end at once where none is.
      others: fusions, products of matrices and copies.
    """

    ours: int
    joins: int
    others: int


def count_kernels(text: str) -> Kernels:
    """Counts the kernels of a program for GPUs.

    Args:
      text: of the compiled program.

    Returns:
      How many there are of each kind.
    """
    found = [line for line in text.splitlines() if 'custom_call_target="mosaic_gpu' in line]
    joins = sum("_join" in line for line in found)
    others = len(re.findall(r"= \S+ (?:fusion|copy|copy-start)\(", text))
    others += text.count(" custom-call(") - len(found)
    return Kernels(len(found) - joins, joins, others)


def compiled_layers() -> Iterator[tuple[str, str, Kernels]]:
    """Compiles every layer.

    Yields:
      Its name, "forward" or "forward + backward", and its kernels.
    """
    source = jg.parallel.AbstractSource(scaled_manifest(1, "sar"))
    sharded = jg.parallel.place(source, h200_mesh(1), implementation="mosaic_gpu")
    for name, make in LAYERS.items():
        definition, state = nnx.split(nnx.eval_shape(lambda make=make: make(nnx.Rngs(0))))

        def forward(state: Any, shard: Any, x: jax.Array, definition: Any = definition) -> Any:
            return nnx.merge(definition, state)(shard, x)

        def both(state: Any, shard: Any, x: jax.Array, forward: Any = forward) -> Any:
            y, pull = jax.vjp(lambda state, x: forward(state, shard, x), state, x)
            return y, pull(y)[1]

        yield name, "forward", _kernels(forward, "rows", state, sharded)
        yield name, "forward + backward", _kernels(both, ("rows", "rows"), state, sharded)


def print_table() -> None:
    """Compiles every layer and prints its kernels."""
    print(f"{'layer':24}{'':22}{'kernels':>8}{'joins':>7}{'of XLA':>8}")
    for name, passes, kernels in compiled_layers():
        counts = f"{kernels.ours:8}{kernels.joins:7}{kernels.others:8}"
        print(f"{name:24}{passes:22}{counts}", flush=True)


def _kernels(function: Callable[..., Any], outputs: Any, state: Any, sharded: Any) -> Kernels:
    run = jg.parallel.spmd(
        lambda state, shard: function(state, shard, shard.nodes), outputs=outputs
    )
    return count_kernels(run.lower(state, sharded).compile().as_text() or "")


if __name__ == "__main__":
    print_table()
