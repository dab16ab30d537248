"""Blocks of fixed sizes: one compiled program for all of them, and the results of each."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.analysis import compilations
from jaxgraph.parallel import BlockSizes, bipartite
from tests.layers.neighborhood_cases import CASES
from tests.strategies import NUM_FEATURES
from tests.tolerance import assert_close

SIZES = BlockSizes(num_senders=70, num_receivers=40, num_edges=300)


def edges(kind: str, senders: int, receivers: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(count)
    ends = rng.integers(0, senders, count), rng.integers(0, receivers, count)
    if kind == "star to":
        return ends[0], np.zeros_like(ends[1])
    return (np.zeros_like(ends[0]), ends[1]) if kind == "star from" else ends


BLOCKS = [
    ("random", 70, 40, 300),
    ("random", 31, 9, 55),
    ("random", 1, 1, 0),
    ("star to", 60, 40, 290),
    ("star from", 60, 40, 290),
]


@pytest.mark.expensive
@pytest.mark.parametrize("by", ["xla", None])
@pytest.mark.parametrize("name", ["gcn-narrow", "sage-max", "gat"])
def test_one_program_runs_on_all_blocks_of_the_same_sizes(name: str, by: str | None) -> None:
    case = CASES[name]

    def loss(params: Any, block: Any, x: Any) -> Any:
        y = case.conv(params, block, x)
        y = block.receivers.mask_rows(y)
        return jnp.sum(y * jnp.sin(1.0 + jnp.arange(y.size)).reshape(y.shape)), y

    run = jax.jit(jax.value_and_grad(loss, (0, 2), has_aux=True))
    alone = jax.value_and_grad(loss, (0, 2), has_aux=True)
    x = np.random.default_rng(0).normal(size=(70, NUM_FEATURES)).astype(np.float32)
    for kind, senders, receivers, count in BLOCKS:
        given: dict[str, Any] = {"num_senders": senders, "num_receivers": receivers}
        given |= {"receivers_first": True, "implementation": by}
        ends = edges(kind, senders, receivers, count)
        block, tight = bipartite(*ends, pad_to=SIZES, **given), bipartite(*ends, **given)
        poisoned = jnp.asarray(np.where(np.arange(70)[:, None] < senders, x, np.nan))
        with compilations() as compiled:
            (_, y), (params, of_x) = run(case.params, block, poisoned)
        assert len(compiled) == (1 if kind == "random" and count == 300 else 0)
        (_, expected), (of_params, gradient) = alone(case.params, tight, jnp.asarray(x[:senders]))
        assert_close(y[:receivers], expected, reduction_length=1000)
        assert_close(of_x[:senders], gradient, reduction_length=5000)
        for key, value in of_params.items():
            # Gradients of attention cancel: their sum may be far below its addends.
            np.testing.assert_allclose(params[key], value, rtol=1e-4, atol=1e-5, err_msg=key)


def test_a_block_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"num_edges=300.*has 301"):
        bipartite(*np.zeros((2, 301), int), num_senders=3, num_receivers=3, pad_to=SIZES)
    with pytest.raises(ValueError, match=r"num_edges is 0"):
        BlockSizes(3, 3, 0)
