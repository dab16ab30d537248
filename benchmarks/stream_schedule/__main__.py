"""The schedule of a streamed graph: bytes by kind, gain of each of its parts, overlap and order.

    python -m benchmarks.stream_schedule bytes --folder DIR
    python -m benchmarks.stream_schedule breakdown --folder DIR
    python -m benchmarks.stream_schedule overlap --folder DIR
    python -m benchmarks.stream_schedule orders --folder DIR
    python -m benchmarks.stream_schedule h200 --folder DIR   # needs pip install 'jaxgraph[cuda]'

The graph is generated, with communities, and METIS cuts it. Parts stay in `--written`, where
it is given, and are taken from there by the next run. The commands follow NeuGraph (section 5.2).

- `bytes` counts what an epoch sends, by a rehearsal, without and with selective transfer. The
  formula is that of section 3.1: forward, each chunk of edges leaves the host once in a layer, and
  each chunk of rows once for each turn of other parts.
- `breakdown` (figure 15) starts from XLA's aggregation of whole parts, where each load, program and
  write is awaited. It adds the library's kernel, the packing of rows that are read, and overlap.
- `overlap` (table 2) times loads, programs and writes one by one, and the epoch that overlaps them.
  From these times it simulates two machines in a row, loads and programs, for each pass over the
  parts: as it is, with NeuGraph's swaps, and with room for any number of loads, then in the order
  of Johnson's rule. With room no order takes less than that, and this one may read an array before
  it was written. What each saves is given with the times of the loads, then with loads that take
  time by their bytes, in all 1/4, 1/2, 1, 2 and 4 times that of the programs.
- `orders` (figure 16) is the backward in rows and in columns, with the schedule of the library, and
  plain: whole parts, one by one.
- `h200` compiles the epoch for H200s that are not there.

Commands run in a process with the settings of `benchmarks.stream`. Each `fit` drops its first
epoch; rounds alternate; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.command_line import make_parser, write_figures
from benchmarks.stream import FEATURES, in_own_process
from benchmarks.stream_schedule.figures import FIGURES

Row = Mapping[str, Any]
Cells = dict[str, str]
MANY = ("overlap", "h200")
"""Commands whose default is several numbers of parts."""


def written(parts: int, folder: Path, options: Any) -> Path:
    """The folder of the graph's parts, which are written if they are not there."""
    path = folder / f"{options.nodes}-{options.degree}-{parts}"
    if not path.exists():
        path.mkdir()
        shape = ("--nodes", options.nodes, "--degree", options.degree)
        in_own_process("benchmarks.stream", ["--write", parts, path, *shape])
    return path


def measure(options: Any, folder: Path) -> list[Row]:
    """Runs a command in a process of its own."""
    for parts in options.parts:
        written(parts, folder, options)
    given = ["layers", "nodes", "degree", "rounds", "epochs"]
    named = [each for name in given for each in (f"--{name}", getattr(options, name))]
    scratch = ["--folder", options.folder] if options.folder else []
    arguments = [options.command, *named, *scratch, "--written", folder, "--worker"]
    output = in_own_process("benchmarks.stream_schedule", [*arguments, "--parts", *options.parts])
    return json.loads(output.splitlines()[-1])


def worker(options: Any) -> None:
    """Prints the rows of a command."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    folders = {parts: written(parts, options.written, options) for parts in options.parts}
    print(json.dumps(list(FIGURES[options.command](folders, options))))


def _mb(size: float) -> str:
    return f"{size / 1e6:,.0f} MB"


def cells_of_bytes(row: Row) -> Cells:
    """The cells of a row of `bytes`."""
    return {
        "parts": str(row["parts"]),
        "devices": str(row["devices"]),
        "selective": "yes" if row["selective"] else "no",
        "sent": _mb(row["sent"]),
        "edges and other arrays": _mb(row["arrays"]),
        "own rows": _mb(row["own rows"]),
        "rows of other parts": _mb(row["other rows"]),
        "forward: edges sent": f"{row['forward_edges_times']:.2f} times",
        "rows of others": _mb(row["forward_other_rows"]),
        "of these read": _mb(row["forward_read"]),
        "formula": _mb(row["forward_formula"]),
    }


def cells_of_versions(row: Row) -> Cells:
    """The cells of a row of `breakdown` or `orders`."""
    cells = {
        "parts": str(row["parts"]),
        "version": row["version"],
        "epoch": f"{row['seconds']:.2f} s",
        "least to most": f"{row['least']:.2f} to {row['most']:.2f}",
        "sent": _mb(row["sent"]),
        "back": _mb(row["returned"]),
    }
    return cells | ({"speedup": f"{row['speedup']:.2f}"} if "speedup" in row else {})


def cells_of_overlap(row: Row) -> Cells:
    """The cells of a row of `overlap`."""
    found, links = row["simulated"], row["links"]
    return {
        "parts": str(row["parts"]),
        **{name: f"{row[name]:.2f} s" for name in ("loads", "programs", "returned")},
        "one by one": f"{row['one_by_one']:.2f} s",
        "pipeline": f"{row['pipeline']:.2f} s",
        **{f"simulated: {name}": f"{seconds:.3f} s" for name, seconds in found.items()},
        "saved by swaps": _saved([found, *links.values()], "now", "swaps"),
        "by room": _saved([found, *links.values()], "now", "room"),
        "then by Johnson": _saved([found, *links.values()], "room", "johnson"),
    }


def _saved(found: Sequence[Mapping[str, float]], before: str, after: str) -> str:
    """The shares of the passes of an epoch that a change saves."""
    return " ".join(f"{(each[before] - each[after]) / each['now']:.1%}" for each in found)


def cells_of_h200(row: Row) -> Cells:
    """The cells of a row of `h200`."""
    return {
        "H200s": str(row["devices"]),
        "parts": str(row["parts"]),
        "memory of each": _mb(row["device"]),
        "waits on the host": _mb(row["host"]),
        "sent": _mb(row["sent"]),
        "back": _mb(row["returned"]),
        "compiled in": f"{row['seconds_to_compile']:.0f} s",
    }


CELLS: dict[str, Callable[[Row], Cells]] = {
    "bytes": cells_of_bytes,
    "breakdown": cells_of_versions,
    "overlap": cells_of_overlap,
    "orders": cells_of_versions,
    "h200": cells_of_h200,
}


def show(rows: Sequence[Row], options: Any) -> None:
    """Prints the table of a command."""
    table = Table(
        title=f"{options.command}: GCN, {options.layers} layers of {FEATURES}, "
        f"{options.nodes:,} nodes of degree {options.degree}"
    )
    cells = [CELLS[options.command](row) for row in rows]
    for column in cells[0]:
        table.add_column(column, justify="right")
    for each in cells:
        table.add_row(*each.values())
    Console(width=180).print(table)


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("command", choices=list(FIGURES))
    parser.add_argument("--nodes", type=int, default=131_072)
    parser.add_argument("--degree", type=int, default=30)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--parts", type=int, nargs="+", help="default: 8, or 4 8 16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3, help="of each round; the first is dropped")
    parser.add_argument("--folder", type=Path, help="of a disk; parts wait in memory if left")
    parser.add_argument("--written", type=Path, help="where the graph's parts stay")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    options.parts = options.parts or ([4, 8, 16] if options.command in MANY else [8])
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        rows = measure(options, options.written or Path(temporary))
    show(rows, options)
    write_figures(options.json, rows)


if __name__ == "__main__":
    main()
