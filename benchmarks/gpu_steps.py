"""Train steps with the GPU kernels in them, compiled for H200s at the size of ogbn-products.

    python -m benchmarks.gpu_steps        # needs pip install 'jaxgraph[cuda]', and no GPU or data

The shapes are those of a small graph of the same density, cut by hash, all scaled up. Under hash
nearly every part needs nearly every row, the worst case of a schedule. The models have 3 layers
with batch normalisation and dropout, under Adam: GCN of width 256, GAT of 4 heads of 128. Memory is
counted in blocks, nodes / devices x width x 4 bytes. Permutes count as overlapped where a kernel
runs during them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from functools import cache

import jax
import optax
from flax import nnx
from rich.console import Console
from rich.table import Table

import jaxgraph as jg
from benchmarks.command_line import make_parser, write_figures
from benchmarks.generated import DEGREE_EXPONENT, OGBN_PRODUCTS, generate
from benchmarks.memory import temporary_bytes
from jaxgraph.analysis.hlo import num_bytes, parse
from jaxgraph.layout.fitting import with_headroom
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.planner.targets import find_target

SCALE = 64
WIDTHS = {"gcn": 256, "gat": 512}
MODES = ("sar", "sar+prefetch", "domain")


@dataclasses.dataclass(frozen=True)
class Row:
    """One compiled train step.

    Attributes:
      model, mode, implementation, devices: the compiled combination.
      blocks: temporary memory of a device.
      gigabytes: the same; arguments (graph, features, parameters) are not counted.
      argument_gigabytes: memory of the arguments.
      permutes, under_kernels: permutes, and those during which a kernel runs.
      share_under_kernels: share of the bytes of all permutes that the latter have.
      kernels: Pallas kernels in the program's text.
      seconds: seconds of compilation.
    """

    model: str
    mode: str
    implementation: str
    devices: int
    blocks: float
    gigabytes: float
    argument_gigabytes: float
    permutes: int
    under_kernels: int
    share_under_kernels: float
    kernels: int
    seconds: float


def make_model(name: str) -> nnx.Module:
    """The 3-layer model of the given name."""
    shared = {"num_layers": 3, "dropout": 0.5, "norm": "batch", "rngs": nnx.Rngs(0)}
    features, classes = OGBN_PRODUCTS.num_features, OGBN_PRODUCTS.num_classes
    if name == "gcn":
        return jg.nn.GCN(features, WIDTHS[name], classes, **shared)
    return jg.nn.GAT(features, WIDTHS[name] // 4, classes, num_heads=4, **shared)


@cache
def scaled_manifest(devices: int, mode: str, scale: int = SCALE) -> Manifest:
    """The shapes of a graph of ogbn-products' size, cut by hash.

    Args:
      devices: number of parts.
      mode: "sar" or "domain".
      scale: factor by which the examined graph is smaller.

    Returns:
      The shapes.
    """
    graph = generate(OGBN_PRODUCTS, scale=scale)
    parts = jg.partition.partition(graph, devices, method="hash", seed=0)
    manifest = tabulate(graph, parts, mode).manifest
    growth = OGBN_PRODUCTS.num_nodes / graph.num_nodes
    # The largest of n degrees from a power law grows as a root of n.
    root = growth ** (1 / (DEGREE_EXPONENT - 1))
    return with_headroom(manifest, growth - 1, longer=root)


def compile_step(
    name: str, mode: str, implementation: str, devices: int
) -> tuple[jax.stages.Compiled, jg.parallel.ShardedGraph]:
    """Compiles a train step for H200s.

    Args:
      name: name of the model.
      mode: one of `MODES`.
      implementation: implementation of messages.
      devices: number of devices.

    Returns:
      The program and its graph without data.
    """
    schedule, _, prefetch = mode.partition("+")
    source = jg.parallel.AbstractSource(scaled_manifest(devices, schedule))
    sharded = jg.parallel.place(
        source,
        find_target(f"h200x{devices}").mesh(emulate=False),
        prefetch=bool(prefetch),
        implementation=implementation,
    )
    return jg.train.compile_train_step(make_model(name), sharded, optax.adam(1e-2)), sharded


def measure(
    models: Sequence[str], modes: Sequence[str], implementations: Sequence[str], devices: int
) -> Iterator[Row]:
    """Compiles every combination; on one device only mode "sar", as all modes are equal there."""
    for name in models:
        for count in (1, devices):
            for mode in modes if count > 1 else ("sar",):
                for implementation in implementations:
                    start = time.perf_counter()
                    compiled, _ = compile_step(name, mode, implementation, count)
                    seconds = time.perf_counter() - start
                    yield describe(compiled, name, mode, implementation, count, seconds)


def describe(
    compiled: jax.stages.Compiled,
    name: str,
    mode: str,
    implementation: str,
    devices: int,
    seconds: float,
) -> Row:
    """The figures of a compiled train step.

    Args:
      compiled: the program.
      name, mode, implementation, devices: the compiled combination.
      seconds: seconds of compilation.

    Returns:
      The row.
    """
    analysis = compiled.memory_analysis()
    assert analysis is not None
    text, permutes = compiled.as_text() or "", jg.analysis.overlapped(compiled)
    module = parse(text)
    shapes = [module.computations[each.computation][each.name].shape for each in permutes]
    sizes = [num_bytes(shape) for shape in shapes]
    hidden = [
        size for size, each in zip(sizes, permutes, strict=True) if each.custom_calls_between > 0
    ]
    temporary = temporary_bytes(compiled)
    return Row(
        model=name,
        mode=mode,
        implementation=implementation,
        devices=devices,
        blocks=temporary / (OGBN_PRODUCTS.num_nodes / devices * WIDTHS[name] * 4),
        gigabytes=temporary / 1e9,
        argument_gigabytes=analysis.argument_size_in_bytes / 1e9,
        permutes=len(permutes),
        under_kernels=len(hidden),
        share_under_kernels=sum(hidden) / max(sum(sizes), 1),
        kernels=text.count('custom_call_target="mosaic_gpu'),
        seconds=seconds,
    )


def show(rows: Sequence[Row]) -> None:
    """Prints the table, with ratios to mode "domain" with the kernels and with XLA."""
    table = Table(title="Train steps of ogbn-products size, compiled for H200s")
    names = ("model", "devices", "mode", "messages by")
    numbers = ("blocks", "GB", "/ domain", "/ domain xla", "graph GB", "permutes", "under kernels")
    for column in names:
        table.add_column(column)
    for column in (*numbers, "% of bytes", "kernels", "compile s"):
        table.add_column(column, justify="right")
    domain = {
        (row.model, row.devices, row.implementation): row.blocks
        for row in rows
        if row.mode == "domain"
    }
    for row in rows:
        bases = [domain.get((row.model, row.devices, each)) for each in ("mosaic_gpu", "xla")]
        table.add_row(
            row.model,
            str(row.devices),
            row.mode,
            row.implementation,
            f"{row.blocks:.1f}",
            f"{row.gigabytes:.2f}",
            *(f"{row.blocks / base:.2f}" if base else "-" for base in bases),
            f"{row.argument_gigabytes:.2f}",
            str(row.permutes),
            str(row.under_kernels),
            f"{100 * row.share_under_kernels:.0f}" if row.permutes else "-",
            str(row.kernels),
            f"{row.seconds:.0f}",
        )
    Console(width=160).print(table)


def main() -> None:
    """Reads the command line, compiles and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--models", nargs="+", choices=list(WIDTHS), default=list(WIDTHS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    choices = ["mosaic_gpu", "xla"]
    parser.add_argument("--implementations", nargs="+", choices=choices, default=choices)
    options = parser.parse_args()
    rows = list(measure(options.models, options.modes, options.implementations, options.devices))
    show(rows)
    write_figures(options.json, map(dataclasses.asdict, rows))


if __name__ == "__main__":
    main()
