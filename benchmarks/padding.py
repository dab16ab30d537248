"""The cost of padding: stored edge slots and sent halo rows over those needed, by schedule.

Nothing is placed on a device: shapes suffice. Padding slots after the last edge, into which the
last chunk may reach, count as stored. Mode "sar" sends units of rows between the pairs of parts
that need them, mode "domain" one message of equal size between all pairs.

    python -m benchmarks.padding --data-dir DIR
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

import jaxgraph as jg
from benchmarks.command_line import make_parser, write_figures
from jaxgraph.layout.derived.rows import edge_sizes
from jaxgraph.layout.manifest import Padding
from jaxgraph.layout.shard_tables import tabulate


@dataclasses.dataclass(frozen=True)
class Row:
    """One schedule on one partition."""

    partition: str
    mode: str
    chunk: int
    halo_unit: int
    padding: Padding


def measure(dataset: str, data_dir: Path | None, num_parts: int) -> Iterator[Row]:
    """Shards the dataset's shapes under every balance and mode."""
    graph = jg.datasets.load(dataset, data_dir=data_dir)
    mesh = jg.parallel.make_mesh(num_parts)
    for method, balance in (("metis", "edges"), ("metis", "nodes"), ("hash", "nodes")):
        parts = jg.partition.partition(graph, num_parts, method=method, balance=balance, seed=0)
        name = f"metis, {balance}" if method == "metis" else method
        for mode in ("sar", "domain"):
            source = jg.parallel.AbstractSource(tabulate(graph, parts, mode).manifest)
            padding = jg.parallel.place(source, mesh, mode).padding()
            chunk = edge_sizes(source.manifest)["incoming"].chunk
            yield Row(name, mode, chunk, source.manifest.halo_unit, padding)


def report(rows: list[Row], title: str, console: Console) -> None:
    """Prints the rows as a table."""
    table = Table("method, balance", "mode", title=title)
    for heading in ("edge slots", "/ edges", "halo rows", "/ needed", "rows / nodes"):
        table.add_column(heading, justify="right")
    for row in rows:
        padding = row.padding
        table.add_row(
            row.partition,
            row.mode,
            f"{padding.edge_slots:,}",
            f"{padding.edge_ratio:.3f}",
            f"{padding.halo_rows_sent:,}",
            f"{padding.halo_ratio:.3f}",
            f"{padding.node_ratio:.3f}",
        )
    console.print(table)


def main() -> None:
    """Parses the command line, measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--dataset", default="coauthor-cs")
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("JAXGRAPH_DATA"))
    parser.add_argument("--parts", type=int, default=8)
    options = parser.parse_args()
    jg.parallel.emulate_devices(options.parts)
    rows = list(measure(options.dataset, options.data_dir, options.parts))
    report(rows, f"Padding of {options.dataset} in {options.parts} parts", Console())
    write_figures(options.json, map(dataclasses.asdict, rows))


if __name__ == "__main__":
    main()
