"""The norm modules: statistics in training and inference, and their residuals."""

from typing import Any

import numpy as np
import pytest
from flax import nnx

from jaxgraph.nn import BatchNorm, LayerNorm
from jaxgraph.parallel import gather_rows, spmd
from tests.strategies import NUM_FEATURES
from tests.tolerance import assert_close
from tests.training import crooked_features, crooked_sharded


def applied(norm: Any, sharded: Any, **options: Any) -> tuple[np.ndarray, Any]:
    """The output in the graph's order, and the module after the pass."""
    graphdef, params, statistics = nnx.split(norm, nnx.Param, ...)

    def step(params: Any, statistics: Any, shard: Any) -> Any:
        local = nnx.merge(graphdef, params, statistics)
        y = local(shard, shard.nodes, **options)
        return y, nnx.state(local, nnx.BatchStat)

    outputs = ("rows", "replicated")
    y, statistics = spmd(step, outputs=outputs)(params, statistics, sharded)
    return gather_rows(y, sharded), nnx.merge(graphdef, params, statistics)


def test_momentum_is_the_weight_of_the_past() -> None:
    norm = BatchNorm(NUM_FEATURES, momentum=0.25)
    _, after = applied(norm, crooked_sharded(1, "hash", "sar"), train=True)
    expected = 0.75 * crooked_features().mean(0)
    assert_close(after.mean.get_value(), expected, reduction_length=120)


@pytest.mark.parametrize("norm", [BatchNorm, LayerNorm])
def test_a_norm_of_no_features_is_refused(norm: Any) -> None:
    with pytest.raises(ValueError, match="features is 0; expected a positive integer"):
        norm(0)
