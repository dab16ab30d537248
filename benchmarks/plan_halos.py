"""The shapes of parts that a plan from counts alone assumes, against those of graphs.

    python -m benchmarks.plan_halos

Printed are the halo over own rows as METIS leaves it, and assumed over real: rows that mode "sar"
sends and that "domain" sends, padding included, and bytes of a device's arrays. The halo share of
METIS is given to the model (`GraphCounts.halo_share`); that of hash is predicted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import jaxgraph as jg
from benchmarks.command_line import make_parser, write_figures
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.placed import placed_shapes
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.parallel.exchange import rows_sent
from jaxgraph.planner.degree_model import METHODS, GraphCounts, counted_manifest

REAL = ("cora", "citeseer", "pubmed", "amazon-photo", "coauthor-cs", "blogcatalog", "ppi")


@dataclasses.dataclass(frozen=True)
class Row:
    """A graph and its cut: the real halo share, and assumed over real sizes."""

    graph: str
    method: str
    parts: int
    halo_share: float
    halo: float
    sar_rows: float
    domain_rows: float
    sar_bytes: float
    domain_bytes: float


def generated() -> Iterator[jg.Graph]:
    """Power laws of several exponents with communities, without them, and a grid."""
    sizes: dict[str, Any] = {"num_nodes": 20_000, "degree": 16, "num_features": 32, "seed": 1}
    for exponent in (2.1, 2.5, 3.0):
        for kind in ("sbm", "chung-lu"):
            graph = jg.datasets.load(kind, **sizes, degree_exponent=exponent)
            yield graph.replace(name=f"{kind} {exponent}")
    yield jg.datasets.load("random", **sizes)
    side = 140
    ids = np.arange(side * side).reshape(side, side)
    ends = [(ids[1:], ids[:-1]), (ids[:, 1:], ids[:, :-1])]
    senders, receivers = (np.concatenate([each[end].ravel() for each in ends]) for end in (0, 1))
    grid = jg.Graph.from_edges(senders, receivers, num_nodes=side * side, name="grid")
    yield jg.transforms.to_undirected(grid)


def bare(graph: jg.Graph) -> jg.Graph:
    """The edges alone, with features, labels and masks of the sizes that counts stand for."""
    nodes = graph.num_nodes
    names = ("train_mask", "val_mask", "test_mask")
    masks = {name: np.arange(nodes) % 3 == third for third, name in enumerate(names)}
    return jg.Graph.from_edges(
        graph.senders,
        graph.receivers,
        num_nodes=nodes,
        nodes=np.zeros((nodes, 32), np.float32),
        labels=np.zeros(nodes, np.int32),
        name=graph.name,
        **masks,
    )


def compare(graph: jg.Graph, method: str, parts: int) -> Row:
    """The model of the degrees against the graph."""
    cut = jg.partition.partition(graph, parts, method=method)
    share = jg.partition.report(graph, cut).halo_total / graph.num_nodes
    counts = GraphCounts(
        graph.num_nodes,
        graph.num_edges,
        graph.num_features,
        2,
        degrees="uniform" if graph.name in ("random", "grid") else "power-law",
        halo_share=share if method == "metis" else None,
    )
    found: dict[str, float] = {}
    for mode in ("sar", "domain"):
        real = tabulate(graph, cut, mode).manifest
        made = counted_manifest(counts, parts, mode, method)
        found[f"{mode}_rows"] = _sent(made) / _sent(real)
        found[f"{mode}_bytes"] = _size(made) / _size(real)
        assert real.counts is not None and made.counts is not None
        found["halo"] = made.counts.halo_rows_needed / real.counts.halo_rows_needed
    return Row(graph.name, method, parts, share, **found)


def _sent(manifest: Manifest) -> int:
    if manifest.mode == "domain":
        return manifest.num_parts * (manifest.num_parts - 1) * manifest.halo_rows
    return rows_sent(manifest.halo_units, manifest.halo_unit)


def _size(manifest: Manifest) -> int:
    shapes = placed_shapes(manifest, "cpu").values()
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes)


def show(rows: Sequence[Row]) -> None:
    """Prints the rows, and the median and the largest error of each column."""
    names = ("halo", "sar_rows", "domain_rows", "sar_bytes", "domain_bytes")
    table = Table(title="Sizes of parts, assumed over real")
    for column in ("graph", "cut by", "parts", "halo share", *names):
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        values = (f"{getattr(row, name):.2f}" for name in names)
        table.add_row(row.graph, row.method, str(row.parts), f"{row.halo_share:.2f}", *values)
    for method in METHODS:
        errors = [
            np.abs([getattr(row, name) - 1 for row in rows if row.method == method])
            for name in names
        ]
        for word, of in (("median", np.median), ("largest", np.max)):
            table.add_row(f"{word} error", method, "", "", *(f"{of(each):.2f}" for each in errors))
    Console(width=110).print(table)


def main() -> None:
    """Reads the command line, compares and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--parts", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--real", nargs="*", default=REAL, help="data sets, where JAXGRAPH_DATA is")
    options = parser.parse_args()
    load = jg.datasets.load
    real = (load(n, features=False) if n == "pubmed" else load(n) for n in options.real)
    rows = [
        compare(bare(graph), method, parts)
        for graph in (*generated(), *real)
        for method in METHODS
        for parts in options.parts
    ]
    show(rows)
    write_figures(options.json, map(dataclasses.asdict, rows))


if __name__ == "__main__":
    main()
