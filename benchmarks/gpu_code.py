"""Registers, spills and bytes in flight of the GPU kernels, compiled on a machine without a GPU.

    python -m benchmarks.gpu_code [--kernel NAME] [--shape NAME] [--spread]

Compiles every kernel for H200 at the named shapes (`pip install jaxgraph[cuda]`) and prints, from
the compiler's report and the PTX: registers, bytes spilled, shared memory, and for the widest reads
of a lane their bytes, their number in flight, and the bytes of all reads in flight; from the
registers, the warpgroups that a multiprocessor holds, and the kilobytes in flight there. A memory
of 4.8 TB/s with a latency of 0.8 microseconds is saturated by 29 kilobytes per multiprocessor
(Little's law). Nothing runs, so no speed is claimed.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.command_line import make_parser, report
from pallas_kernels.teams import LANES, RESIDENT

REGISTERS, REGISTER_UNIT = 65_536, 8
"""Registers of a multiprocessor, and the step in which a lane gets them."""

DUMPS = {"JAX_PLATFORMS": "cpu", "MOSAIC_GPU_DUMP_PTX": "1", "MOSAIC_GPU_DUMP_RESOURCES": "1"}


def read_code(folder: Path) -> list[dict[str, Any]]:
    """The kernels of the compiler's files in a folder, in the order of compilation."""
    return [
        _code(report.stem, report.read_text(), report.with_suffix(".ptx").read_text())
        for report in sorted(folder.glob("*.ptxas"), key=lambda path: path.stat().st_mtime_ns)
    ]


