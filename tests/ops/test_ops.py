"""Every op by every implementation, on a block and on shards, against the float64 oracle."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from jaxgraph import Graph
from jaxgraph.ops.cpu.library import missing
from pallas_kernels.teams import Launch
from tests.cpu_kernels import needs_kernels
from tests.ops.blocks import shared_shapes
from tests.ops.cases import CASES, Case, on_block, on_shards
from tests.pallas_kernels.graphs import in_interpreter
from tests.strategies import SMALL_GRAPHS, complete, graphs, random_edges

RANDOM = SMALL_GRAPHS[-1]
BY_NAME = {graph.name: graph for graph in SMALL_GRAPHS}


def crooked() -> Graph:
    """A hub, repeated edges, self-loops and nodes without edges."""
    senders, receivers = random_edges(24, 130, seed=3)
    receivers[:40] = 5
    senders[50:55], receivers[50:55] = 7, 9
    senders[60:64] = receivers[60:64]
    return complete(senders, receivers, 29, "crooked")


CROOKED = crooked()


def fastest(case: Case) -> str:
    """The implementation that a graph on this machine is placed for, if it has a kernel."""
    return "cpu" if "cpu" in case.kernels and not missing() else "xla"


def of_each(*names: str) -> Any:
    """Cases with each implementation among `names` that computes them."""
    marks = {"cpu": needs_kernels}
    pairs = [
        pytest.param(case, name, marks=marks.get(name, ()), id=f"{case.name}-{name}")
        for case in CASES
        for name in names
        if (name == "xla" or name in case.kernels)
    ]
    return pytest.mark.parametrize(("case", "implementation"), pairs)


@pytest.mark.law(2)
@of_each("cpu", "xla")
def test_every_small_graph_with_nan_in_all_padding(case: Case, implementation: str) -> None:
    with jax.enable_x64(True):
        for graph in SMALL_GRAPHS:
            found = on_block(case, graph, implementation, np.float64, shared_shapes())
            case.check(graph, found, np.float64)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_graph_without_edges_and_without_padding(case: Case) -> None:
    graph = BY_NAME["no-edges"]
    case.check(graph, on_block(case, graph, fastest(case), np.float32), np.float32)


DRAWN = ("mean", "min", "products", "edge-softmax", "gat-dropped", "gatv2", "dot")


@pytest.mark.expensive
@pytest.mark.parametrize("case", [c for c in CASES if c.name in DRAWN], ids=lambda c: c.name)
@given(graph=graphs())
def test_random_graphs(case: Case, graph: Graph) -> None:
    with jax.enable_x64(True):
        found = on_block(case, graph, fastest(case), np.float64, shared_shapes())
        case.check(graph, found, np.float64)


@of_each("cpu", "xla")
def test_sixteen_bits(case: Case, implementation: str) -> None:
    dtype = jnp.bfloat16
    case.check(RANDOM, on_block(case, RANDOM, implementation, dtype), dtype)


def in_interpreter_cases() -> list[Any]:
    """By default the cases that the two message tests leave: hubs, and no edges."""
    default = {("max", "one-node"), ("max", "star-in"), ("gat", "star-in")}
    graphs = ("one-node", "isolated-nodes", "star-in", "directed-random")
    return [
        pytest.param(
            case,
            graph,
            id=f"{case.name}-{graph}",
            marks=() if (case.name, graph) in default else pytest.mark.slow,
        )
        for case in CASES
        if "mosaic_gpu" in case.kernels
        for graph in graphs
    ]


@pytest.mark.expensive
@pytest.mark.parametrize(("case", "name"), in_interpreter_cases())
def test_gpu_kernels_in_the_interpreter(
    case: Case, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Launch, "here", in_interpreter)
    found = on_block(case, BY_NAME[name], "mosaic_gpu", np.float32, shared_shapes())
    case.check(BY_NAME[name], found, np.float32)


ONE, SOME = (1, "domain", "cpu"), [(2, "domain", "xla"), (3, "sar", "cpu")]
REST = [(1, "sar", "xla"), (2, "sar", "cpu"), (2, "sar", "xla"), (3, "domain", "cpu")]


def placements() -> list[Any]:
    """By default values per edge in three of them, and every other case in one."""
    chosen = [(case, each) for case in CASES if case.per_edge for each in (ONE, *SOME)]
    chosen += [(case, SOME[place % 2]) for place, case in enumerate(CASES) if not case.per_edge]
    every = [(case, each) for case in CASES for each in (ONE, *SOME, (3, "sar", "xla"), *REST)]
    return [
        pytest.param(
            case,
            *each,
            id="-".join(map(str, (case.name, *each))),
            marks=() if (case, each) in chosen else pytest.mark.slow,
        )
        for case, each in every
    ]


@pytest.mark.expensive
@pytest.mark.parametrize(("case", "parts", "mode", "implementation"), placements())
def test_shards(case: Case, parts: int, mode: str, implementation: str) -> None:
    """Where the implementation has no kernel for an op, XLA computes it."""
    if implementation == "cpu" and missing():
        pytest.skip(missing())
    with jax.enable_x64(True):
        found = on_shards(case, CROOKED, implementation, np.float64, parts, mode)
        case.check(CROOKED, found, np.float64)
