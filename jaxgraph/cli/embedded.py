"""A model for graphs whose nodes have no features."""

import jax
from flax import nnx

from jaxgraph.nn import NodeEmbedding
from jaxgraph.parallel import Shard


class Embedded(nnx.Module):
    """A model that reads learned rows, one per node, instead of features.

    Args:
        embedding: The rows.
        model: The model that reads them, called as `model(shard, x, key=key, train=train)`.
    """

    def __init__(self, embedding: NodeEmbedding, model: nnx.Module) -> None:
        self.embedding = embedding
        self.model = model

    def __call__(
        self, shard: Shard, x: None, *, key: jax.Array | None = None, train: bool = False
    ) -> jax.Array:
        """float [rows, out_features], the model's outputs for the shard's nodes."""
        return self.model(shard, self.embedding(shard), key=key, train=train)
