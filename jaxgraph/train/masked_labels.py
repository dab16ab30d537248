"""Masked label prediction: labels of training nodes are inputs, and those of others are learned."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph.graph_arrays import LABEL_COLUMNS
from jaxgraph.ops.core.randomness import node_keep_mask, of_set
from jaxgraph.parallel import Shard, ShardedGraph
from jaxgraph.parallel.feature_protocol import plain_of
from jaxgraph.train.agreement import from_all
from jaxgraph.train.classification import NodeClassification

_HIDING = 0x6C61626C
"""The number that is folded into the key of a step. Those of layers are small."""
_TOO_PROBABLE = 1e-9
"""The probability of an epoch without a loss that is refused."""


@dataclasses.dataclass(frozen=True)
class MaskedLabelPrediction(NodeClassification):
    """Node classification from features and from the labels of other training nodes.

    The graph has label columns, of `jaxgraph.transforms.with_label_columns`. In each step a
    training node v shows its label with probability q, and else hides it:

    x_v <- [x_v, s_v onehot(y_v)] with s_v = 1 where v shows its label, else 0

    The loss of `NodeClassification` is over the training nodes with s_v = 0. s_v depends on the
    random key of the step and on the node's global id alone, so that the partition does not change
    it. In inference all training nodes show their label: no metrics of "train" are evaluated, since
    each of these nodes would see its own label, and those of an epoch are of its step.

    Attributes:
      class_weights, label_smoothing: as for `NodeClassification`.
      shown: q, between 0 and 1.

    Raises:
      ValueError: as for `NodeClassification`, or q is out of range. In training: the graph has no
        label columns, or so few training nodes that all may show their label in one step.

    References:
      Shi et al., "Masked label prediction: unified message passing model for semi-supervised
      classification", 2020, section 3.2.
    """

    shown: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        shown = self.shown
        is_number = isinstance(shown, int | float | np.number) and not isinstance(shown, bool)
        if not is_number or not 0 < 1 - shown < 1:
            raise ValueError(
                f"shown is {shown!r}; expected a share of the training nodes between 0 and 1, such "
                "as 0.5"
            )
        object.__setattr__(self, "shown", float(shown))

    def splits(self, shard: Shard) -> tuple[str, ...]:
        """Returns the splits that have a mask; see `Task.splits`."""
        found = super().splits(shard)
        if LABEL_COLUMNS not in shard.node_data:
            raise ValueError(
                "the graph has no label columns, which masked label prediction hides; add them "
                "before it is sharded or written: jaxgraph.transforms.with_label_columns(graph)"
            )
        return found

    def evaluated_splits(self, shard: Shard) -> tuple[str, ...]:
        """Returns the splits but "train"; see `Task.evaluated_splits`."""
        return tuple(split for split in self.splits(shard) if split != "train")

    def check_training(self, graph: ShardedGraph) -> None:
        """Refuses too few training nodes; see `Task.check_training`."""
        count = _train_nodes(graph)
        if self.shown**count > _TOO_PROBABLE:
            fewest = math.ceil(math.log(_TOO_PROBABLE) / math.log(self.shown))
            raise ValueError(
                f"the graph has {count} training nodes, and in an epoch in which all show their "
                f"label the loss would be 0 / 0; expected at least {fewest} with shown="
                f"{self.shown}. Give it more training nodes, or show fewer labels"
            )

    def in_training(self, shard: Shard, key: jax.Array) -> Shard:
        """Hides labels, and takes the loss of these nodes alone; see `Task.in_training`."""
        key = of_set(jax.random.fold_in(key, _HIDING), shard.set_number)
        rate, features = 1 - self.shown, plain_of(shard.nodes)
        nodes = features.hidden(shard, key, rate, features.width - shard.manifest.num_classes)
        shows = node_keep_mask(key, shard.node_ids, 1, rate)[:, 0]
        assert shard.train_mask is not None
        return shard.with_table(nodes=nodes, train_mask=shard.train_mask & ~shows)


def _train_nodes(graph: ShardedGraph) -> int:
    """The number of training nodes on all devices."""
    if not graph.is_streamed:
        return int(jnp.sum(graph.shards.train_mask, dtype=jnp.int32))
    parts = graph.parts  # pyright: ignore[reportAttributeAccessIssue]
    number = parts.numbers.train_mask
    return sum(from_all(int(sum(parts.leaf(number, part).sum() for part in parts.own))))
