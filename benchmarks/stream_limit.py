"""Training of a streamed graph within a limit of memory that the system enforces.

    python -m benchmarks.stream_limit --limit 80MB --folder DIR

The graph is generated, with communities. `jaxgraph.planner.fewest_parts` cuts it for the limit. A
process opens the parts, compiles, and forbids itself more data than it has by then plus the limit
(RLIMIT_DATA: memory that no file backs). Then it trains. The same limit ends a run on one device;
without it, that run tells the time of an epoch, and its compiled program the memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import jaxgraph as jg
from benchmarks.command_line import make_parser, write_figures
from benchmarks.cpu.resident import peak_bytes, reset_peak, resident_bytes, settle
from benchmarks.generated import Shape, generate
from benchmarks.stream import CLASSES, FEATURES, in_own_process, make_model, open_graph
from jaxgraph.byte_amounts import bytes_of

EPOCHS = 3


def data_bytes() -> int:
    """The data of this process: memory that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def repeated(seconds: float, work: Callable[[], object]) -> Iterator[None]:
    """Calls a function again and again in a thread, while the context is entered."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def write_parts(folder: str, options: Any) -> None:
    """Writes a graph for one device, and cut for the limit."""
    from jaxgraph.planner import fewest_parts

    shape = Shape(options.nodes, options.degree * options.nodes, FEATURES, CLASSES)
    graph = generate(shape)
    model, optimizer = make_model(options.layers)
    cut = fewest_parts(model, graph, optimizer, options.limit, seed=0)
    whole = jg.partition.partition(graph, 1)
    for name, parts in {"core": whole, "stream": cut}.items():
        path = Path(folder) / name
        path.mkdir()
        jg.parallel.write_parts(graph, parts, path / "parts", "sar")


def worker(name: str, folder: str, limit: int, options: Any) -> dict[str, Any]:
    """Trains; with a limit above 0, within it."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    of_stream = name == "stream"
    sharded = open_graph(f"{folder}/{name}", "rows" if of_stream else "core", str(options.folder))
    model, optimizer = make_model(options.layers)
    needs: list[int] = []

    def compiled(programs: Any) -> None:
        settle()
        reset_peak()
        before.append((data_bytes(), resident_bytes()))
        if not of_stream:
            memory = programs[0].memory_analysis()
            needs.append(memory.argument_size_in_bytes + memory.temp_size_in_bytes)
        if limit:
            most = data_bytes() + limit
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    before: list[tuple[int, int]] = []
    data: list[int] = []
    with repeated(0.01, lambda: data.append(data_bytes())):
        try:
            history = jg.train.fit(
                model,
                sharded,
                optimizer,
                epochs=EPOCHS,
                aggregate_once=False,
                on_compile=compiled,
            )
        except Exception as error:
            return {"error": str(error).splitlines()[0][:200]}
    if history.needs is not None:
        needs.append(history.needs.device)
    return {
        "parts": sharded.num_parts,
        "seconds": statistics.median(history.epoch_seconds[1:]),
        "needs": needs[0],
        "data": max(data) - before[0][0],
        "resident": peak_bytes() - before[0][1],
        "loss": history.loss[-1],
    }


def run(arguments: list[Any], options: Any) -> str:
    """Runs this module in a process of its own."""
    names = ("nodes", "degree", "layers", "limit", "folder")
    same = [text for name in names for text in (f"--{name}", getattr(options, name))]
    return in_own_process("benchmarks.stream_limit", [*arguments, *same])


def show(found: dict[str, dict[str, Any]], options: Any) -> None:
    """Prints the table."""
    core = found["one device"]
    table = Table(
        title=f"GCN, {options.layers} layers of {FEATURES}, {options.nodes:,} nodes of degree "
        f"{options.degree}, limit {options.limit}"
    )
    columns = ("", "parts", "epoch", "times", "needs", "data taken", "resident", "loss")
    for column in columns:
        table.add_column(column, justify="right")
    for name, row in found.items():
        if "error" in row:
            table.add_row(name, row["error"])
            continue
        table.add_row(
            name,
            str(row["parts"]),
            f"{row['seconds']:.2f} s",
            f"{row['seconds'] / core['seconds']:.2f}",
            *(f"{row[each] / 1e6:,.0f} MB" for each in ("needs", "data", "resident")),
            f"{row['loss']:.5f}",
        )
    Console(width=150).print(table)


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--nodes", type=int, default=131_072)
    parser.add_argument("--degree", type=int, default=30)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--limit", default="80MB")
    parser.add_argument("--folder", type=Path, required=True, help="of a disk, for the parts")
    parser.add_argument("--write", help=argparse.SUPPRESS)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write_parts(options.write, options)
        return
    if options.worker:
        name, folder, limit = options.worker
        print(json.dumps(worker(name, folder, int(limit), options)))
        return
    limit = bytes_of("--limit", options.limit)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        run(["--write", folder], options)
        rows = {
            "one device": ("core", 0),
            "one device, limited": ("core", limit),
            "streamed, limited": ("stream", limit),
        }
        found = {
            title: json.loads(run(["--worker", name, folder, str(most)], options))
            for title, (name, most) in rows.items()
        }
    show(found, options)
    figures = [{"run": title, **row} for title, row in found.items()]
    write_figures(options.json, figures)


if __name__ == "__main__":
    main()
