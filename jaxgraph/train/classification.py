"""Node classification: one class per node, or several labels, known or missing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxgraph.graph_arrays import LABEL_COLUMNS
from jaxgraph.kinds import check_graph
from jaxgraph.metrics import accuracy_counts, f1_counts, f1_from_counts
from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.parallel import Shard, ShardedGraph
from jaxgraph.train.task import Sums, Task, described, split_mask

if TYPE_CHECKING:
    from jaxgraph.graph import Graph


@dataclasses.dataclass(frozen=True)
class NodeClassification(Task):
    """One class per node (softmax cross entropy), or several labels (sigmoid cross entropy).

    For C classes, over the nodes v of the split with a label y_v, and with p_v = softmax(z_v):

    loss = sum_v [(1 - s) w_(y_v) (-log p_v[y_v]) + s / C sum_c w_c (-log p_v[c])] / sum_v w_(y_v)

    For several labels, over the known pairs of a node v of the split and a label l, and with t_vl =
    (1 - s) y_vl + s / 2:

    loss = sum_vl w_l [log(1 + exp z_vl) - t_vl z_vl] / sum_vl w_l

    Metrics are "accuracy" (of nodes, or of known pairs of node and label) and, for several labels,
    "micro_f1"; neither weights classes.

    Attributes:
      class_weights: w, one for each output of the model; None: 1 for each.
      label_smoothing: s, from 0 to below 1.

    Raises:
      ValueError: a weight is negative or not finite, all are 0, or s is out of range.
    """

    class_weights: tuple[float, ...] | None = None
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.class_weights is not None:
            object.__setattr__(self, "class_weights", _checked_weights(self.class_weights))
        smoothing = self.label_smoothing
        is_number = isinstance(smoothing, int | float | np.number) and not isinstance(
            smoothing, bool
        )
        if not is_number or not 0 <= smoothing < 1:
            raise ValueError(
                f"label_smoothing is {smoothing!r}; expected a share from 0 to below 1, such as 0.1"
            )
        object.__setattr__(self, "label_smoothing", float(smoothing))

    @classmethod
    def balanced(cls, graph: Graph, *, label_smoothing: float = 0.0) -> NodeClassification:
        """Makes a task in which all classes have the same total weight over the training nodes.

        w_c = n / (C n_c), where n_c of n labelled training nodes have class c; 0 if n_c = 0

        Args:
          graph: a graph with one class per node, and training nodes.
          label_smoothing: as for the task.

        Returns:
          The task, for models with an output for each of the graph's classes.

        Raises:
          ValueError: the graph has no classes, or no training nodes.
        """
        check_graph(graph, "NodeClassification.balanced(graph)")
        if graph.labels is None or graph.is_multilabel or graph.train_mask is None:
            raise ValueError(
                f"NodeClassification.balanced: {graph!r}; expected a graph with one class per node "
                "(Graph labels=...) and training nodes (train_mask=...)"
            )
        known = graph.labels[graph.train_mask & (graph.labels >= 0)]
        counts = np.bincount(known, minlength=graph.num_classes)
        shares = known.size / (counts.size * np.maximum(counts, 1))
        return cls(tuple(np.where(counts > 0, shares, 0).tolist()), label_smoothing)

    def splits(self, shard: Shard) -> tuple[str, ...]:
        """Returns the splits that have a mask; see `Task.splits`."""
        if shard.labels is None:
            raise ValueError(
                "the graph has no labels, and node classification learns from them; give Graph "
                "labels=..., or pass task= another task, such as jaxgraph.train.NodeRegression("
                "'target') for numbers of graph.with_nodes(target=...)"
            )
        return super().splits(shard)

    def check_training(self, graph: ShardedGraph) -> None:
        """Refuses features that show the labels to learn; see `Task.check_training`."""
        if LABEL_COLUMNS in graph.shards.node_data:
            raise ValueError(
                "the graph has label columns, which show each training node the label that it is "
                "to learn; pass task=jaxgraph.train.MaskedLabelPrediction(), which hides them"
            )

    def sums(self, outputs: jax.Array, shard: Shard, split: str) -> Sums:
        """Sums over the labelled nodes of a split; see `Task.sums`.

        Args:
          outputs: logits, float [rows, classes] or [rows, labels].
          shard: the shard.
          split: "train", "val" or "test".

        Returns:
          The summed loss, its divisor, and the outcomes from which metrics are computed.
        """
        mask, labels = split_mask(shard, split), shard.labels
        if labels is None:
            raise ValueError("the graph has no labels")
        _check_outputs(outputs, shard, self.class_weights)
        # The loss is a sum over nodes, and bfloat16 holds no exact counts above 256.
        outputs = to_accumulation(outputs)
        of_kind = self._sums_of_classes if labels.ndim == 1 else self._sums_of_labels
        return of_kind(outputs, labels, mask)

    def metrics(self, sums: Sums) -> Mapping[str, jax.Array]:
        """Computes loss and metrics of the whole split; NaN without labels."""
        loss, outcomes = sums["loss"], sums["outcomes"]
        count = sums["count"].astype(loss.dtype)
        weighed = sums.get("weight", count)
        if isinstance(outcomes, jax.Array):
            return {"loss": loss / weighed, "accuracy": outcomes.astype(loss.dtype) / count}
        weighed, count = weighed.sum(), count.sum()
        return {
            "loss": loss / weighed,
            "accuracy": 1 - sums["wrong"].astype(loss.dtype).sum() / count,
            "micro_f1": f1_from_counts(outcomes, "micro"),
        }

    def _sums_of_classes(self, outputs: jax.Array, labels: jax.Array, mask: jax.Array) -> Sums:
        chosen = mask & (labels >= 0)
        # Masked before the arithmetic: otherwise a masked gradient through NaN would be NaN.
        logits = jnp.where(chosen[:, None], outputs, 0)
        classes = jnp.where(chosen, labels, 0)
        log_total = jax.nn.logsumexp(logits, axis=1)
        losses = log_total - _of_class(logits, classes)
        weights, weighed = self._weights(logits), {}
        if self.class_weights is not None:
            own = jnp.where(chosen, weights[classes], 0)
            losses, weighed = losses * own, {"weight": own.sum()}
        if self.label_smoothing:
            share = self.label_smoothing / logits.shape[1]
            of_all = log_total * sum(self.class_weights or (logits.shape[1],))
            of_all = of_all - (logits * weights).sum(1)
            losses = (1 - self.label_smoothing) * losses + share * of_all
        return {
            "loss": jnp.where(chosen, losses, 0).sum(),
            "count": chosen.sum(dtype=jnp.int32),
            "outcomes": accuracy_counts(logits, labels, chosen)[0],
            **weighed,
        }

    def _sums_of_labels(self, outputs: jax.Array, labels: jax.Array, mask: jax.Array) -> Sums:
        # NaN fails the comparison: it is not known.
        known = mask[:, None] & (labels >= 0)
        logits, targets = (jnp.where(known, values, 0) for values in (outputs, labels))
        targets = targets.astype(logits.dtype)
        if self.label_smoothing:
            targets = (1 - self.label_smoothing) * targets + self.label_smoothing / 2
        losses = jnp.where(known, optax.sigmoid_binary_cross_entropy(logits, targets), 0)
        # NaN is neither: it is wrong for both.
        right = jnp.where(labels > 0, logits > 0, logits <= 0)
        # Counted by label: 32 bits do not hold the number of pairs of a large graph.
        counts = known.sum(axis=0, dtype=jnp.int32)
        weighed = {}
        if self.class_weights is not None:
            weights = self._weights(logits)
            losses, weighed = losses * weights, {"weight": counts * weights}
        return {
            "loss": losses.sum(),
            "count": counts,
            "outcomes": f1_counts(logits, labels, mask),
            "wrong": (known & ~right).sum(axis=0, dtype=jnp.int32),
            **weighed,
        }

    def _weights(self, logits: jax.Array) -> jax.Array:
        weights = self.class_weights or (1.0,) * logits.shape[1]
        return jnp.asarray(weights, logits.dtype)


def _checked_weights(weights: Any) -> tuple[float, ...]:
    try:
        found = tuple(float(weight) for weight in weights)
    except (TypeError, ValueError):
        found = ()
    if not found or not all(math.isfinite(w) and w >= 0 for w in found) or not any(found):
        raise ValueError(
            f"class_weights is {weights!r}; expected a number from 0 up for each output of the "
            "model, such as (1.0, 2.5), not all 0, or None"
        )
    return found


def _check_outputs(outputs: Any, shard: Shard, weights: tuple[float, ...] | None) -> None:
    assert shard.labels is not None
    multilabel = shard.labels.ndim == 2
    wanted = shard.manifest.num_classes
    kind = "labels" if multilabel else "classes"
    shape = getattr(outputs, "shape", None)
    if shape is None or len(shape) != 2 or shape[0] != shard.num_rows:
        are_scores = shape == (shard.num_rows,)
        raise ValueError(
            f"the model returned {described(outputs)}; node classification "
            f"expects logits [{shard.num_rows}, {wanted}], a row for every node of the shard"
            + ("; scores of links need task=jaxgraph.train.LinkPrediction()" if are_scores else "")
        )
    fits = shape[1] == wanted if multilabel else shape[1] >= wanted
    if not fits:
        raise ValueError(
            f"the model has {shape[1]} outputs, but the graph has {wanted} {kind}; make the model "
            f"with out_features={wanted}"
        )
    if weights is not None and len(weights) != shape[1]:
        raise ValueError(
            f"class_weights has {len(weights)} numbers, but the model has {shape[1]} outputs; pass "
            "one for each"
        )


@jax.custom_jvp
def _of_class(logits: jax.Array, classes: jax.Array) -> jax.Array:
    """z_v[y_v] of logits [rows, classes] and int [rows]; its gradient needs no scatter."""
    rows = jnp.arange(logits.shape[0], dtype=classes.dtype)
    return logits.at[rows, classes].get(mode="clip", wrap_negative_indices=False)


@_of_class.defjvp
def _of_class_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    logits, classes = primals
    is_class = classes[:, None] == jnp.arange(logits.shape[1], dtype=classes.dtype)[None]
    return _of_class(logits, classes), jnp.where(is_class, tangents[0], 0).sum(1)