def _code(name: str, report: str, ptx: str) -> dict[str, Any]:
    def number(pattern: str) -> int:
        return max((int(found) for found in re.findall(pattern, report)), default=0)

    blocks = [
        [_bytes(*read) for read in re.findall(r"@reads ld\.global(?:\.nc)?(\.v\d)?\.b(\d+)", block)]
        for block in re.split(r"\$L__BB\w+:|bra", ptx)
    ]
    # In the block with the most bytes in flight, the width that has the most of them.
    busiest = max(blocks, key=sum)
    read = max(set(busiest), key=lambda size: size * busiest.count(size), default=0)
    registers = number(r"[Uu]sed (\d+) registers")
    granted = -(-max(registers, 1) // REGISTER_UNIT) * REGISTER_UNIT
    # Warpgroups that a multiprocessor holds, at most as many as are started.
    resident = min(RESIDENT, REGISTERS // (LANES * granted))
    return {
        "name": name.removesuffix("_0"),
        "registers": registers,
        "spilled": number(r"(\d+) bytes spill"),
        "shared": number(r"(\d+) bytes smem"),
        "read": read,
        "in_flight": busiest.count(read),
        "bytes_in_flight": sum(busiest),
        "resident": resident,
        "kB": sum(busiest) * LANES * resident / 1e3,
    }


def _bytes(vector: str, bits: str) -> int:
    return int(vector[2:] or 1) * int(bits) // 8


def cases(
    shape: Any, array: Callable[..., Any], *, spread: bool = False
) -> Iterator[tuple[str, Callable, tuple]]:
    """Every kernel at a shape: its name, a function of arrays, and the arrays."""
    import jax

    from pallas_kernels.edge_products import edge_products, edge_sums
    from pallas_kernels.extremum import neighbor_extremum, winner_gradient
    from pallas_kernels.neighbor_sum import Neighbors, neighbor_mean, neighbor_sum
    from pallas_kernels.rows import RowList, Rows
    from pallas_kernels.schedule import most_pieces

    def listed(count: int) -> RowList:
        entries, bounds = array((count,), "int32"), array((3,), "int32")
        return RowList(entries, entries, entries, bounds)

    pieces = most_pieces(shape.edges, shape.edges)
    rows: Any = Rows(listed(shape.rows), listed(pieces), listed(pieces), pieces, spread)
    numbers = (shape.rows, shape.heads * shape.width)
    x, y = array(numbers, shape.dtype), array(numbers, "float32")
    neighbors = array((shape.edges,), "int32")
    weights = array((shape.edges, shape.heads), "float32")

    scale = array((shape.rows,), "float32")
    yield "sum", neighbor_sum, (Neighbors(x, neighbors), rows, y)
    weighted = Neighbors(x, neighbors, weights, neighbors)
    yield "weighted sum, transposed", neighbor_sum, (weighted, rows, y)
    results = (
        jax.ShapeDtypeStruct(numbers, shape.dtype),
        jax.ShapeDtypeStruct((shape.rows, 1), "float32"),
    )
    yield (
        "mean",
        lambda edges, rows: neighbor_mean(edges, rows, results),
        (Neighbors(x, neighbors), rows),
    )
    yield "mean, transposed", neighbor_sum, (Neighbors(x, neighbors, scale=scale), rows, y)
    yield "products per edge", edge_products, (x, x, rows, neighbors, weights)
    sums, totals = (array((shape.rows, shape.heads), each) for each in (shape.dtype, "float32"))
    yield "sums per edge", edge_sums, (sums, sums, rows, neighbors, weights)
    yield "sums of edges", neighbor_sum, (Neighbors(weights, neighbors), rows, totals)
    yield from attention_cases(shape, array, rows, neighbors)
    yield from program_cases(array, rows, neighbors, y)
    if shape.heads == 1:
        yield (
            "maximum",
            lambda *a: neighbor_extremum(*a, maximum=True),
            (x, rows, neighbors, (y, y)),
        )
        yield (
            "gradient of a maximum",
            winner_gradient,
            (x, rows, neighbors, (x, y), y),
        )


def program_cases(
    array: Callable[..., Any], rows: Any, neighbors: Any, y: Any
) -> Iterator[tuple[str, Callable, tuple]]:
    """Sums of a gate, sigmoid(x_i + z_j) z_j, and of its gradients by both ends."""
    import jax.numpy as jnp

    from pallas_kernels.edge_program import Tables, program_sums

    def sigmoid(x: Any, z: Any) -> Any:
        return 1.0 / (1.0 + jnp.exp(-(x + z)))

    def forward(own: Any, others: Any, numbers: Any, parameters: Any) -> list[Any]:
        return [sigmoid(own[0], others[0]) * others[0]]

    def pulled(own: Any, others: Any, numbers: Any, parameters: Any) -> list[Any]:
        gate = sigmoid(own[0], others[0])
        return [own[1] * others[0] * gate * (1.0 - gate)]

    for name, function, own in (("gate", forward, [y]), ("gate, gradient", pulled, [y, y])):
        tables = Tables(own, [y], [], [], neighbors, None)
        yield (
            name,
            lambda tables, rows, y, f=function: program_sums(f, tables, rows, [y]),
            (tables, rows, y),
        )


def attention_cases(
    shape: Any, array: Callable[..., Any], rows: Any, neighbors: Any
) -> Iterator[tuple[str, Callable, tuple]]:
    """Every kind of attention at a shape, without dropout, and its gradients."""
    import jax

    from pallas_kernels.attention import Attention, attention_output, attention_state
    from pallas_kernels.attention_gradient import (
        Edges,
        Gradients,
        attention_gradients,
        make_adjoint,
    )
    from pallas_kernels.attention_logits import DOT, GAT, GATV2, Logits

    columns = shape.heads * shape.width
    per_head = array((shape.rows, shape.heads), "float32")
    x, wide = (array((shape.rows, columns), dtype) for dtype in (shape.dtype, "float32"))
    edges = Edges(rows, neighbors, neighbors)

    def pull(attention: Any, gradient: Any, numbers: Any, edges: Any, before: Any) -> Any:
        adjoint = make_adjoint(attention, gradient, *numbers)
        return attention_gradients(attention, adjoint, edges, edges, before)

    for kind in (GAT, GATV2, DOT):
        side, slope = (per_head, per_head) if kind == GAT else (x, wide)
        vector = array((1, columns), "float32") if kind == GATV2 else None
        values, sums = (None, None) if kind == GATV2 else (x, wide)
        attention = Attention(side, side, vector, values, None, shape.heads, Logits(kind, 0.2))
        state = (per_head, per_head, wide)
        results = tuple(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (*state[:2], x))
        yield (
            f"{kind} attention",
            lambda attention, rows, neighbors, results=results: attention_output(
                attention, rows, neighbors, results
            ),
            (attention, rows, neighbors),
        )
        yield f"{kind} attention, resumed", attention_state, (attention, rows, neighbors, state)
        of_vector = array((columns,), "float32") if kind == GATV2 else None
        before = Gradients(sums, slope, slope, of_vector)
        shared = array((shape.rows, shape.width), shape.dtype)
        for name, gradient in (("gradients", x), ("gradients, shared", shared)):
            if gradient is x or shape.heads > 1:
                case = (attention, gradient, (per_head,) * 3, edges, before)
                yield f"{kind} {name}", pull, case


def main() -> None:
    """Compiles the kernels and prints a table."""
    from pallas_kernels.shapes import SHAPES

    parser = make_parser(__doc__)
    parser.add_argument("--kernel", default="", help="only kernels whose name contains this")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="only this shape")
    parser.add_argument(
        "--spread", action="store_true", help="with a row too long for the blocks of a cluster"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Read once, when the compiler starts.
        os.environ |= DUMPS | {"MOSAIC_GPU_DUMP_TO": folder}
        rows = [
            row
            for name, shape in SHAPES.items()
            if options.shape in (None, name)
            for row in compiled(name, shape, options, Path(folder))
        ]
    report("Kernels compiled for an H200", rows, options.json)


def compiled(
    name: str, shape: Any, options: argparse.Namespace, folder: Path
) -> Iterator[dict[str, Any]]:
    """Compiles the kernels at a shape."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    from jaxgraph.planner.targets import find_target

    placed = NamedSharding(find_target("h200").mesh(emulate=False), PartitionSpec())

    def array(sizes: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=placed)

    for kernel, function, arrays in cases(shape, array, spread=options.spread):
        if options.kernel not in kernel:
            continue
        for stale in folder.iterdir():
            stale.unlink()
        jax.jit(function).lower(*arrays).compile()
        for code in read_code(folder):
            yield {"shape": name, "kernel": kernel, **code}


if __name__ == "__main__":
    main()
