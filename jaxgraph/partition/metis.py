"""METIS partitions, balanced in nodes, edges or labelled nodes, computed in a separate process.

SAR (section 4.2) partitions with METIS (Karypis and Kumar, "A Fast and High Quality Multilevel
Scheme for Partitioning Irregular Graphs", 1998), for equally many nodes in each part and few edges
between parts. pymetis passes one weight per node to METIS, so the weights of a balance are combined
into one, and ``rebalancing`` then enforces each of them.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.partition.adjacency import Adjacency, undirected_adjacency
from jaxgraph.partition.rebalancing import fill_empty_parts, rebalance

BALANCES = ("nodes", "edges", "labels")
OBJECTIVES = ("cut", "volume")

_WORKER = Path(__file__).with_name("metis_worker.py")

# METIS' own default in its k-way method (ufactor = 30).
_TOLERANCE = 1.03
# Of the number of nodes, beside edges or labels. Tightened in steps, because parts that fill up
# early block later moves: amazon-photo in 16 parts, balanced by edges, ends at 1.25, and at 1.51 in
# one step.
_NODE_TOLERANCES = (1.4, 1.3, 1.2, 1.1)

# METIS keeps the best of several attempts; on small graphs they cost little and cut up to 6% less.
_ATTEMPTS = 4
_SMALL_GRAPH_ENTRIES = 500_000
# The METIS manual recommends recursive bisection for few parts only; pymetis draws the line here.
_MOST_PARTS_BISECTED = 8


def metis_assignment(
    graph: Graph,
    num_parts: int,
    *,
    seed: int = 0,
    balance: str = "nodes",
    objective: str = "cut",
    timeout_seconds: float | None = None,
    adjacency: Adjacency | None = None,
) -> np.ndarray:
    """Partitions the undirected graph by METIS and repairs the balance; no part is empty.

    The largest part holds at most 1.03 times the mean of the balanced weight, where nodes are small
    enough for that (rounded up to whole nodes); with "edges" and "labels" also at most 1.10 times
    the mean number of nodes, where the graph allows both. The same arguments give the same
    partition. The adjacency of the graph is made where it is not given.
    """
    combined, wanted = _weights(graph, balance)
    if num_parts == 1:
        return np.zeros(graph.num_nodes, np.int32)
    if num_parts == graph.num_nodes:
        return np.arange(num_parts, dtype=np.int32)
    if adjacency is None:
        adjacency = undirected_adjacency(graph.senders, graph.receivers, graph.num_nodes)
    settings = {
        "num_parts": num_parts,
        "seed": _seed_of_metis(seed),
        "objective": objective,
        # Bisection cannot minimise the volume.
        "recursive": objective == "cut" and num_parts <= _MOST_PARTS_BISECTED,
        "attempts": _ATTEMPTS if adjacency.neighbours.size <= _SMALL_GRAPH_ENTRIES else 1,
    }
    if timeout_seconds is None:
        timeout_seconds = 300 + 5e-5 * adjacency.neighbours.size
    found = _run_worker(adjacency, combined, settings, timeout_seconds)
    return _repaired(found, num_parts, adjacency, wanted, keep_nodes=balance != "nodes")


def _seed_of_metis(seed: int) -> int:
    """Maps a seed to 1 to 2**31 - 1: METIS takes no more, and the C library treats 0 as 1."""
    if seed < 2**31 - 1:
        return 1 + seed
    return 1 + int(np.random.SeedSequence(seed).generate_state(1)[0]) % (2**31 - 1)


def _weights(graph: Graph, balance: str) -> tuple[np.ndarray, np.ndarray]:
    """The one weight of a node that METIS gets, and the weight to balance, int64 [num_nodes]."""
    ones = np.ones(graph.num_nodes, np.int64)
    if balance == "nodes":
        return ones, ones
    if balance == "edges":
        in_degrees = graph.in_degrees()
        return in_degrees + 1, in_degrees
    if graph.train_mask is None:
        raise ValueError(
            "balance: 'labels' balances the nodes of the training mask and the graph has none; "
            "give it one with graph.replace(train_mask=...), or use balance='nodes'."
        )
    labelled = graph.train_mask.astype(np.int64)
    # All labelled nodes together weigh as much as all nodes.
    scale = round(graph.num_nodes / int(labelled.sum()))
    return ones + scale * labelled, labelled


def _repaired(
    assignment: np.ndarray,
    num_parts: int,
    adjacency: Adjacency,
    weights: np.ndarray,
    *,
    keep_nodes: bool,
) -> np.ndarray:
    """Fills empty parts, and restores the balance of weights and, if asked for, of nodes."""
    repaired = fill_empty_parts(assignment, num_parts, adjacency)
    limit = limit_of_part(weights, num_parts, _TOLERANCE)
    repaired = rebalance(repaired, num_parts, adjacency, weights[None], np.array([limit]))
    if not keep_nodes:
        return repaired
    # In a second step: rebalancing for both moves no weight that is balanced already.
    ones = np.ones_like(weights)
    for tolerance in _NODE_TOLERANCES:
        limits = np.array([limit, limit_of_part(ones, num_parts, tolerance)])
        both = np.stack([weights, ones])
        repaired = rebalance(repaired, num_parts, adjacency, both, limits)
    return repaired


def limit_of_part(weights: np.ndarray, num_parts: int, tolerance: float) -> int:
    """The most that a part should hold; at least the largest node."""
    mean = int(weights.sum()) / num_parts
    return max(math.ceil(mean), math.floor(tolerance * mean), int(weights.max()))


def _run_worker(
    adjacency: Adjacency,
    weights: np.ndarray,
    settings: dict[str, int | str | bool],
    timeout_seconds: float,
) -> np.ndarray:
    """Runs METIS in a child process; the arrays travel through files in a temporary folder."""
    with TemporaryDirectory(prefix="jaxgraph-metis-") as name:
        folder = Path(name)
        np.save(folder / "starts.npy", adjacency.starts)
        np.save(folder / "neighbours.npy", adjacency.neighbours)
        np.save(folder / "weights.npy", weights)
        (folder / "settings.json").write_text(json.dumps(settings))
        # -P keeps the worker's own folder off its path, where modules could hide installed ones.
        command = [sys.executable, "-P", str(_WORKER), str(folder)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            reason = f"did not end within {timeout_seconds:.0f} s (timeout_seconds)"
        else:
            result = folder / "assignment.npy"
            if done.returncode == 0 and result.exists():
                return np.load(result)
            reason = _reason(done.returncode, done.stdout.decode(errors="replace"))
    raise RuntimeError(
        f"METIS {reason}. Another seed or objective may avoid it; method='hash' or "
        "'equal-edges', and order='rcm' or 'degree', need no METIS."
    )


def _reason(return_code: int, output: str) -> str:
    lines = output.strip().splitlines()
    said = f"; its last words: {lines[-1]}" if lines else ""
    if return_code < 0:
        return f"was ended by signal {-return_code} ({signal.strsignal(-return_code)}){said}"
    return f"ended with exit code {return_code} and without a result{said}"
