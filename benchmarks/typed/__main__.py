"""Typed graphs on CPU: R-GCN and HeteroConv beside PyG and DGL, in numbers, time and memory.

Every library runs in its own process, as for `benchmarks.cpu`. On small graphs values and gradients
are compared. Then all are timed in turns: a layer 64 to 64 on FB15k-237 with inverses, forward and
gradients of its parameters and of x; an epoch of AIFB by the recipe of
`jaxgraph train --dataset aifb --model rgcn`; and an epoch of 3 x 256 on a tenth of a graph like
ogbn-mag, all types over one set of nodes. The peers get edges in the order of their types. Last
come the bytes that a compiled layer takes with few and with many types over equal numbers of pairs
(edge type, receiver).

    python -m benchmarks.typed --data-dir DIR --peer-python PYTHON

`PYTHON` is an interpreter that imports `torch`, `torch_geometric` and `dgl`. The program exits with
1 where numbers differ by more than 2e-5, relative to their norm.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import jaxgraph as jg
from benchmarks.command_line import make_parser, report, write_figures
from benchmarks.cpu.__main__ import Run
from benchmarks.cpu.inputs import node_features
from benchmarks.cpu.measure import Measurement
from benchmarks.cpu.process import Contestant
from benchmarks.generated import OGBN_MAG, generate_typed, in_one_set
from benchmarks.typed import tasks
from benchmarks.typed.tasks import RGCN, Epoch, Layer, TypedData
from jaxgraph.cli.recipes import recipe
from jaxgraph.datasets.triples import load_aifb, read_openke

PEERS: dict[str, dict[str, Any]] = {
    "PyG RGCNConv": {"kind": "RGCNConv"},
    "PyG FastRGCNConv": {"kind": "FastRGCNConv"},
    "DGL RelGraphConv": {"kind": "RelGraphConv"},
    "DGL RelGraphConv, presorted": {"kind": "RelGraphConv", "presorted": True},
}
"""Options of every peer's library."""
TOO_LARGE = {"ogbn-mag/10": "DGL"}
"""Peers that a graph is too large for: the messages of DGL's three layers take 39 GB."""
TOLERANCE = 2e-5
"""Largest relative error of values and gradients."""
Work = tuple[TypedData, list[Any]]


def numbers(folder: Path | None = None) -> Work:
    """Layers on small graphs."""
    kinds = [(kind, how) for kind in ("kernel", "bases", "blocks") for how in ("sum", "mean")]
    kinds += [("sage", "sum"), ("gatv2", "sum")]
    return tasks.small(), [Layer(*kind, 16) for kind in kinds]


def fb15k(folder: Path) -> Work:
    """A layer on FB15k-237, with inverses."""
    return _of(read_openke(folder / "fb15k-237"), 64), [Layer("kernel", "mean", 64)]


def aifb(folder: Path) -> Work:
    """An epoch of AIFB's recipe, with learned rows for features."""
    settings = recipe("aifb", "rgcn")
    data = _of(load_aifb(folder), settings.hidden)
    sizes: dict[str, Any] = {"num_types": data.num_types, "rows": data.num_nodes}
    return data, [Epoch(RGCN("rgcn", settings.layers, settings.hidden, **sizes))]


def mag(folder: Path | None = None, scale: float = 0.1) -> Work:
    """An epoch on a tenth of a graph like ogbn-mag, its sets as one, with inverses."""
    graph = jg.transforms.with_inverses(generate_typed(OGBN_MAG, scale=scale))
    data = _of(in_one_set(graph, OGBN_MAG), OGBN_MAG.num_features)
    return data, [Epoch(RGCN("rgcn", 3, 256, num_types=8))]


GRAPHS: dict[str, Callable[[Path], Work]] = {
    "small": numbers,
    "fb15k-237": fb15k,
    "aifb": aifb,
    "ogbn-mag/10": mag,
}


def _of(graph: jg.TypedGraph, features: int) -> TypedData:
    """A graph of one set of nodes, with normal numbers as features."""
    (nodes,), (edges,) = graph.node_sets.values(), graph.edge_sets.values()
    x = node_features(nodes.num_nodes, features)
    arrays: Any = (edges.senders, edges.receivers, edges.edge_type)
    return tasks.typed_data(np.stack(arrays), x, nodes.labels, nodes.train_mask)


def layer_bytes(num_types: int) -> dict[str, Any]:
    """Temporary memory of a compiled layer and its gradients."""
    from benchmarks.cpu.libraries.typed_jaxgraph_library import Library

    library, task = Library(), Layer("kernel", "mean", 64)
    library.load(tasks.of_equal_pairs(num_types))
    library.lay_out(task)
    memory = library.compiled(task)[1].memory_analysis()
    return {"types": num_types, "temporary MB": memory.temp_size_in_bytes / 1e6}


def beside_best(rows: Sequence[Measurement]) -> list[dict[str, Any]]:
    """The times of each task, and those of the fastest peer over them."""
    found = []
    for ours in (row for row in rows if row.contestant == "jaxgraph" and row.median):
        peers = [row for row in rows if row.task == ours.task and row.median and row is not ours]
        for best in sorted(peers, key=lambda row: row.median or 0.0)[:1]:
            row = {"graph": ours.graph, "task": ours.task.label, "ms": 1e3 * (ours.median or 0)}
            found.append(row | {"best peer": best.contestant, "times faster": best.ratio})
    return found


def main() -> int:
    """Compares, measures and shows; returns 1 where numbers differ."""
    parser = make_parser(__doc__)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("JAXGRAPH_DATA"))
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter of the peers")
    parser.add_argument("--only", nargs="+", choices=[*GRAPHS, "memory"])
    parser.set_defaults(quick=False, rounds=None, threads=2)
    options, console = parser.parse_args(), Console(width=160)
    wanted = options.only or [*GRAPHS, "memory"]
    contestants = [Contestant("jaxgraph", "typed_jaxgraph")]
    for name, each in PEERS.items():
        contestants.append(Contestant(name, "typed_peers", each, options.peer_python))
    figures, is_wrong = [], False
    with tempfile.TemporaryDirectory(prefix="benchmarks-typed-") as folder:
        run = Run(options, Path(folder), console)
        for graph in (name for name in GRAPHS if name in wanted):
            console.print(f"load before: {os.getloadavg()[0]:.1f}")
            taking = [
                each for each in contestants if not each.name.startswith(TOO_LARGE.get(graph, "-"))
            ]
            rows = run.compare(taking, graph, *GRAPHS[graph](options.data_dir))
            if graph == "small":
                rows.sort(key=lambda row: row.error or 0.0)
                differences = {row.task.label: row.error or 0.0 for row in rows}
                is_wrong = max(differences.values()) > TOLERANCE
                report("Largest relative differences", [differences], None)
            else:
                figures += beside_best(rows)
    for name, reason in run.absent.items():
        console.print(f"{name} does not take part: {reason}", highlight=False, markup=False)
    report("Times faster than the best peer", figures, None)
    if "memory" in wanted:
        memory = [layer_bytes(count) for count in (8, 474)]
        report("A layer 64 to 64 and its gradients, over 116,328 pairs", memory, None)
        figures += memory
    write_figures(options.json, figures)
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
