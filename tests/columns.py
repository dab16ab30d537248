"""Features split by column, made by hand of the rows of all nodes."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.parallel import FeatureColumns, Shard


def columns_of(shard: Shard, x: jax.Array) -> FeatureColumns:
    """This device's columns of all nodes, under `spmd`.

    Args:
        shard: The shard.
        x: float [rows, features], the rows of the own nodes.
    """
    width = -(-x.shape[1] // shard.num_parts)
    everything = lax.all_gather(shard.mask_rows(x), shard.axis, tiled=True)
    padded = jnp.pad(everything, ((0, 0), (0, width * shard.num_parts - x.shape[1])))
    offset = lax.axis_index(shard.axis) * width
    return FeatureColumns(
        values=lax.dynamic_slice_in_dim(padded, offset, width, 1),
        offset=offset,
        node_ids=lax.all_gather(shard.node_ids, shard.axis, tiled=True),
        num_features=x.shape[1],
    )
