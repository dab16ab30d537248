"""Masks: bit for bit the NumPy reference, independent of the batch, and statistically clean."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.ops.core import randomness
from tests.compilation import AS_USERS_DO
from tests.oracles import randomness as oracle

KEY = jax.random.key(17)
node_keep_mask = jax.jit(randomness.node_keep_mask, static_argnums=(2, 3))
edge_keep_mask = jax.jit(randomness.edge_keep_mask, static_argnums=(4, 5))
RATES = (0.0, 0.1, 0.5, 0.6, 0.99)


def words_of(key: jax.Array) -> tuple[int, int]:
    first, second = np.asarray(jax.random.key_data(key)).tolist()
    return first, second


# ------------------------------------------------------------------ against the reference


@given(
    seed=st.integers(0, 2**32 - 1),
    rate=st.sampled_from(RATES),
    ids=st.lists(st.integers(-1, 2**31 - 1), min_size=1, max_size=9),
    offset=st.integers(0, 5000),
)
def test_node_masks_equal_the_reference(
    seed: int, rate: float, ids: list[int], offset: int
) -> None:
    key = jax.random.fold_in(KEY, seed)
    node_ids = np.resize(np.asarray(ids, np.int32), 9)
    actual = node_keep_mask(key, jnp.asarray(node_ids), 13, rate, offset)
    expected = oracle.node_keep_mask(words_of(key), node_ids, 13, rate, offset)
    np.testing.assert_array_equal(actual, expected)


@given(
    seed=st.integers(0, 2**32 - 1),
    rate=st.sampled_from(RATES),
    num_nodes=st.integers(1, 2**31 - 1),
)
def test_edge_masks_equal_the_reference(seed: int, rate: float, num_nodes: int) -> None:
    key = jax.random.fold_in(KEY, seed)
    rng = np.random.default_rng(seed)
    receivers, senders = rng.integers(0, num_nodes, (2, 11)).astype(np.int32)
    repetition = rng.integers(0, 3, 11).astype(np.int32)
    actual = edge_keep_mask(key, jnp.asarray(receivers), jnp.asarray(senders), repetition, 5, rate)
    expected = oracle.edge_keep_mask(words_of(key), receivers, senders, repetition, 5, rate)
    np.testing.assert_array_equal(actual, expected)


# ------------------------------------------------------------------ the inputs of a bit


def test_rate_zero_keeps_everything_and_masks_are_nested_in_the_rate() -> None:
    ids = jnp.arange(200)
    masks = [np.asarray(node_keep_mask(KEY, ids, 10, rate)) for rate in RATES]
    assert masks[0].all()
    for looser, tighter in itertools.pairwise(masks):
        assert (looser | ~tighter).all()


# ------------------------------------------------------------------ under transformations


def test_a_mask_is_fused_into_its_use() -> None:
    num_nodes, num_columns = 4096, 128

    def dropped(key: jax.Array, x: jax.Array) -> jax.Array:
        keep = node_keep_mask(key, jnp.arange(num_nodes), num_columns, 0.5)
        return jnp.where(keep, x * 2.0, 0.0)

    features = jax.ShapeDtypeStruct((num_nodes, num_columns), jnp.float32)
    memory = (
        jax.jit(dropped)
        .lower(KEY, features)
        .compile(compiler_options=AS_USERS_DO)
        .memory_analysis()
    )
    assert memory is not None
    assert memory.temp_size_in_bytes < num_nodes * num_columns  # bytes of the mask, were it stored


# ------------------------------------------------------------------ statistics, fixed seeds


def deviation(bits: np.ndarray, probability: float = 0.5) -> float:
    """Standard deviations between the mean of independent bits and its expectation."""
    scale = np.sqrt(bits.size / (probability * (1 - probability)))
    return float(abs(bits.mean(dtype=np.float64) - probability) * scale)


def signs(mask: jax.Array) -> np.ndarray:
    return 2.0 * np.asarray(mask, np.float64) - 1.0


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", [0, 1])
def test_keep_rate(rate: float, seed: int) -> None:
    key, ids = jax.random.key(seed), jnp.arange(20_000)
    assert deviation(np.asarray(node_keep_mask(key, ids, 32, rate)), 1 - rate) < 4
    edges = edge_keep_mask(key, ids, ids[::-1], 0, 8, rate)
    assert deviation(np.asarray(edges), 1 - rate) < 4


@pytest.mark.parametrize("ids", ["consecutive", "strided", "powers"])
def test_neighbouring_nodes_and_columns_are_uncorrelated(ids: str) -> None:
    node_ids = {
        "consecutive": np.arange(30_000),
        "strided": np.arange(30_000) * 4096,
        "powers": (np.uint64(3) ** np.arange(30_000, dtype=np.uint64)) % np.uint64(2**31),
    }[ids]
    bits = np.asarray(node_keep_mask(KEY, jnp.asarray(node_ids.astype(np.int32)), 32, 0.5))
    assert deviation(bits[1:] ^ bits[:-1]) < 4
    assert deviation(bits[:, 1:] ^ bits[:, :-1]) < 4
    # Additive or xor structure between rows and columns would show in rectangles.
    assert deviation(bits[1:, 1:] ^ bits[:-1, :-1] ^ bits[1:, :-1] ^ bits[:-1, 1:]) < 4


def test_all_pairs_of_columns_and_of_heads() -> None:
    ids = jnp.arange(40_000)
    for rows in (
        signs(node_keep_mask(KEY, ids, 48, 0.5)),
        signs(edge_keep_mask(KEY, ids // 8, ids, 0, 16, 0.5)),
    ):
        correlations = (rows.T @ rows)[np.triu_indices(rows.shape[1], 1)] / np.sqrt(len(rows))
        # The squares of standard normal variables: mean 1, variance 2.
        statistic = (np.square(correlations).sum() - correlations.size) / np.sqrt(
            2 * correlations.size
        )
        assert abs(statistic) < 4


def test_keys_are_uncorrelated() -> None:
    ids = jnp.arange(20_000)
    keys = [jax.random.key(seed) for seed in (0, 1, 2, 3, 2**31)]
    keys += [jax.random.fold_in(keys[0], data) for data in range(3)]
    nodes = [np.asarray(node_keep_mask(key, ids, 16, 0.5)) for key in keys]
    edges = [np.asarray(edge_keep_mask(key, ids, ids, 0, 16, 0.5)) for key in keys]
    for one in range(len(keys)):
        assert deviation(nodes[one] ^ edges[one]) < 4.5
        for other in range(one):
            assert deviation(nodes[one] ^ nodes[other]) < 4.5
            assert deviation(edges[one] ^ edges[other]) < 4.5


def test_ends_and_repetitions_of_edges_are_uncorrelated() -> None:
    grid = np.arange(200, dtype=np.int32)
    receivers, senders = (ends.ravel() for ends in np.meshgrid(grid, grid, indexing="ij"))
    bits = np.asarray(edge_keep_mask(KEY, receivers, senders, 0, 4, 0.5))
    square = bits.reshape(200, 200, 4)
    upper = np.triu_indices(200, 1)
    assert deviation(square[1:] ^ square[:-1]) < 4
    assert deviation(square[:, 1:] ^ square[:, :-1]) < 4
    assert deviation((square ^ square.swapaxes(0, 1))[upper]) < 4
    assert deviation(square[1:, 1:] ^ square[:-1, :-1] ^ square[1:, :-1] ^ square[:-1, 1:]) < 4
    for copy in (1, 2):
        other = np.asarray(edge_keep_mask(KEY, receivers, senders, copy, 4, 0.5))
        assert deviation(bits ^ other) < 4


# ------------------------------------------------------------------ arguments
