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
from jaxgraph.parallel import make_mesh
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


@every_kind
@pytest.mark.parametrize(("heads", "features"), SIZES)
def test_values_and_gradients_with_a_hub(name, heads, features):
    check(name, hub_edges(), heads, features)


@every_kind
@pytest.mark.parametrize(("heads", "features"), SIZES)
def test_dropout_loops_and_groups(name, heads, features):
    check(name, hub_edges(3000), heads, features, rate=0.3, loops=True, num_groups=3)


@every_kind
@pytest.mark.parametrize(("heads", "features"), SIZES)
def test_a_gradient_that_heads_share(name, heads, features):
    check(name, hub_edges(), heads, features, mean=True, rate=0.3, loops=True, num_groups=3)


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


@every_kind
def test_no_edges(name):
    nothing = np.zeros(0, np.int64)
    kind, edges = KINDS[name], Edges.of(nothing, nothing, 5)
    arrays = [jnp.asarray(array, jnp.float32) for array in kind.draw(5, 2, 3)]
    y, gradients = run(partial(compute, kind))(group_edges(edges), arrays[:-1], arrays[-1])
    assert not np.asarray(y).any()
    assert not any(np.asarray(gradient).any() for gradient in in_order(gradients))


@pytest.mark.expensive
@every_kind
def test_devices_of_a_mesh_at_once(name):
    kind, edges, devices = KINDS[name], hub_edges(4000), 4
    exact = kind.draw(edges.num_nodes, 3, 7)
    arrays = [jnp.asarray(array, jnp.float32) for array in exact]
    mesh = make_mesh(devices)
    split, whole = jax.P(mesh.axis_names), jax.P()

    def on_each(groups: Any, scale: jax.Array, arrays: Any) -> Any:
        out = compute(kind, groups, arrays[:-1], arrays[-1] * scale[0], rate=0.3)
        return jax.tree.map(lambda leaf: leaf[None], out)

    on_all = jax.jit(
        jax.shard_map(on_each, mesh=mesh, in_specs=(whole, split, whole), out_specs=split)
    )
    y, gradients = on_all(group_edges(edges), jnp.ones(devices, jnp.float32), arrays)
    exact_y, exact_gradients = expected(kind, edges, exact, 0.3)
    for found, right in zip((y, *in_order(gradients)), (exact_y, *exact_gradients), strict=True):
        assert_close(with_one(found[0]), with_one(right), reduction_length=630)
        for device in range(1, devices):
            np.testing.assert_array_equal(found[device], found[0])


def test_more_heads_than_the_kernels_take_are_left_to_xla():
    kind = KINDS["gat"]
    for heads in (MOST_HEADS, MOST_HEADS + 1):
        *arrays, _ = map(jnp.float32, kind.draw(10, heads, 1))
        plain = Stages(kind.message, Softmax(heads=heads), 1)
        assert (cpu_stages(plain, kind.inputs(*arrays)) is None) == (heads > MOST_HEADS)
