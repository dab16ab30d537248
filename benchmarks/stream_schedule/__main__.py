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

import tempfile
from pathlib import Path

from benchmarks.command_line import make_parser, report
from benchmarks.generated import Shape
from benchmarks.stream import CLASSES, FEATURES, apart, write
from benchmarks.stream_schedule.figures import FIGURES, measured

MANY = ("overlap", "h200")
"""Commands whose default is several numbers of parts."""


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
    options = parser.parse_args()
    shape = Shape(options.nodes, options.degree * options.nodes, FEATURES, CLASSES)
    folders: dict[int, Path] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        for parts in options.parts or ([4, 8, 16] if options.command in MANY else [8]):
            name = f"{options.nodes}-{options.degree}-{parts}"
            folders[parts] = Path(options.written or temporary, name)
            if not folders[parts].exists():
                apart(write, shape, parts, folders[parts])
        rows = apart(measured, options.command, folders, options)
    title = (
        f"{options.command}: GCN, {options.layers} layers of {FEATURES}, {options.nodes:,} nodes"
    )
    report(title, rows, options.json)


if __name__ == "__main__":
    main()
