"""Attention kernels: values and gradients against the oracle, hubs, dropout, threads, meshes."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.edges import EdgeGroup
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.cpu.attention_calls import (
    attention_gradients,
    gat_attention,
    gatv2_attention,
)
from jaxgraph.ops.cpu.attention_passes import MOST_HEADS, attention_state
from jaxgraph.ops.cpu.library import missing as missing_library
from jaxgraph.parallel import make_mesh
from tests.ops.cpu.attention import KINDS, PARAMETER, compute, expected
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
    for index, (actual, exact_gradient) in enumerate(zip(gradients, exact_gradients, strict=True)):
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
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_missing_loops_of_one_group(name, rate):
    check(name, hub_edges(2000), 2, 5, rate=rate, loops=True)


@pytest.mark.expensive
@every_kind
@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float64])
def test_types_of_values(name, dtype):
    with jax.enable_x64(dtype == np.float64):
        check(name, hub_edges(4000), 3, 7, dtype=dtype, num_groups=2)


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
    for alone in range(3):
        wanted = tuple(index == alone for index in range(3))
        _, gradients = take(rate=0.2, missing=missing, wanted=wanted)
        for index, (some, every) in enumerate(zip(gradients, everything, strict=True)):
            if index == alone:
                np.testing.assert_array_equal(some, every)
            else:
                assert some is None


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
    assert not any(np.asarray(gradient).any() for gradient in gradients)


def test_the_state_of_rows_without_edges():
    edges = hub_edges(500)
    over = EdgeGroup(group_edges(edges), 0)
    values, sender, receiver, _ = KINDS["gat"].draw(edges.num_nodes, 2, 3)
    arrays = (jnp.float32(values), jnp.float32(sender), jnp.float32(receiver))
    state = attention_state(over, gat_attention(*arrays, PARAMETER, Softmax(heads=2)), None)
    peak, total, sums = (np.asarray(part)[edges.in_degrees() == 0] for part in state)
    assert len(peak) > 0
    assert np.isneginf(peak).all() and not total.any() and not sums.any()


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
    for found, right in zip((y, *gradients), (exact_y, *exact_gradients), strict=True):
        assert_close(with_one(found[0]), with_one(right), reduction_length=630)
        for device in range(1, devices):
            np.testing.assert_array_equal(found[device], found[0])


def test_more_heads_than_the_kernels_take():
    values, sender, receiver, _ = KINDS["gat"].draw(10, MOST_HEADS + 1, 1)
    arrays = (jnp.float32(values), jnp.float32(sender), jnp.float32(receiver))
    with pytest.raises(ValueError, match=f"at most {MOST_HEADS} heads"):
        gat_attention(*arrays, PARAMETER, Softmax(heads=MOST_HEADS + 1))


def test_inputs_of_different_types():
    sender, receiver, attention, _ = KINDS["gatv2"].draw(10, 2, 3)
    arrays = (jnp.float32(sender), jnp.bfloat16(receiver), jnp.float32(attention))
    with pytest.raises(ValueError, match="one type and shape"):
        gatv2_attention(*arrays, PARAMETER, Softmax(heads=2))


@every_kind
def test_a_start_and_messages_from_rows_to_themselves(name):
    kind, edges = KINDS[name], hub_edges(50)
    over = EdgeGroup(group_edges(edges), 0, jnp.asarray(without_loop(edges)))
    drawn = kind.draw(edges.num_nodes, 2, 3)
    inputs = [jnp.float32(array) for array in drawn[:-1]]
    adjoint = (jnp.float32(drawn[-1]), *jnp.zeros((2, edges.num_nodes, 2), jnp.float32))
    attention = kind.make(*inputs, PARAMETER, Softmax(heads=2))
    state = attention_state(over, attention, None)
    with pytest.raises(ValueError, match="expected one or the other"):
        attention_state(over, attention, state)
    for index in range(3):
        before = tuple(inputs[each] if each == index else None for each in range(3))
        with pytest.raises(ValueError, match="expected one or the other"):
            attention_gradients(over, attention, adjoint, before=before)


@pytest.mark.parametrize("name", ["gat", "dot"])
def test_one_of_the_gradients_that_senders_sum_up_has_no_start(name):
    kind, edges = KINDS[name], hub_edges(50)
    drawn = kind.draw(edges.num_nodes, 2, 3)
    inputs = [jnp.float32(array) for array in drawn[:-1]]
    adjoint = (jnp.float32(drawn[-1]), *jnp.zeros((2, edges.num_nodes, 2), jnp.float32))
    attention = kind.make(*inputs, PARAMETER, Softmax(heads=2))
    over, before = EdgeGroup(group_edges(edges), 0), (inputs[0], None, None)
    with pytest.raises(ValueError, match="expected both or none"):
        attention_gradients(over, attention, adjoint, before=before)
