"""Train steps with the GPU kernels in them, compiled for H200s at the size of ogbn-products.

    python -m benchmarks.gpu_steps        # needs pip install 'jaxgraph[cuda]', and no GPU or data

The shapes are those of a small graph of the same density, cut by hash, all scaled up. Under hash
nearly every part needs nearly every row, the worst case of a schedule. The models have 3 layers
with batch normalisation and dropout, under Adam: GCN of width 256, GAT of 4 heads of 128. Memory is
counted in blocks, nodes / devices x width x 4 bytes. Permutes count as overlapped where a kernel
runs during them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import jax
import optax

import jaxgraph as jg
from benchmarks.command_line import make_parser, report
from benchmarks.generated import DEGREE_EXPONENT, OGBN_PRODUCTS, generate, make_model
from benchmarks.memory import temporary_bytes
from jaxgraph.analysis.hlo import num_bytes, parse
from jaxgraph.layout.fitting import with_headroom
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.planner.targets import find_target

SCALE = 64
WIDTHS = {"gcn": 256, "gat": 512}
MODES = ("sar", "sar+prefetch", "domain")


@cache
def scaled_manifest(devices: int, mode: str, scale: int = SCALE) -> Manifest:
    """The shapes of a graph of ogbn-products' size, cut by hash; one smaller by `scale` is made."""
    graph = generate(OGBN_PRODUCTS, scale=scale)
    parts = jg.partition.partition(graph, devices, method="hash", seed=0)
    manifest = tabulate(graph, parts, mode).manifest
    growth = OGBN_PRODUCTS.num_nodes / graph.num_nodes
    # The largest of n degrees from a power law grows as a root of n.
    root = growth ** (1 / (DEGREE_EXPONENT - 1))
    return with_headroom(manifest, growth - 1, longer=root)


def measure(
    models: Sequence[str], modes: Sequence[str], implementations: Sequence[str], devices: int
) -> Iterator[dict[str, Any]]:
    """Compiles every combination; on one device only mode "sar", as all modes are equal there."""
    for name in models:
        for count in (1, devices):
            for mode in modes if count > 1 else ("sar",):
                schedule, _, prefetch = mode.partition("+")
                for implementation in implementations:
                    sharded = jg.parallel.place(
                        AbstractSource(scaled_manifest(count, schedule)),
                        find_target(f"h200x{count}").mesh(emulate=False),
                        prefetch=bool(prefetch),
                        implementation=implementation,
                    )
                    sizes = (OGBN_PRODUCTS.num_features, WIDTHS[name], OGBN_PRODUCTS.num_classes)
                    model = make_model(name, *sizes)
                    compiled = jg.train.compile_train_step(model, sharded, optax.adam(1e-2))
                    yield {
                        "model": name,
                        "devices": count,
                        "mode": mode,
                        "messages_by": implementation,
                        **describe(compiled, name, count),
                    }


def describe(compiled: jax.stages.Compiled, name: str, devices: int) -> dict[str, Any]:
    """Temporary memory of a device, permutes, and the share of their bytes under kernels."""
    text, permutes = compiled.as_text() or "", jg.analysis.overlapped(compiled)
    module = parse(text)
    shapes = [module.computations[each.computation][each.name].shape for each in permutes]
    sizes = [num_bytes(shape) for shape in shapes]
    hidden = [
        size for size, each in zip(sizes, permutes, strict=True) if each.custom_calls_between > 0
    ]
    temporary = temporary_bytes(compiled)
    return {
        "blocks": temporary / (OGBN_PRODUCTS.num_nodes / devices * WIDTHS[name] * 4),
        "GB": temporary / 1e9,
        "permutes": len(permutes),
        "under_kernels": len(hidden),
        "share_of_bytes": sum(hidden) / max(sum(sizes), 1),
        "kernels": text.count('custom_call_target="mosaic_gpu'),
    }


def main() -> None:
    """Reads the command line, compiles and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--models", nargs="+", choices=list(WIDTHS), default=list(WIDTHS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    choices = ["mosaic_gpu", "xla"]
    parser.add_argument("--implementations", nargs="+", choices=choices, default=choices)
    options = parser.parse_args()
    rows = measure(options.models, options.modes, options.implementations, options.devices)
    report("Train steps of ogbn-products' size, compiled for H200s", rows, options.json)


if __name__ == "__main__":
    main()
