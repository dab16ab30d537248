"""Label propagation, and Correct & Smooth: predictions improved by the labels of neighbours."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph.kinds import check_positive, kind_of
from jaxgraph.layers.propagation import check_alpha
from jaxgraph.metrics import accuracy
from jaxgraph.parallel import ShardedGraph
from jaxgraph.parallel.neighborhood import is_graph
from jaxgraph.parallel.whole_graph import as_sharded
from jaxgraph.train.propagation import node_arrays, propagated
from jaxgraph.train.task import SPLITS

if TYPE_CHECKING:
    from jaxgraph.graph import Graph

_LARGEST = 1000
"""The largest scale; one that would be larger, of a node that hardly any error reaches, is 1."""
_OF_PROBABILITY = 1e-2
"""The amount by which a probability of 16 bits may leave [0, 1]."""


def correct_and_smooth(
    predictions: np.ndarray,
    graph: Graph | ShardedGraph,
    *,
    correct_steps: int = 50,
    correct_alpha: float | tuple[float, ...] = 0.9,
    smooth_steps: int = 50,
    smooth_alpha: float | tuple[float, ...] = 0.8,
    autoscale: bool | tuple[bool, ...] = True,
    scale: float | tuple[float, ...] = 1.0,
    labels_of: tuple[str, ...] = ("train",),
    on_choice: Callable[[Mapping[str, Any]], None] | None = None,
) -> np.ndarray:
    """Corrects predictions by the errors of training nodes, and smooths them by their labels.

    e_i = y_i - p_i of training nodes, else 0;  E = clip(a A E + (1 - a) e, -1, 1), from E = e
    q_i = p_i + s_i E_i;  s_i = mean_train |e|_1 / |E_i|_1, and 1 where this is above 1000
    z_i = y_i of labelled nodes, else q_i;  Z = clip(b A Z + (1 - b) z, 0, 1), from Z = z

    where A = D^-1/2 W D^-1/2 has the weights of edges, no added self-loops and no other data of
    edges, and D is the sum of the weights that enter a node. Without `autoscale` s is `scale`, and
    the rows of training nodes are e_i again after each step instead of the clip.

    Where an option is a tuple of several candidates, the combination with the best accuracy on the
    validation nodes is taken, the first of equal ones. Smoothing does not use their labels then;
    where `labels_of` has "val", the smoothing of the result does.

    Args:
      predictions: probabilities, float [num_nodes, classes], in the order of the graph, such as
        `jax.nn.softmax` of the outputs of `predict`.
      graph: the graph, with one class per node and training nodes.
      correct_steps, smooth_steps: numbers of steps.
      correct_alpha: a, in [0, 1], or candidates.
      smooth_alpha: b, in [0, 1], or candidates.
      autoscale: whether the scale is that of each node, or both as candidates.
      scale: s without `autoscale`, in [0, 1000], or candidates.
      labels_of: the splits whose labels the smoothing uses, ("train",) or ("train", "val").
      on_choice: called with the chosen options and their "val_accuracy", where there was a choice.

    Returns:
      float [num_nodes, classes] in the order of the graph, in every process.

    Raises:
      ValueError: an argument is of the wrong kind or out of range, or the graph has no labels,
        several per node, several sets of nodes, no training nodes, or lacks validation nodes that
        `labels_of` or candidates ask for.

    References:
      Huang et al., "Combining label propagation and simple models out-performs graph neural
      networks", 2021.
    """
    check_positive("correct_steps", correct_steps)
    check_positive("smooth_steps", smooth_steps)
    correct_alphas = _candidates("correct_alpha", correct_alpha, 1)
    smooth_alphas = _candidates("smooth_alpha", smooth_alpha, 1)
    autoscales, scales = _candidates("autoscale", autoscale), _candidates("scale", scale, _LARGEST)
    is_choice = max(map(len, (correct_alphas, smooth_alphas, autoscales, scales))) > 1
    _check_labels_of(labels_of)
    needed = ("train", "val") if is_choice else labels_of
    size = _checked_size(graph, "correct_and_smooth(predictions, graph)", needed)
    start = _checked_predictions(predictions, *size)
    placed: ShardedGraph = as_sharded(graph)
    labels, *masks = node_arrays(placed, "labels", *map(_mask, needed))
    hot, train = _one_hot(labels, start), masks[0]
    error = np.where(train[:, None], hot - start, 0)

    mean = np.abs(error[train]).sum(1).mean()

    def corrected(alpha: float, own_scale: bool) -> Iterator[tuple[float | None, np.ndarray]]:
        """The scale, None for one of each node, and the corrected predictions."""
        if own_scale:
            moved = propagated(placed, error, correct_steps, alpha, (-1, 1))
            total = np.abs(moved).sum(1, keepdims=True)
            is_large = mean >= _LARGEST * total
            yield None, start + np.where(is_large, 1, mean / np.where(is_large, 1, total)) * moved
            return
        moved = propagated(placed, error, correct_steps, alpha, None)
        yield from ((float(each), start + each * moved) for each in scales)

    def smoothed(corrected: np.ndarray, alpha: float, shown: Sequence[np.ndarray]) -> np.ndarray:
        known = np.logical_or.reduce(shown)[:, None]
        return propagated(placed, np.where(known, hot, corrected), smooth_steps, alpha, (0, 1))

    def results() -> Iterator[tuple[float, Any, np.ndarray, np.ndarray]]:
        for correct, own_scale in itertools.product(correct_alphas, autoscales):
            for scale, before in corrected(correct, own_scale):
                for smooth in smooth_alphas:
                    after = smoothed(before, smooth, masks[:1] if is_choice else masks)
                    score = accuracy(after, labels, masks[1]) if is_choice else 0.0
                    yield score, (correct, scale, smooth), before, after

    score, (correct, chosen_scale, smooth), before, after = max(results(), key=lambda each: each[0])
    if is_choice and on_choice is not None:
        chosen = {"correct_alpha": correct, "smooth_alpha": smooth}
        chosen |= {"autoscale": chosen_scale is None, "scale": chosen_scale}
        on_choice(chosen | {"val_accuracy": score})
    return smoothed(before, smooth, masks) if is_choice and "val" in labels_of else after


def label_propagation(
    graph: Graph | ShardedGraph,
    *,
    steps: int = 50,
    alpha: float = 0.9,
    labels_of: tuple[str, ...] = ("train",),
) -> np.ndarray:
    """Predicts classes from the labels of neighbours alone.

    z_i = y_i of labelled nodes, else 0;  Z = clip(alpha A Z + (1 - alpha) z, 0, 1), from Z = z

    where A is that of `correct_and_smooth`.

    Args:
      graph: the graph, with one class per node and training nodes.
      steps: number of steps.
      alpha: share of the neighbours, in [0, 1].
      labels_of: the splits whose labels are used, ("train",) or ("train", "val").

    Returns:
      float [num_nodes, classes] in the order of the graph, in every process; a row of 0 where no
      labelled node is within `steps`.

    Raises:
      ValueError: as for `correct_and_smooth`.

    References:
      Zhu and Ghahramani, "Learning from labeled and unlabeled data with label propagation", 2002.
    """
    check_positive("steps", steps)
    check_alpha(alpha)
    _check_labels_of(labels_of)
    num_nodes, num_classes = _checked_size(graph, "label_propagation(graph)", labels_of)
    placed: ShardedGraph = as_sharded(graph)
    labels, *masks = node_arrays(placed, "labels", *map(_mask, labels_of))
    start = np.zeros((num_nodes, num_classes), jax.dtypes.canonicalize_dtype(float))
    known = np.logical_or.reduce(masks)[:, None]
    return propagated(placed, np.where(known, _one_hot(labels, start), start), steps, alpha, (0, 1))


def accuracies(predictions: np.ndarray, graph: ShardedGraph) -> dict[str, float]:
    """The accuracy of predictions [num_nodes, classes] on each split of a graph."""
    splits = [split for split in SPLITS if getattr(graph.shards, _mask(split)) is not None]
    labels, *masks = node_arrays(graph, "labels", *map(_mask, splits))
    return {s: accuracy(predictions, labels, m) for s, m in zip(splits, masks, strict=True)}


def _mask(split: str) -> str:
    return f"{split}_mask"


def _one_hot(labels: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The labels as probabilities [nodes, classes]; 0 without a label."""
    return (labels[:, None] == np.arange(like.shape[1])).astype(like.dtype)


