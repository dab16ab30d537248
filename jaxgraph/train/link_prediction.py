"""Link prediction: which of some pairs of nodes are links."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxgraph.metrics import ranks_of
from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.parallel import Shard
from jaxgraph.train.task import Merged, Sums, Task, described, split_mask
from pallas_kernels.pytrees import pytree


@dataclasses.dataclass(frozen=True)
class LinkPrediction(Task):
    """Links, of label 1, and pairs that are none, of label 0 (sigmoid cross entropy).

    Over the n pairs l of the split, with scores s_l of the model:

    loss = 1/n sum_l [log(1 + exp s_l) - y_l s_l]

    Metrics of validation and test are exact, over all pairs of the split on all devices: "roc_auc",
    "average_precision" and "hits@K".

    Train by `jaxgraph.sampling.Loader(graph, fanouts, links=Links())`, which draws pairs that are
    no links; of training, the loss alone is reported.

    Attributes:
      hits: the K of the metrics "hits@K".

    Raises:
      ValueError: `hits` are no numbers.

    References:
      Kipf and Welling, "Variational Graph Auto-Encoders", 2016.
    """

    hits: tuple[int, ...] = ()

    untrained = (
        "give fit batches of links in place of the graph: jaxgraph.sampling.Loader(graph, [], "
        "links=jaxgraph.sampling.Links())"
    )

    def __post_init__(self) -> None:
        counts = tuple(self.hits) if isinstance(self.hits, tuple | list) else (None,)
        if not all(isinstance(k, int) and not isinstance(k, bool) and k > 0 for k in counts):
            raise ValueError(f"hits is {self.hits!r}; expected numbers of pairs, such as (10, 50)")
        object.__setattr__(self, "hits", counts)

    def splits(self, shard: Shard) -> tuple[str, ...]:
        """Returns the splits that have a mask; see `Task.splits`."""
        if shard.labels is None or shard.labels.ndim != shard.node_ids.ndim:
            raise ValueError(
                "link prediction learns a label 1 or 0 of each pair, and the graph has none; make "
                "it by jaxgraph.transforms.link_split, or with_links(..., labels=...)"
            )
        if shard.manifest.num_classes > 2:
            raise ValueError(
                "link prediction learns a label 1 or 0 of each pair, and the labels are of "
                f"{shard.manifest.num_classes} classes; leave task= out, which learns classes"
            )
        return super().splits(shard)

    def evaluated_splits(self, shard: Shard) -> tuple[str, ...]:
        """Returns the splits but "train"; see `Task.evaluated_splits`."""
        return tuple(split for split in self.splits(shard) if split != "train")

    def sums(self, outputs: jax.Array, shard: Shard, split: str) -> Sums:
        """Sums over the pairs of a split, and their scores; see `Task.sums`.

        Args:
          outputs: scores, float [rows].
          shard: the shard.
          split: "train", "val" or "test".

        Returns:
          The summed loss, the number of pairs and, but for training, all scores.
        """
        mask, labels = split_mask(shard, split), shard.labels
        if getattr(outputs, "shape", None) != (shard.num_rows,) or labels is None:
            raise ValueError(
                f"the model returned {described(outputs)}; link prediction expects a score for "
                f"each pair, [{shard.num_rows}], such as jaxgraph.nn.LinkReadout returns"
            )
        scores = jnp.where(mask, to_accumulation(outputs), 0)
        targets = jnp.where(mask, labels, 0)
        losses = optax.sigmoid_binary_cross_entropy(scores, targets.astype(scores.dtype))
        found = {
            "loss": jnp.where(mask, losses, 0).sum(),
            "count": mask.sum(dtype=jnp.int32),
        }
        if split == "train":
            return found
        # A pair's label plus 1, so that the rows of other devices, 0, count as none.
        kinds = jnp.where(mask, labels + 1, 0)
        return found | {"scores": Scores(*(_of_all(shard, x) for x in (scores, kinds)))}

    def metrics(self, sums: Sums) -> Mapping[str, jax.Array]:
        """Computes loss and metrics of a split; NaN without links or without other pairs."""
        loss = sums["loss"]
        found = {"loss": loss / sums["count"].astype(loss.dtype)}
        if "scores" in sums:
            ranks = ranks_of(sums["scores"].scores, sums["scores"].kinds - 1)
            found |= {"roc_auc": ranks.roc_auc(), "average_precision": ranks.average_precision()}
            found |= {f"hits@{k}": ranks.hits_at(k) for k in self.hits}
        return found


@pytree
class Scores(Merged):
    """The scores of all pairs; those of several graphs stand one after the other.

    Attributes:
      scores: float [pairs].
      kinds: int32 [pairs], 2 of a link, 1 of another pair, 0 of padding.
    """

    scores: jax.Array
    kinds: jax.Array

    def __add__(self, other: Scores) -> Scores:
        return jax.tree.map(lambda *both: jnp.concatenate(both), self, other)


def _of_all(shard: Shard, values: jax.Array) -> jax.Array:
    """This shard's share of the values of all shards, [shards * rows]: those of others are 0."""
    rows = jnp.zeros((shard.num_parts, len(values)), values.dtype)
    return rows.at[lax.axis_index(shard.axis)].set(values).reshape(-1)
