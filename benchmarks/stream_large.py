"""A graph of several times a limit of memory, trained from a disk: its time beside the disk's own.

    python -m benchmarks.stream_large --nodes 9e6 --edges 90e6 --limit 4GB --folder DIR

The graph is generated, with communities, and is never in memory. A community is 1,000 nodes with
ids side by side, as a crawl or a clustering leaves them. Nine of ten edges stay in a community; the
others join nodes that a power law draws. `jaxgraph.external` cuts its files into parts of equal
ranges of ids, under RLIMIT_DATA (memory that no file backs). A second process copies the parts to
the store of mode "stream", deletes them, compiles, and forbids itself more data than it has by then
plus the limit. Then it trains a GCN of 2 layers.

"data" and "resident" are peaks beyond what the process has once it has compiled; mapped files are
resident and no data. "disk" is the most that parts and store take of it. The working set is the
arrays of all parts and the most that waits beside them. The page cache is no part of the limit, and
would hold much of the graph: every two seconds the process drops its files from it.
Programs send and return bytes; the disk reads and writes those that the page cache does not serve.
The disk alone is the time that it takes for as many bytes in order, in a file of the same folder.
"predict" starts without the page cache and may use it then: it reads features and edges once, where
the narrow rows that the model makes of the features fit there.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import jaxgraph as jg
from benchmarks.command_line import make_parser, report
from benchmarks.cpu.resident import peak_bytes, reset_peak, resident_bytes, settle
from benchmarks.large_edges import power_law_ids
from benchmarks.stream import CLASSES, FEATURES, apart
from benchmarks.stream_limit import data_bytes, repeated
from jaxgraph.byte_amounts import bytes_of
from jaxgraph.external import Request, partition_file

HIDDEN, COMMUNITY = 64, 1_000
INSIDE = 0.9
"""The share of the edges inside a community."""
LEAST_FOR_CUT = 10**9
_CHUNK, _BLOCK = 1 << 18, 1 << 24


def make_edges(path: Path, nodes: int, edges: int, rng: np.random.Generator) -> None:
    """Writes one direction of every edge of both, a chunk at a time, to an .npy file."""
    table = np.lib.format.open_memmap(path, "w+", np.int32, (edges // 2, 2))
    scatter = int(0.618 * nodes) | 1
    for first in range(0, len(table), _CHUNK):
        pairs = table[first : first + _CHUNK]
        pairs[:] = power_law_ids(rng.random(pairs.shape), nodes, scatter)
        inside = rng.random(len(pairs)) < INSIDE
        start = rng.integers(0, nodes, (inside.sum(), 1)) // COMMUNITY * COMMUNITY
        stop = np.minimum(start + COMMUNITY, nodes)
        pairs[inside] = rng.integers(start, stop, (len(start), 2))


def make_nodes(folder: Path, nodes: int, rng: np.random.Generator) -> None:
    """Writes features, labels and splits, a chunk at a time, to .npy files.

    Features are whole numbers, so that their file has a byte for each. The parts have float32.
    """
    kinds: dict[str, Any] = {"nodes": (np.int8, (nodes, FEATURES)), "labels": (np.uint8, (nodes,))}
    kinds |= {f"{split}_mask": (np.bool_, (nodes,)) for split in ("train", "val", "test")}
    files = {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+", *kind)
        for name, kind in kinds.items()
    }
    means = rng.integers(-1, 2, (CLASSES, FEATURES), np.int8)
    for first in range(0, nodes, _CHUNK):
        ids = np.arange(first, min(first + _CHUNK, nodes))
        labels, split = ids // COMMUNITY * 7919 % CLASSES, rng.integers(0, 10, len(ids))
        noise = rng.integers(-2, 3, (len(ids), FEATURES), np.int8)
        found = {"nodes": means[labels] + noise, "labels": labels}
        found |= {"train_mask": split < 6, "val_mask": split == 6, "test_mask": split > 6}
        for name, values in found.items():
            files[name][ids[0] : ids[-1] + 1] = values


def prepare(folder: Path, options: Any) -> dict[str, Any]:
    """Writes the files of the graph, cuts them into parts, deletes them, and returns figures."""
    started, rng = time.perf_counter(), np.random.default_rng(0)
    files, nodes = folder / "files", int(options.nodes)
    (files / "nodes").mkdir(parents=True)
    make_edges(files / "edges.npy", nodes, int(options.edges), rng)
    make_nodes(files / "nodes", nodes, rng)
    made = time.perf_counter()
    limit = max(bytes_of("--limit", options.limit), LEAST_FOR_CUT)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    source = {"source": files / "edges.npy", "node_data": files / "nodes", "num_nodes": nodes}
    cut = {"num_parts": options.parts, "method": "equal-vertices", "undirected": True}
    request: Any = Request(**source, **cut)
    found = partition_file(request, folder / "parts", memory_limit=limit)
    shutil.rmtree(files)
    return {
        "edges": found.folder.graph.num_edges,
        "cut_edges": found.report.edge_cut,
        "make_seconds": made - started,
        "cut_seconds": time.perf_counter() - made,
        "cut_resident": peak_bytes(),
    }


def disk_speeds(folder: Path, size: int) -> tuple[float, float]:
    """Bytes a second of reading and of writing a file in order, without the page cache."""
    block = np.random.default_rng(0).integers(0, 256, _BLOCK, np.uint8).data
    times = [time.perf_counter()]
    with tempfile.NamedTemporaryFile(dir=folder, buffering=0) as file:
        while (written := file.tell()) < size:
            file.write(block)
        os.fsync(file.fileno())
        times.append(time.perf_counter())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        times.append(time.perf_counter())
        while file.read(_BLOCK):
            pass
        times.append(time.perf_counter())
    return written / (times[3] - times[2]), written / (times[1] - times[0])


def store_files() -> dict[int, int]:
    """The bytes on the disk of the files of the store, by descriptor: they have no names."""
    found = {}
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # It was closed meanwhile.
            if str(each.readlink()).endswith(" (deleted)"):
                found[int(each.name)] = each.stat().st_blocks * 512
    return found


def drop_cache() -> None:
    """Drops the store from the page cache."""
    for number in store_files():
        with contextlib.suppress(OSError):
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)


def disk_traffic() -> np.ndarray:
    """The bytes that this process has read from disks and written to them so far."""
    rows = (line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    found = {name: int(value) for name, value in rows}
    return np.array([found["read_bytes"], found["write_bytes"]])


def train(folder: Path, options: Any) -> dict[str, Any]:
    """Trains on the parts of a folder within the limit, and returns figures."""
    import jax
    import optax
    from flax import nnx

    jax.config.update("jax_platforms", "cpu")
    started, limit = time.perf_counter(), bytes_of("--limit", options.limit)
    source, mesh = jg.parallel.open_parts(folder / "parts"), jg.parallel.make_mesh(1)
    graph: Any = jg.parallel.place(source, mesh, "stream", folder=folder)
    of_parts = sum(file.bytes for file in source.files.values())
    shutil.rmtree(folder / "parts")
    placed, stored = time.perf_counter(), sum(store_files().values())
    model = jg.nn.GCN(FEATURES, HIDDEN, CLASSES, num_layers=2, rngs=nnx.Rngs(0))
    before: list[Any] = []
    data: list[int] = []

    def compiled(programs: Any) -> None:
        settle()
        reset_peak()
        before.extend((time.perf_counter(), data_bytes(), resident_bytes(), disk_traffic()))
        resource.setrlimit(resource.RLIMIT_DATA, (before[1] + limit,) * 2)

    with repeated(0.01, lambda: data.append(data_bytes())), repeated(2, drop_cache):
        history = jg.train.fit(
            model,
            graph,
            optax.adam(1e-2),
            epochs=options.epochs,
            memory_limit=limit,
            aggregate_once=False,
            on_compile=compiled,
        )
    read, written = (disk_traffic() - before[3]) // options.epochs
    needs: Any = history.needs
    predicted = predict(model, graph)
    return {
        "place_seconds": placed - started,
        "compile_seconds": before[0] - placed,
        **{f"epoch_{each.epoch}_seconds": each.seconds for each in history.records},
        "working_set": stored + needs.host,
        "features": graph.num_nodes * FEATURES * 4,
        "disk": max(of_parts + stored, sum(store_files().values())),
        "rehearsed": needs.device,
        "data_before": before[1],
        "data": max(data) - before[1],
        "resident": peak_bytes() - before[2],
        "sent": needs.sent,
        "returned": needs.returned,
        "read": int(read),
        "written": int(written),
        **predicted,
        "loss": history.loss[-1],
    }


def predict(model: Any, graph: Any) -> dict[str, Any]:
    """Computes the outputs of all nodes, and returns figures."""
    os.sync()  # Pages that wait to be written cannot be dropped.
    drop_cache()
    started, before = time.perf_counter(), disk_traffic()
    jg.train.predict(model, graph)
    read, written = disk_traffic() - before
    return {
        "predict_seconds": time.perf_counter() - started,
        "predict_read": int(read),
        "predict_written": int(written),
    }


def measure(folder: Path, options: Any) -> dict[str, Any]:
    """Prepares and trains in processes of their own, and measures the disk between them."""
    prepared = apart(prepare, folder, options)
    read, write = disk_speeds(folder, min(int(options.nodes) * FEATURES, 2 * 10**9))
    row = prepared | apart(train, folder, options)
    return row | {
        "disk_reads_a_second": read,
        "disk_writes_a_second": write,
        "disk_alone_sent_and_returned_seconds": row["sent"] / read + row["returned"] / write,
        "disk_alone_read_and_written_seconds": row["read"] / read + row["written"] / write,
    }


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--nodes", type=float, default=1e6)
    parser.add_argument("--edges", type=float, default=10e6)
    parser.add_argument("--limit", default="400MB")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--folder", type=Path, required=True, help="of a disk")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        row = measure(Path(folder), options)
    # Bytes that are moved are those of an epoch.
    figures = [{"figure": name, "of the run": value} for name, value in row.items()]
    report(f"GCN {FEATURES}-{HIDDEN}-{CLASSES} within {options.limit}", figures, options.json)


if __name__ == "__main__":
    main()
