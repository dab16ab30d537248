"""The plan of a run: the tasks of each library on each graph, and their rounds and seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from benchmarks.cpu.models import MODELS
from benchmarks.cpu.tasks import Attention, Epoch, Product, SpMM, Task, Triad

__all__ = [
    "AS_GIVEN",
    "LIMITS",
    "ORDER",
    "OURS",
    "OWN",
    "PORTABLE",
    "TOPICS",
    "Contestant",
    "Pace",
    "pace",
    "peers",
    "peers_tasks",
    "sar_contestants",
    "sar_graphs",
    "sar_tasks",
    "sits_out",
]


@dataclass(frozen=True)
class Contestant:
    """A library that takes part.

    Attributes:
      name: name in the tables.
      library: one of `benchmarks.cpu.worker.LIBRARIES`.
      options: options of the library's constructor.
      is_peer: whether it runs in the peers' interpreter.
    """

    name: str
    library: str
    options: Mapping[str, Any] = field(default_factory=dict)
    is_peer: bool = True


ORDER = "metis"
"""Order in which jaxgraph places the nodes, once, when it lays out a graph."""

OURS = Contestant("jaxgraph", "jaxgraph", {"order": ORDER}, is_peer=False)
PORTABLE = Contestant(
    "portable", "jaxgraph", {"implementation": "xla", "order": ORDER}, is_peer=False
)
AS_GIVEN = Contestant("as given", "jaxgraph", is_peer=False)
"""jaxgraph with the nodes in the order of the graph."""
OWN = (OURS, PORTABLE, AS_GIVEN)

QUICK_PATIENCE = 1.0
"""Seconds that PyG may try its variants in a quick run."""

QUICK_MESSAGE_BYTES = 1 << 30
"""Largest messages, [edges, heads, features], for PyG's attention in a quick run."""

TOPICS = ("spmm", "attention", "epochs", "sar")
"""The choices of `--only`."""

LIMITS: tuple[Task, ...] = (Triad(1 << 26), Product(2048))
"""Tasks that measure the machine's limits: arrays of 256 MiB each, matrices of 16 MiB each."""


@dataclass(frozen=True)
class Pace:
    """The rounds and seconds for which a task is measured.

    Attributes:
      rounds: the most rounds of all libraries in turn.
      least: rounds of a library even after its seconds; 0: its first run suffices.
      seconds: seconds of one library on one task.
      round_seconds: a shorter run is repeated to about this in every round.
      rehearses: whether a round of one run starts with an uncounted one, as other rounds do.
    """

    rounds: int
    least: int
    seconds: float
    round_seconds: float = 0.1
    rehearses: bool = False


def peers(quick: bool) -> tuple[Contestant, ...]:
    """The libraries with which jaxgraph is compared."""
    patience = {"patience": QUICK_PATIENCE} if quick else {}
    return (
        Contestant("DGL", "dgl"),
        Contestant("PyG", "pyg", patience),
        Contestant("torch", "torch"),
        Contestant("scipy", "scipy"),
    )


def pace(task: Task, quick: bool, rounds: int | None = None) -> Pace:
    """Chooses the rounds and seconds for which a task is measured.

    Args:
      task: the task.
      quick: whether the whole run should take minutes.
      rounds: rounds of all tasks, instead of their own.

    Returns:
      The pace; SpMM is always measured in at least 7 rounds.
    """
    if isinstance(task, Triad | Product):
        own = Pace(5, 3, 2.0) if quick else Pace(11, 5, 5.0)
    elif isinstance(task, SpMM):
        own = Pace(7, 7, 5.0) if quick else Pace(15, 7, 20.0)
    elif isinstance(task, Epoch):
        # An epoch follows another, and finds that one's data in the caches.
        own = Pace(5, 0, 1.5, 0.3, True) if quick else Pace(9, 3, 60.0, 0.3, True)
    else:
        own = Pace(5, 0, 1.5) if quick else Pace(11, 5, 40.0)
    if rounds is None:
        return own
    return replace(own, rounds=rounds, least=min(own.least, rounds))


_FULL_WIDTHS = (16, 41, 128, 256)
_FULL_HEADS = ((4, 32), (8, 16))
_QUICK: Mapping[str, Mapping[str, tuple[Task, ...]]] = MappingProxyType(
    {
        "pubmed-size": {
            "spmm": (SpMM(16), SpMM(128), SpMM(128, True)),
            "attention": (Attention(4, 32), Attention(4, 32, True)),
            "epochs": (Epoch("gcn"), Epoch("sage"), Epoch("gat")),
        },
        "arxiv-size": {
            "spmm": (SpMM(16), SpMM(128), SpMM(128, True)),
            "attention": (Attention(4, 32), Attention(4, 32, True)),
            "epochs": (Epoch("gcn"),),
        },
    }
)


def peers_tasks(graph: str, topics: Sequence[str], quick: bool) -> tuple[Task, ...]:
    """The tasks of the comparison with peers.

    Args:
      graph: name of the graph.
      topics: some of `TOPICS`.
      quick: whether a subset suffices; a graph without a subset has all tasks.

    Returns:
      The tasks in order.
    """
    if quick and graph in _QUICK:
        chosen: Mapping[str, tuple[Task, ...]] = _QUICK[graph]
    else:
        chosen = {
            "spmm": tuple(SpMM(n, weighted) for weighted in (False, True) for n in _FULL_WIDTHS),
            "attention": tuple(
                Attention(*heads, backward) for backward in (False, True) for heads in _FULL_HEADS
            ),
            "epochs": tuple(Epoch(model) for model in MODELS),
        }
    return tuple(task for topic in topics for task in chosen.get(topic, ()))


def sits_out(task: Task, num_edges: int, quick: bool) -> frozenset[str]:
    """The contestants that a quick run leaves out of a task, as they would take most of its time.

    Args:
      task: the task.
      num_edges: edges of the graph.
      quick: whether the whole run should take minutes.

    Returns:
      Names of contestants.
    """
    if not quick:
        return frozenset()
    if isinstance(task, Epoch):
        return frozenset({PORTABLE.name})
    if isinstance(task, Attention):
        message_bytes = 4 * num_edges * task.heads * task.features
        return frozenset({"PyG"} if message_bytes > QUICK_MESSAGE_BYTES else ())
    return frozenset()


def sar_contestants(quick: bool) -> tuple[Contestant, ...]:
    """One device, and SAR on several emulated ones on the same cores."""
    counts = (1, 2) if quick else (1, 2, 4, 8, 16)
    return tuple(
        Contestant(
            "1 device" if count == 1 else f"SAR, {count} parts",
            "jaxgraph",
            {"parts": count, "order": ORDER},
            is_peer=False,
        )
        for count in counts
    )


def sar_graphs(quick: bool) -> tuple[str, ...]:
    """The graphs on which SAR is measured."""
    return ("pubmed-size",) if quick else ("arxiv-size",)


def sar_tasks(quick: bool) -> tuple[Task, ...]:
    """The epochs on which SAR is measured."""
    return (Epoch("gcn"), Epoch("gat")) if quick else tuple(Epoch(model) for model in MODELS)
