"""Attention kernels: values and gradients against the oracle, hubs, dropout, threads, meshes."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.cpu.attention_passes import MOST_HEADS
from jaxgraph.ops.cpu.library import missing as missing_library
from jaxgraph.ops.cpu.messages import cpu_stages
from tests.ops.cpu.attention import KINDS, compute, expected, in_order
from tests.ops.cpu.groups import HUB, group_edges, hub_edges, without_loop
from tests.oracles.edges import Edges
from tests.tolerance import assert_close

pytestmark = pytest.mark.skipif(bool(missing_library()), reason=missing_library())

SIZES = [(1, 1), (3, 7), (4, 16), (8, 5), (4, 23), (3, 41), (MOST_HEADS, 1), (17, 9)]
every_kind = pytest.mark.parametrize("name", KINDS)
run = partial(jax.jit, static_argnames=("rate", "num_groups", "wanted"))


def with_one(values: Any) -> np.ndarray:
    return np.append(np.asarray(values).astype(np.float64), 1.0)


def check(
    name: str,
    edges: Edges,
    heads: int,
    features: int,
    *,
    dtype: Any = np.float32,
    rate: float = 0.0,
    loops: bool = False,
    num_groups: int = 1,
    mean: bool = False,
    edit: Any = lambda arrays: None,
) -> None:
    kind, rng = KINDS[name], np.random.default_rng(2)
    arrays = kind.draw(edges.num_nodes, heads, features, mean=mean)
    edit(arrays)
    rounded = [jnp.asarray(array, dtype) for array in arrays]
    exact = [np.asarray(array).astype(np.float64) for array in rounded]

    group_of_edge = rng.integers(0, num_groups, len(edges.senders))
    groups = group_edges(edges, group_of_edge)
    missing = jnp.asarray(without_loop(edges)) if loops else None
    y, gradients = run(partial(compute, kind))(
        groups,
        rounded[:-1],
        rounded[-1],
        rate=rate,
        missing=missing,
        num_groups=num_groups,
    )
    full = edges.with_missing_self_loops() if loops else edges
    exact_y, exact_gradients = expected(kind, full, exact, rate)
    # 16-bit results are rounded once; sums accumulate in 32 bits.
    terms = 1 if dtype == jnp.bfloat16 else 30 * heads * features
    same = partial(assert_close, dtype=dtype, reduction_length=terms)
    same(with_one(y), with_one(exact_y), name="y")
    for index, (actual, exact_gradient) in enumerate(
        zip(in_order(gradients), exact_gradients, strict=True)
    ):
        same(with_one(actual), with_one(exact_gradient), name=f"gradient {index}")


ALL: Any = {"rate": 0.3, "loops": True, "num_groups": 3}


@every_kind
@pytest.mark.parametrize("options", [{}, ALL, ALL | {"mean": True}], ids=["plain", "all", "mean"])
@pytest.mark.parametrize(("heads", "features"), SIZES)
def test_values_and_gradients_with_a_hub(name, heads, features, options):
    check(name, hub_edges(), heads, features, **options)


@every_kind
@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float64])
@pytest.mark.parametrize(
    ("heads", "features", "mean"), [(4, 16, False), (3, 7, False), (4, 40, True)]
)
def test_types(name, dtype, heads, features, mean):
    with jax.enable_x64(dtype == np.float64):
        check(name, hub_edges(4000), heads, features, dtype=dtype, rate=0.2, loops=True, mean=mean)


@pytest.mark.expensive
@every_kind
def test_wanted_gradients_are_the_same_alone(name):
    kind, edges = KINDS[name], hub_edges(3000)
    arrays = [jnp.asarray(array, jnp.float32) for array in kind.draw(edges.num_nodes, 2, 8)]
    missing = jnp.asarray(without_loop(edges))
    take = partial(run(partial(compute, kind)), group_edges(edges), arrays[:-1], arrays[-1])
    _, everything = take(rate=0.2, missing=missing)
    for alone in ("sender", "receiver", "params"):
        _, gradients = take(rate=0.2, missing=missing, wanted=(alone,))
        for some, every in zip(gradients[alone], everything[alone], strict=True):
            np.testing.assert_array_equal(some, every)


def test_logits_of_minus_infinity_have_no_weight():
    def edit(arrays: list[np.ndarray]) -> None:
        arrays[1][::3] = -np.inf
        arrays[2][HUB] = -np.inf

    check("gat", hub_edges(2000), 2, 5, edit=edit)


@every_kind
def test_large_logits_do_not_overflow(name):
    def edit(arrays: list[np.ndarray]) -> None:
        arrays[1] *= 40

    check(name, hub_edges(2000), 2, 4, edit=edit)


def test_more_heads_than_the_kernels_take_are_left_to_xla():
    kind = KINDS["gat"]
    for heads in (MOST_HEADS, MOST_HEADS + 1):
        *arrays, _ = map(jnp.float32, kind.draw(10, heads, 1))
        plain = Stages(kind.message, Softmax(heads=heads), 1)
        assert (cpu_stages(plain, kind.inputs(*arrays)) is None) == (heads > MOST_HEADS)
