"""The figures of each command: bytes and times of epochs under different schedules."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax

import jaxgraph as jg
from benchmarks.stream import make_model
from benchmarks.stream_schedule.two_stages import Job, bound, by_johnson, by_swaps, makespan
from benchmarks.stream_schedule.watched import (
    ARRAYS,
    OTHER_ROWS,
    OWN_ROWS,
    Sent,
    Times,
    counted,
    one_by_one,
)
from jaxgraph.parallel.streaming.graph import (
    Pipeline,
    StreamedGraph,
    streamed_graph,
)

DEVICES = (1, 4)
WHOLE, PACKED = 0.0, math.inf
"""Shares of rows from which a part is sent whole: without and with selective transfer."""
LINKS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Time of all transfers over that of all programs."""
Folders = Mapping[int, Path]
Rows = Iterator[dict[str, Any]]


def bytes_sent(folders: Folders, options: Any) -> Rows:
    """Bytes that an epoch sends, as rehearsed, beside those of NeuGraph's formula."""
    jg.parallel.emulate_devices(max(DEVICES))
    for parts, folder in folders.items():
        for devices in DEVICES:
            for whole_from in (WHOLE, PACKED):
                mesh, pipeline = jg.parallel.make_mesh(devices), Pipeline(whole_from=whole_from)
                graph = streamed_graph(_source(folder), mesh, outlined=True, pipeline=pipeline)
                with counted() as found:
                    needs = _needs(graph, options, compile=False)
                yield {
                    "parts": parts,
                    "devices": devices,
                    "selective": whole_from == PACKED,
                    "sent": needs.sent,
                    "returned": needs.returned,
                    **_by_kind(found, graph, options.layers),
                }


def _by_kind(found: Sequence[Sent], graph: StreamedGraph, layers: int) -> dict[str, Any]:
    """Bytes of an epoch by kind, and those of a forward pass beside the formula."""
    _, forward = found  # Training, and the evaluation.
    turns = len(graph.parts.turns)
    edges = [count for (array, _), count in forward.loads.items() if array in forward.edges]
    return {
        **{kind: sum(run.bytes[kind] for run in found) for kind in (ARRAYS, OWN_ROWS, OTHER_ROWS)},
        "forward_edges_times": statistics.mean(edges) / layers,
        "forward_other_rows": forward.bytes[OTHER_ROWS],
        "forward_read": int(forward.read),
        "forward_formula": turns * (turns - 1) * sum(forward.chunks.values()),
    }


def breakdown(folders: Folders, options: Any) -> Rows:
    """Epochs of a plain version, to which one thing after another is added."""
    for parts, folder in folders.items():
        versions = {
            "XLA, one by one": (one_by_one, "xla", WHOLE),
            "+ kernel": (one_by_one, None, WHOLE),
            "+ selective transfer": (one_by_one, None, PACKED),
            "+ pipeline": (nullcontext, None, PACKED),
        }
        graphs = {
            name: (_opened(folder, options, implementation, whole_from=whole_from), context)
            for name, (context, implementation, whole_from) in versions.items()
        }
        rows = list(_alternating(graphs, options))
        for row in rows:
            yield {"parts": parts, **row, "speedup": rows[0]["seconds"] / row["seconds"]}


def orders(folders: Folders, options: Any) -> Rows:
    """Epochs whose backward goes in rows and in columns."""
    for parts, folder in folders.items():
        graphs = {
            f"{order}{', plain' if context is one_by_one else ''}": (
                _opened(folder, options, order=order, whole_from=whole_from),
                context,
            )
            for context, whole_from in ((nullcontext, PACKED), (one_by_one, WHOLE))
            for order in ("rows", "columns")
        }
        for row in _alternating(graphs, options):
            yield {"parts": parts, **row}


def _alternating(
    graphs: Mapping[str, tuple[StreamedGraph, Callable[[], Any]]], options: Any
) -> Rows:
    """The median epoch of each graph, trained in turns, each in a context of its own."""
    seconds: dict[str, list[float]] = {name: [] for name in graphs}
    last: dict[str, Any] = {}
    for _ in range(options.rounds):
        for name, (graph, context) in graphs.items():
            with context():
                history = _trained(graph, options)
            seconds[name] += history.epoch_seconds[1:]
            last[name] = history
    for name, found in seconds.items():
        yield {
            "version": name,
            "seconds": statistics.median(found),
            "least": min(found),
            "most": max(found),
            "sent": last[name].needs.sent,
            "returned": last[name].needs.returned,
            "device": last[name].needs.device,
            "loss": last[name].records[-1].loss,
        }