_USES = {
    "train": "show their labels",
    "val": 'candidates and labels_of with "val" need',
}


def _checked_size(graph: Any, function: str, needed: Sequence[str]) -> tuple[int, int]:
    """The numbers of nodes and classes of a graph with some splits; computes nothing."""
    is_sharded = isinstance(graph, ShardedGraph)
    if not is_graph(graph) and (not is_sharded or graph.shards.is_typed):
        found = "the shards of a typed graph" if is_sharded else kind_of(graph)
        raise ValueError(
            f"{function}: got {found}; expected a jaxgraph.Graph, which has one set of nodes and "
            "one of edges, or the result of jaxgraph.parallel.shard(graph, partition, mesh)"
        )
    source = graph.shards if is_sharded else graph
    if is_sharded and not graph.is_streamed and isinstance(source.node_ids, jax.ShapeDtypeStruct):
        raise ValueError(
            f"{function}: the sharded graph is abstract and holds no data; place it from a source "
            "with data"
        )
    if source.labels is None or source.labels.ndim - is_sharded > 1:
        several = "no labels" if source.labels is None else "several labels per node"
        raise ValueError(
            f"{function}: the graph has {several}; expected one class per node, Graph labels=... "
            "Targets of a regression are no classes either"
        )
    for split in needed:
        if getattr(source, _mask(split)) is None:
            raise ValueError(
                f"{function}: the graph has no {split} nodes, which {_USES[split]}; give Graph "
                f"{split}_mask=..., or draw one with jaxgraph.transforms.random_split"
            )
    return graph.num_nodes, (graph.manifest if is_sharded else graph).num_classes


