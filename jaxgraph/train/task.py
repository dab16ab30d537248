"""The task of a model: sums of a loss and of its metrics over the nodes of a shard."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax

from jaxgraph.metrics import accuracy_counts, f1_counts, f1_from_counts
from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.parallel import Shard

__all__ = ["SPLITS", "NodeClassification", "Sums", "Task"]

SPLITS = ("train", "val", "test")

Sums = Mapping[str, Any]
"""A pytree of sums and counts; those of shards, and of graphs, add up to those of the whole."""


@runtime_checkable
class Task(Protocol):
    """The goal of a model; training, evaluation and the history read nothing else of it.

    A task is hashable and holds no arrays: it is a static part of compiled programs. Its three
    methods are called in this order: `splits` before compilation, `sums` on every shard, `metrics`
    on the sums over all shards (and over all graphs, where there are several).
    """

    def splits(self, shard: Shard) -> tuple[str, ...]:
        """Returns those of "train", "val" and "test" that a graph has.

        Args:
          shard: the shard, or the stacked shards of a sharded graph; only which of its arrays are
            there may be looked at, because they may be abstract.

        Returns:
          Names in the order above.

        Raises:
          ValueError: the graph lacks what the task learns from.
        """
        ...

    def sums(self, outputs: Any, shard: Shard, split: str) -> Sums:
        """This shard's share of the sums and counts from which loss and metrics are computed.

        Args:
          outputs: what the model returned.
          shard: the shard; rows where `node_mask` is False are padding and must not count.
          split: "train", "val" or "test".

        Returns:
          A pytree of arrays, of the same shapes on every shard.

        Raises:
          ValueError: the outputs do not fit the graph.
        """
        ...

    def metrics(self, sums: Sums) -> Mapping[str, jax.Array]:
        """The loss, under "loss", and the metrics of all shards.

        Args:
          sums: what `sums` returned, added up.

        Returns:
          Scalars by name; "loss" is differentiated, "accuracy" is shown where there is one.
        """
        ...


@dataclasses.dataclass(frozen=True)
class NodeClassification:
    """One class per node (softmax cross entropy), or several labels (sigmoid cross entropy).

    loss = 1/n sum_v -log softmax(z_v)[y_v],   over the n nodes of the split that have a label

    loss = 1/(n L) sum_v sum_l log(1 + exp z_vl) - y_vl z_vl,   where nodes have L labels of 0 and 1

    Metrics are "accuracy" (of nodes, or of pairs of node and label) and, of several labels,
    "micro_f1".
    """

    def splits(self, shard: Shard) -> tuple[str, ...]:
        """The splits that have a mask; see `Task.splits`."""
        if shard.labels is None:
            raise ValueError(
                "the graph has no labels, and node classification learns from them; give Graph "
                "labels=..., or pass task= another task"
            )
        return tuple(name for name in SPLITS if _mask(shard, name) is not None)

    def sums(self, outputs: jax.Array, shard: Shard, split: str) -> Sums:
        """Sums over the labelled nodes of a split; see `Task.sums`.

        Args:
          outputs: logits, float [rows, classes] or [rows, labels].
          shard: the shard.
          split: "train", "val" or "test".

        Returns:
          The summed loss, the number of nodes, and the outcomes that the metrics are made of.
        """
        mask = _mask(shard, split)
        if mask is None or shard.labels is None:
            raise ValueError(f"the graph has no {split}_mask, or no labels")
        multilabel = shard.labels.ndim == 2
        _check_outputs(outputs, shard, multilabel)
        chosen = mask & shard.node_mask
        # The loss is a sum over nodes, and counts have no exact bfloat16 above 256.
        outputs = to_accumulation(outputs)
        if multilabel:
            # Before the arithmetic: a gradient through NaN would be NaN even where it is masked.
            logits = jnp.where(chosen[:, None], outputs, 0)
            labels = shard.labels.astype(logits.dtype)
            losses = optax.sigmoid_binary_cross_entropy(logits, labels).mean(axis=1)
            outcomes: Any = f1_counts(logits, shard.labels, chosen)
        else:
            chosen &= shard.labels >= 0
            logits = jnp.where(chosen[:, None], outputs, 0)
            classes = jnp.where(chosen, shard.labels, 0)
            losses = jax.nn.logsumexp(logits, axis=1) - _of_class(logits, classes)
            outcomes = accuracy_counts(logits, shard.labels, chosen)[0]
        return {
            "loss": jnp.where(chosen, losses, 0).sum(),
            "nodes": chosen.sum(dtype=jnp.int32),
            "outcomes": outcomes,
        }

    def metrics(self, sums: Sums) -> Mapping[str, jax.Array]:
        """Loss and metrics of the whole split; NaN where it has no labelled node."""
        loss, outcomes = sums["loss"], sums["outcomes"]
        nodes = sums["nodes"].astype(loss.dtype)
        if isinstance(outcomes, jax.Array):
            return {"loss": loss / nodes, "accuracy": outcomes.astype(loss.dtype) / nodes}
        wrong = (outcomes.false_positives + outcomes.false_negatives).astype(loss.dtype)
        return {
            "loss": loss / nodes,
            "accuracy": 1 - wrong.mean() / nodes,
            "micro_f1": f1_from_counts(outcomes, "micro"),
        }


def _mask(shard: Shard, split: str) -> jax.Array | None:
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; expected one of {', '.join(SPLITS)}")
    return getattr(shard, f"{split}_mask")


def _check_outputs(outputs: Any, shard: Shard, multilabel: bool) -> None:
    wanted = shard.manifest.num_classes
    kind = "labels" if multilabel else "classes"
    shape = getattr(outputs, "shape", None)
    if shape is None or len(shape) != 2 or shape[0] != shard.num_rows:
        raise ValueError(
            f"the model returned {type(outputs).__name__} of shape {shape}; node classification "
            f"expects logits [{shard.num_rows}, {wanted}], a row for every node of the shard"
        )
    fits = shape[1] == wanted if multilabel else shape[1] >= wanted
    if not fits:
        raise ValueError(
            f"the model has {shape[1]} outputs, but the graph has {wanted} {kind}; make the model "
            f"with out_features={wanted}"
        )


@jax.custom_jvp
def _of_class(logits: jax.Array, classes: jax.Array) -> jax.Array:
    """z_v[y_v] of logits [rows, classes] and int [rows], whose gradient is no scatter."""
    rows = jnp.arange(logits.shape[0], dtype=classes.dtype)
    return logits.at[rows, classes].get(mode="clip", wrap_negative_indices=False)


@_of_class.defjvp
def _of_class_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    logits, classes = primals
    is_class = classes[:, None] == jnp.arange(logits.shape[1], dtype=classes.dtype)[None]
    return _of_class(logits, classes), jnp.where(is_class, tangents[0], 0).sum(1)
