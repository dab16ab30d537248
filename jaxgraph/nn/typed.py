"""Convolutions of several sets of edges, each with parameters of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxgraph.nn.layer import layer_keys
from jaxgraph.nn.module import Module
from jaxgraph.nn.protocol import Convolution
from jaxgraph.parallel import Shard
from jaxgraph.parallel.relation import Relation
from jaxgraph.parallel.samples import SampledLayer
from jaxgraph.parallel.shard import Ends

_REDUCTIONS = {"sum": jnp.sum, "mean": jnp.mean, "max": jnp.max, "min": jnp.min}


class HeteroConv(Module):
    """y_i = reduce_r conv_r(relation_r, x)_i over the relations r that end in the set of node i

    Args:
      convolutions: a convolution for each relation, by its name on the shard; see
        `jaxgraph.nn.protocol.Convolution`. Those that end in one set of nodes return rows of one
        width. A relation that is not named takes no part.
      reduce: "sum", "mean", "max" or "min" over the relations that end in a set.

    Raises:
      ValueError: there are no convolutions, or the reduction is unknown.

    References:
      Schlichtkrull et al., "Modeling relational data with graph convolutional networks", 2018.
    """

    def __init__(self, convolutions: Mapping[str, Convolution], *, reduce: str = "sum") -> None:
        if not isinstance(convolutions, Mapping) or not convolutions:
            raise ValueError(
                "convolutions: expected a convolution for each relation by its name, such as "
                "{'cites': jaxgraph.nn.GCNConv(...)}"
            )
        if reduce not in _REDUCTIONS:
            raise ValueError(f"reduce is {reduce!r}; expected one of {', '.join(_REDUCTIONS)}")
        self.convolutions = nnx.Dict(convolutions)
        self.reduce = reduce

    def __call__(
        self,
        shard: Shard | SampledLayer,
        x: Mapping[str, jax.Array],
        *,
        key: jax.Array | None = None,
        train: bool = False,
    ) -> dict[str, jax.Array]:
        """Returns rows [rows, out_features] of every set of nodes that a relation ends in.

        Args:
          shard: the shard of a `jaxgraph.TypedGraph`, under `jaxgraph.parallel.spmd`, or what one
            layer reads of a sample of it, an entry of `shard.flow`.
          x: float [rows, in_features] of each set of nodes that a relation leaves or ends in.
          key: random key of layers with dropout, in training.
          train: whether dropout is on.

        Raises:
          ValueError: there is no such relation, or a set has no rows in x.
        """
        ends: dict[str, Ends] = dict(shard.ends)
        found: dict[str, list[jax.Array]] = {}
        keys: list[jax.Array | None] = [None] * len(self.convolutions)
        if key is not None:
            keys = [pair[1] for pair in layer_keys(key, len(keys))]
        for (name, convolution), own in zip(self.convolutions.items(), keys, strict=True):
            relation: Relation = shard.relation(name)
            sender, receiver = ends[name].senders, ends[name].receivers
            missing = [end for end in (sender, receiver) if end not in x]
            if missing:
                raise ValueError(
                    f"relation {name!r} reads the rows of {missing[0]!r}, and x has those of "
                    f"{', '.join(map(repr, x)) or 'no set'}; add x[{missing[0]!r}]"
                )
            rows: Any = x[sender]
            if sender != receiver:
                # The nodes that a layer of a sample receives at are the first of the table.
                rows = (rows, x[receiver][: relation.receiver_rows])
            y = convolution(relation, rows, key=own, train=train)
            found.setdefault(receiver, []).append(y)
        reduce = _REDUCTIONS[self.reduce]
        return {name: reduce(jnp.stack(some), axis=0) for name, some in found.items()}