def _checked_predictions(predictions: Any, num_nodes: int, num_classes: int) -> np.ndarray:
    found = np.asarray(predictions)
    expected = f"expected probabilities, floating [{num_nodes}, {num_classes}], of all nodes"
    fits = found.ndim == 2 and len(found) == num_nodes and found.shape[1] >= num_classes
    if not fits or not jnp.issubdtype(found.dtype, jnp.floating):
        raise ValueError(f"predictions: got {found.dtype} {list(found.shape)}; {expected}")
    found = found.astype(jax.dtypes.canonicalize_dtype(jnp.promote_types(found.dtype, np.float32)))
    # NaN fails the comparison.
    (wrong,) = np.nonzero(~(np.abs(found - 0.5) <= 0.5 + _OF_PROBABILITY).all(1))
    if wrong.size:
        raise ValueError(
            f"predictions of {wrong.size} nodes are not finite or leave [0, 1], of node {wrong[0]} "
            f"first; {expected}: jax.nn.softmax(jaxgraph.train.predict(model, graph))"
        )
    return found


def _candidates(name: str, value: Any, most: float | None = None) -> tuple[Any, ...]:
    """The candidates of an option, numbers from 0 to `most` or, without it, booleans."""

    def is_valid(each: Any) -> bool:
        if most is None or isinstance(each, bool):
            return most is None and isinstance(each, bool)
        return isinstance(each, Real) and 0 <= float(each) <= most

    found = value if isinstance(value, tuple) else (value,)
    if not found or not all(map(is_valid, found)):
        expected = "True or False" if most is None else f"a number in [0, {most}]"
        raise ValueError(f"{name} is {value!r}; expected {expected}, or a tuple of candidates")
    return found


def _check_labels_of(labels_of: Any) -> None:
    if labels_of not in (("train",), ("train", "val")):
        raise ValueError(
            f'labels_of is {labels_of!r}; expected the splits ("train",) or ("train", "val")'
        )
