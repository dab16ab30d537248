"""Every op by every implementation, on a block and on shards, against the float64 oracle."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from jaxgraph import Graph
from jaxgraph.ops.core.edges import with_implementation
from jaxgraph.ops.cpu.attention_passes import MOST_HEADS
from jaxgraph.ops.cpu.library import missing
from pallas_kernels.teams import Launch
from tests.cpu_kernels import needs_kernels
from tests.ops.blocks import place_block, shared_shapes
from tests.ops.cases import ATTENTION, CASES, Case, on_block, on_shards, placed_arrays
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


DRAWN = ("mean", "min", "products", "edge-softmax", "gat", "gatv2", "dot")


@pytest.mark.expensive
@pytest.mark.parametrize("case", [c for c in CASES if c.name in DRAWN], ids=lambda c: c.name)
@given(graph=graphs())
def test_random_graphs(case: Case, graph: Graph) -> None:
    with jax.enable_x64(True):
        found = on_block(case, graph, fastest(case), np.float64, shared_shapes())
        case.check(graph, found, np.float64)


def hub() -> Graph:
    """Many edges, of which half enter one node and a quarter leave one; the last has none."""
    senders, receivers = random_edges(280, 9000, seed=0)
    receivers[:4500], senders[4500:6750] = 3, 5
    return complete(senders, receivers, 300, "hub")


HUB = hub()
SIZED = [case for case in CASES if "cpu" in case.kernels and case.name != "products-flat"]
SIZES = [(1, 1), (3, 7), (4, 16), (8, 5), (4, 23), (3, 41), (MOST_HEADS, 1), (17, 9), (1, 130)]


@needs_kernels
@pytest.mark.parametrize(("heads", "features"), SIZES)
@pytest.mark.parametrize("case", SIZED, ids=lambda case: case.name)
def test_sizes_that_kernels_write_out(case: Case, heads: int, features: int) -> None:
    sized = replace(case, heads=heads, features=features)
    sized.check(HUB, on_block(sized, HUB, "cpu", np.float32), np.float32)


@needs_kernels
@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float64])
@pytest.mark.parametrize(("heads", "features"), [(4, 16), (3, 7), (4, 40)])
@pytest.mark.parametrize("case", SIZED, ids=lambda case: case.name)
def test_types_of_kernels(case: Case, heads: int, features: int, dtype: Any) -> None:
    sized = replace(case, heads=heads, features=features)
    with jax.enable_x64(dtype == np.float64):
        sized.check(HUB, on_block(sized, HUB, "cpu", dtype), dtype)


@pytest.mark.expensive
@pytest.mark.parametrize("case", [c for c in CASES if c.name in ATTENTION], ids=lambda c: c.name)
def test_large_logits_do_not_overflow(case: Case) -> None:
    large = replace(case, scale=40.0)
    with jax.enable_x64(True):
        found = on_block(large, RANDOM, fastest(case), np.float64)
        # A logit of a thousand has three digits less after its point.
        large.check(RANDOM, found, np.float64, terms=10**8)


@pytest.mark.expensive
@of_each("cpu", "xla")
def test_gradients_alone_are_those_of_all(case: Case, implementation: str) -> None:
    placed = place_block(RANDOM)
    *arrays, cotangent = placed_arrays(case, placed, np.float32)
    op = partial(case.op, with_implementation(placed.block, implementation), **case.options)

    @jax.jit
    def both(arrays: list[jax.Array], cotangent: jax.Array) -> Any:
        def alone(place: int) -> jax.Array:
            of_one = lambda x: op(*arrays[:place], x, *arrays[place + 1 :])  # noqa: E731
            return jax.vjp(of_one, arrays[place])[1](cotangent)[0]

        return jax.vjp(op, *arrays)[1](cotangent), [alone(at) for at in range(len(arrays))]

    for mine, expected in zip(*both(arrays, cotangent), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)


@of_each("cpu", "xla")
def test_sixteen_bits(case: Case, implementation: str) -> None:
    dtype = jnp.bfloat16
    case.check(RANDOM, on_block(case, RANDOM, implementation, dtype), dtype)


def in_interpreter_cases() -> list[Any]:
    """By default hubs, and no edges."""
    names = (("max", "one-node"), ("max", "star-in"), ("gat", "star-in"), ("mean-loops", "star-in"))
    default = {(*each, np.float32) for each in names}
    graphs = ("one-node", "isolated-nodes", "star-in", "directed-random")
    return [
        pytest.param(
            case,
            graph,
            dtype,
            id=f"{case.name}-{graph}-{jnp.dtype(dtype).name}",
            marks=() if (case.name, graph, dtype) in default else pytest.mark.slow,
        )
        for case in CASES
        if "mosaic_gpu" in case.kernels
        for graph in graphs
        for dtype in (np.float32, *((jnp.bfloat16,) if graph == "isolated-nodes" else ()))
    ]


@pytest.mark.expensive
@pytest.mark.parametrize(("case", "name", "dtype"), in_interpreter_cases())
def test_gpu_kernels_in_the_interpreter(
    case: Case, name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Launch, "here", in_interpreter)
    found = on_block(case, BY_NAME[name], "mosaic_gpu", dtype, shared_shapes())
    case.check(BY_NAME[name], found, dtype)


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
