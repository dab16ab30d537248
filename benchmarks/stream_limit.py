"""Training of a streamed graph within a limit of memory that the system enforces.

    python -m benchmarks.stream_limit --limit 80MB --folder DIR

The graph is generated, with communities. `jaxgraph.planner.fewest_parts` cuts it for the limit. A
process opens the parts, compiles, and forbids itself more data than it has by then plus the limit
(RLIMIT_DATA: memory that no file backs). Then it trains. The same limit ends a run on one device;
without it, that run tells the time of an epoch, and its compiled program the memory.
"""

from __future__ import annotations

import contextlib
import resource
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxgraph as jg
from benchmarks.command_line import make_parser, report
from benchmarks.cpu.resident import peak_bytes, reset_peak, resident_bytes, settle
from benchmarks.generated import Shape, generate
from benchmarks.stream import CLASSES, FEATURES, apart, make_model, open_graph
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


def write_parts(folder: Path, options: Any) -> None:
    """Writes a graph for one device, and cut for the limit."""
    from jaxgraph.planner import fewest_parts

    shape = Shape(options.nodes, options.degree * options.nodes, FEATURES, CLASSES)
    graph = generate(shape)
    model, optimizer = make_model(options.layers)
    cut = fewest_parts(model, graph, optimizer, options.bytes, seed=0)
    whole = jg.partition.partition(graph, 1)
    for name, parts in {"core": whole, "stream": cut}.items():
        jg.parallel.write_parts(graph, parts, folder / name, "sar")


def worker(name: str, folder: Path, limit: int, options: Any) -> dict[str, Any]:
    """Trains; with a limit above 0, within it."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    of_stream = name == "stream"
    sharded = open_graph(folder / name, of_stream, options.folder)
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
            return {"loss": str(error).splitlines()[0][:200]}
    if history.needs is not None:
        needs.append(history.needs.device)
    return {
        "parts": sharded.num_parts,
        "epoch_seconds": statistics.median(history.epoch_seconds[1:]),
        "needs_MB": needs[0] / 1e6,
        "data_MB": (max(data) - before[0][0]) / 1e6,
        "resident_MB": (peak_bytes() - before[0][1]) / 1e6,
        "loss": history.loss[-1],
    }


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--nodes", type=int, default=131_072)
    parser.add_argument("--degree", type=int, default=30)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--limit", default="80MB")
    parser.add_argument("--folder", type=Path, required=True, help="of a disk, for the parts")
    options = parser.parse_args()
    options.bytes = bytes_of("--limit", options.limit)
    wanted = {
        "one device": ("core", 0),
        "one device, limited": ("core", options.bytes),
        "streamed, limited": ("stream", options.bytes),
    }
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = Path(temporary)
        apart(write_parts, folder, options)
        for title, (name, most) in wanted.items():
            rows.append({"run": title} | apart(worker, name, folder, most, options))
    report(f"GCN within {options.limit}, {options.nodes:,} nodes", rows, options.json)


if __name__ == "__main__":
    main()