def overlap(folders: Folders, options: Any) -> Rows:
    """Loads and programs of an epoch, one by one and overlapped, and what orders would save."""
    for parts, folder in folders.items():
        graph = _opened(folder, options, whole_from=PACKED)
        alone, together, times = [], [], []
        for _ in range(options.rounds):
            with one_by_one() as found:
                alone += _trained(graph, options).epoch_seconds[1:]
            times.append(found)
            together += _trained(graph, options).epoch_seconds[1:]
        passes = merged(times, options.epochs)
        jobs = [job for each in passes for job in each]
        epochs = options.epochs * options.rounds
        found = [simulated(each) for each in (passes, *(_on_link(passes, r) for r in LINKS))]
        yield {
            "parts": parts,
            "loads": sum(job.load for job in jobs),
            "programs": sum(job.programs for job in jobs),
            "rest": sum(each.rest for each in times) / epochs,
            "returned": sum(each.returned for each in times) / epochs,
            "one_by_one": statistics.median(alone),
            "pipeline": statistics.median(together),
            "simulated": found[0],
            "saved_by_swaps": _saved(found, "now", "swaps"),
            "by_room": _saved(found, "now", "room"),
            "then_by_johnson": _saved(found, "room", "johnson"),
        }


def _saved(found: Sequence[Mapping[str, float]], before: str, after: str) -> list[float]:
    """The percentages of an epoch's passes that a change saves."""
    return [100 * (each[before] - each[after]) / each["now"] for each in found]


def merged(times: Sequence[Times], epochs: int) -> list[list[Job]]:
    """The passes of one epoch, each job with its median times.

    Args:
      times: of runs of the same epochs; the first epoch of each is left out.
      epochs: of each run.

    Returns:
      The jobs of each pass.
    """
    found: list[list[list[Job]]] = []
    for each in times:
        size, left = divmod(len(each.passes), epochs)
        assert not left, f"{len(each.passes)} passes in {epochs} epochs"
        found += [each.passes[at * size : (at + 1) * size] for at in range(1, epochs)]
    return [
        [_median(jobs) for jobs in zip(*passes, strict=True)] for passes in zip(*found, strict=True)
    ]


def _median(jobs: Sequence[Job]) -> Job:
    load, programs = (
        statistics.median(values)
        for values in zip(*((job.load, job.programs) for job in jobs), strict=True)
    )
    return Job(load, programs, jobs[0].sent, jobs[0].is_visit)


def _on_link(passes: Sequence[Sequence[Job]], ratio: float) -> list[list[Job]]:
    """Jobs whose loads take time by their bytes, in all `ratio` times that of the programs."""
    jobs = [job for each in passes for job in each]
    rate = ratio * sum(job.programs for job in jobs) / sum(job.sent for job in jobs)
    return [
        [Job(rate * job.sent, job.programs, job.sent, job.is_visit) for job in each]
        for each in passes
    ]


def simulated(passes: Sequence[Sequence[Job]]) -> dict[str, float]:
    """The time of an epoch's passes in different orders.

    Args:
      passes: the jobs of each pass.

    Returns:
      Seconds: "now" in the order of today, with as many loads ahead as today; "swaps" in that of
      `by_swaps`; "room" in the order of today, with any number of loads ahead; "johnson" in his
      order, with any number; "bound", which no order goes below.
    """
    ahead = Pipeline().ahead
    return {
        "now": sum(makespan(jobs, ahead) for jobs in passes),
        "swaps": sum(makespan(by_swaps(jobs, ahead), ahead) for jobs in passes),
        "room": sum(makespan(jobs) for jobs in passes),
        "johnson": sum(makespan(by_johnson(jobs)) for jobs in passes),
        "bound": sum(map(bound, passes)),
    }


def h200(folders: Folders, options: Any) -> Rows:
    """Memory and bytes of an epoch whose programs are compiled for H200s that are not there."""
    from jaxgraph.planner.targets import find_target

    for devices in DEVICES:
        mesh = find_target(f"h200x{devices}").mesh(emulate=False)
        for parts, folder in folders.items():
            graph = streamed_graph(_source(folder), mesh, outlined=True)
            needs = _needs(graph, options, compile=True)
            yield {
                "parts": parts,
                "devices": devices,
                "device": needs.device,
                "host": needs.host,
                "sent": needs.sent,
                "returned": needs.returned,
            }


def _source(folder: Path) -> Any:
    return jg.parallel.open_parts(folder)


def _opened(
    folder: Path, options: Any, implementation: str | None = None, **pipeline: Any
) -> StreamedGraph:
    """The parts of a folder, ready to be streamed to one device."""
    return streamed_graph(
        _source(folder),
        jg.parallel.make_mesh(1),
        folder=options.folder,
        implementation=implementation,
        pipeline=Pipeline(**pipeline),
    )


def _needs(graph: StreamedGraph, options: Any, *, compile: bool) -> Any:
    model, optimizer = make_model(options.layers)
    return jg.planner.streamed_needs(model, graph, optimizer, compile=compile)


def _trained(graph: StreamedGraph, options: Any) -> Any:
    """The history of a few epochs."""
    model, optimizer = make_model(options.layers)
    return jg.train.fit(model, graph, optimizer, epochs=options.epochs, aggregate_once=False)


FIGURES: dict[str, Callable[[Folders, Any], Rows]] = {
    "bytes": bytes_sent,
    "breakdown": breakdown,
    "overlap": overlap,
    "orders": orders,
    "h200": h200,
}
"""The rows of each command."""


def measured(command: str, folders: Folders, options: Any) -> list[dict[str, Any]]:
    """The rows of a command, in a process of its own."""
    jax.config.update("jax_platforms", "cpu")
    return list(FIGURES[command](folders, options))
