"""Accuracy, F1 and ROC-AUC of node predictions, single- and multi-label, and ranks of links.

`accuracy`, `f1_score` and `roc_auc` take whole graphs on the host and return a number.
`accuracy_counts`, `f1_counts` and `f1_from_counts` compute the first two in steps, from NumPy or
JAX arrays, traced or not. Counts can be summed over batches and devices in between: a metric of the
whole is not the mean of the metrics of its parts. `Ranks` are of all links at once.

Labels are integer [n], a class or -1 for none, or [n, labels] of 0 and 1, NaN for none
(multi-label). Outputs are logits or predictions. Logits [n, classes] predict the class of the
largest, logits [n, labels] the labels of the positive ones. A row [n, classes] with a NaN predicts
no class, and a NaN of [n, labels] is neither positive nor right. Predictions are integer or
boolean, in the shape of the labels.
"""

from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

__all__ = [
    "F1Counts",
    "Ranks",
    "accuracy",
    "accuracy_counts",
    "average_precision",
    "f1_counts",
    "f1_from_counts",
    "f1_score",
    "hits_at",
    "ranks_of",
    "roc_auc",
]

Array: TypeAlias = np.ndarray | jax.Array
Average: TypeAlias = Literal["micro", "macro"]


class F1Counts(NamedTuple):
    """Outcomes of each class or label; the counts of parts add up to those of the whole.

    Attributes:
        true_positives: int32 [classes], nodes of the class that are predicted so.
        false_positives: int32 [classes], nodes of other classes that are predicted to be of it.
        false_negatives: int32 [classes], nodes of the class that are predicted otherwise.
    """

    true_positives: Any
    false_positives: Any
    false_negatives: Any


def accuracy_counts(outputs: Array, labels: Array, mask: Array | None = None) -> tuple[Any, Any]:
    """Counts right predictions of nodes, or of (node, label) pairs for multi-label graphs.

    accuracy = (sum of correct) / (sum of count)

    Args:
        outputs: logits [n, classes] or [n, labels], or predictions in the shape of the labels.
        labels: integer [n], or 0 and 1 [n, labels].
        mask: bool [n], the nodes that count (None: all); nodes of label -1 never do.

    Returns:
        (correct, count), int32 scalars.

    Raises:
        ValueError: if shapes or types do not fit together.
    """
    xp = _namespace(outputs, labels, mask)
    _check(outputs, labels, mask)
    counted = _counted(xp, labels, mask)
    if labels.ndim == 1:
        right = _predicted_classes(xp, outputs) == xp.asarray(labels)
        return (right & counted).sum(dtype=np.int32), counted.sum(dtype=np.int32)
    outputs = xp.asarray(outputs)
    # NaN fails both comparisons.
    right = xp.where(xp.asarray(labels) > 0, outputs > 0, outputs <= 0)
    return (right & counted).sum(dtype=np.int32), counted.sum(dtype=np.int32)


def f1_counts(
    outputs: Array, labels: Array, mask: Array | None = None, num_classes: int | None = None
) -> F1Counts:
    """Counts true positives, false positives and false negatives of each class or label.

    Args:
        outputs: logits [n, classes] or [n, labels], or predictions in the shape of the labels.
        labels: integer [n], or 0 and 1 [n, labels].
        mask: bool [n], the nodes that count (None: all); nodes of label -1 never do.
        num_classes: number of classes, needed where `outputs` are predicted classes. A prediction
            outside of them is a false negative of the node's class, and no false positive.

    Returns:
        The counts, int32 [classes] or [labels] each.

    Raises:
        ValueError: if shapes or types do not fit together, or `num_classes` is needed.
    """
    xp = _namespace(outputs, labels, mask)
    _check(outputs, labels, mask)
    counted = _counted(xp, labels, mask)
    if labels.ndim == 1:
        counted = counted[:, None]
        if outputs.ndim == 1 and num_classes is None:
            raise ValueError("outputs are predicted classes: pass num_classes, or logits")
        classes = xp.arange(outputs.shape[1] if outputs.ndim == 2 else num_classes)[None, :]
        predicted = _predicted_classes(xp, outputs)[:, None] == classes
        actual = xp.asarray(labels)[:, None] == classes
    else:
        predicted = xp.asarray(outputs) > 0
        actual = xp.asarray(labels) > 0
    outcomes = (predicted & actual, predicted & ~actual, ~predicted & actual)
    return F1Counts(*((outcome & counted).sum(axis=0, dtype=np.int32) for outcome in outcomes))


def f1_from_counts(counts: F1Counts, average: Average) -> Any:
    """Computes F1, the harmonic mean of precision and recall, from counts over all nodes.

    F1 = 2 TP / (2 TP + FP + FN)

    Args:
        counts: of each class, summed over all nodes.
        average: "micro" (F1 of the counts summed over classes), or "macro" (mean of the F1 of
            each class that occurs among labels or predictions).

    Returns:
        A scalar: float64 for NumPy counts, JAX's default float for JAX counts; 0 without nodes.

    Raises:
        ValueError: if `average` is neither "micro" nor "macro".
    """
    if average not in ("micro", "macro"):
        raise ValueError(f"average must be 'micro' or 'macro', got {average!r}")
    xp = _namespace(*counts)
    true, false_positive, false_negative = (xp.asarray(count).astype(float) for count in counts)
    doubled, total = 2 * true, 2 * true + false_positive + false_negative
    if average == "micro":
        return doubled.sum() / xp.maximum(total.sum(), 1)
    # A class that occurs has a total of at least 1; an absent class contributes 0 / 1.
    of_class = doubled / xp.maximum(total, 1)
    return of_class.sum() / xp.maximum((total > 0).astype(float).sum(), 1)


def accuracy(outputs: Array, labels: Array, mask: Array | None = None) -> float:
    """Computes the share of right predictions of nodes, or of (node, label) pairs.

    Args:
        outputs: logits [n, classes] or [n, labels], or predictions in the shape of the labels.
        labels: integer [n], or 0 and 1 [n, labels].
        mask: bool [n], the nodes that count (None: all); nodes of label -1 never do.

    Returns:
        A number in [0, 1].

    Raises:
        ValueError: if shapes or types do not fit together, or no node counts.
    """
    correct, count = accuracy_counts(*_on_host(outputs, labels, mask))
    return float(correct / count)


def f1_score(
    outputs: Array, labels: Array, mask: Array | None = None, average: Average = "micro"
) -> float:
    """Computes micro or macro F1, see `f1_from_counts`.

    A predicted class that no node has, such as -1, counts as a class.

    Args:
        outputs: logits [n, classes] or [n, labels], or predictions in the shape of the labels.
        labels: integer [n], or 0 and 1 [n, labels].
        mask: bool [n], the nodes that count (None: all); nodes of label -1 never do.
        average: "micro" or "macro".

    Returns:
        A number in [0, 1].

    Raises:
        ValueError: if shapes or types do not fit together, or no node counts.
    """
    outputs, labels, mask = _on_host(outputs, labels, mask)
    num_classes = None
    if outputs.ndim == 1:
        counted = _counted(np, labels, mask)
        occurring = np.stack([outputs[counted], labels[counted]])
        classes, codes = np.unique(occurring, return_inverse=True)
        (outputs, labels), mask = codes.reshape(occurring.shape), None
        num_classes = len(classes)
    return float(f1_from_counts(f1_counts(outputs, labels, mask, num_classes), average))


def roc_auc(scores: Array, labels: Array, mask: Array | None = None) -> float:
    """Computes the area under the ROC curve, the mean over the labels.

    AUC = (sum of the ranks of the positives - P (P + 1) / 2) / (P N), where P positives and N
    negatives are ranked by score, and equal scores get the mean of their ranks. Labels of all nodes
    or of none are left out.

    Args:
        scores: float [n, labels] or [n], higher for nodes more likely to have the label.
        labels: 0 and 1, NaN for an unknown label, in the shape of `scores`.
        mask: bool [n], the nodes that count (None: all).

    Returns:
        A number in [0, 1].

    Raises:
        ValueError: if shapes or values do not fit, or no label has both positives and negatives.
    """
    scores, labels = np.asarray(scores), np.asarray(labels)
    if scores.ndim not in (1, 2) or scores.shape != labels.shape:
        raise ValueError(
            f"scores and labels must both be [n] or [n, labels], got {scores.shape} and "
            f"{labels.shape}; for classes [n] pass labels one-hot, for one-against-the-rest"
        )
    if scores.ndim == 1:
        scores, labels = scores[:, None], labels[:, None]
    scores, labels, mask = _on_host(scores, labels, mask)
    counted, positive = _counted(np, labels, mask), labels > 0
    if np.isnan(scores[counted]).any():
        raise ValueError("scores of counted nodes must not be NaN; the model may have diverged")
    num_positive = (positive & counted).sum(0)
    usable = np.flatnonzero((num_positive > 0) & (num_positive < counted.sum(0)))
    if usable.size == 0:
        raise ValueError("no label has both positive and negative nodes: ROC-AUC is undefined")
    areas = [_area(scores[c, k], positive[c, k]) for k in usable for c in [counted[:, k]]]
    return float(np.mean(areas))


class Ranks(NamedTuple):
    """Ranks of each row among all that are counted, from NumPy or JAX arrays, traced or not.

    Metrics are NaN without positives or without negatives.

    Attributes:
        is_positive: bool [n], the positives, of which the metrics are means.
        num_negatives: int32 [], rows that are negative.
        lower: int32 [n], negatives of a lower score.
        no_higher: int32 [n], negatives of the same score or a lower one.
        positives: int32 [n], positives of the same score or a higher one.
    """

    is_positive: Any
    num_negatives: Any
    lower: Any
    no_higher: Any
    positives: Any

    def roc_auc(self) -> Any:
        """The share of pairs of a positive and a negative in the right order, half where equal."""
        return self._mean((self.lower + self.no_higher) / (2 * self.num_negatives))

    def average_precision(self) -> Any:
        """The mean, over the positives, of the precision among rows with no lower score."""
        found = self.positives + self.num_negatives - self.lower
        return self._mean(self.positives / found)

    def hits_at(self, k: int) -> Any:
        """The share of positives with a score above that of the k-th highest negative."""
        return self._mean(self.num_negatives - self.lower < k)

    def _mean(self, values: Any) -> Any:
        xp = _namespace(self.is_positive)
        # A row that does not count may be 0 / 0.
        mean = xp.where(self.is_positive, values, 0).sum() / self.is_positive.sum()
        return xp.where(self.num_negatives > 0, mean, xp.nan)


def ranks_of(scores: Array, labels: Array, mask: Array | None = None) -> Ranks:
    """Ranks rows by score.

    Args:
        scores: float [n], higher for rows more likely positive; NaN is the worst score of its row.
        labels: 1 or 0, [n].
        mask: bool [n], the rows that count (None: all).

    Returns:
        The ranks; of NumPy or JAX arrays, as the scores.
    """
    xp = _namespace(scores, labels, mask)
    counted = _counted(xp, labels, mask)
    sides = counted & (labels > 0), counted & (labels == 0)
    scores = xp.where(xp.isnan(scores), xp.where(sides[0], -xp.inf, xp.inf), scores)
    # Others come last, after every score.
    positives, negatives = (xp.sort(xp.where(side, scores, xp.inf)) for side in sides)
    lower = xp.searchsorted(negatives, scores, side="left")
    num_negatives = sides[1].sum()
    no_higher = xp.minimum(xp.searchsorted(negatives, scores, side="right"), num_negatives)
    above = sides[0].sum() - xp.searchsorted(positives, scores, side="left")
    return Ranks(sides[0], num_negatives, lower, no_higher, above)


def average_precision(scores: Array, labels: Array, mask: Array | None = None) -> float:
    """Computes the average precision, the area under the curve of precision and recall.

    AP = sum_n (R_n - R_(n-1)) P_n over the distinct scores, from the highest on

    Args:
        scores: float [n], higher for rows more likely positive.
        labels: 0 and 1, [n].
        mask: bool [n], the rows that count (None: all).

    Returns:
        A number in [0, 1].

    Raises:
        ValueError: if shapes do not fit, or there are no positives or no negatives.
    """
    return float(_ranked(scores, labels, mask).average_precision())


def hits_at(k: int, scores: Array, labels: Array, mask: Array | None = None) -> float:
    """Computes Hits@k, the share of positives above the k-th highest negative, as OGB does.

    Args:
        k: at least 1.
        scores, labels, mask: as of `average_precision`.

    Returns:
        A number in [0, 1].

    Raises:
        ValueError: as of `average_precision`.
    """
    return float(_ranked(scores, labels, mask).hits_at(k))


def _ranked(scores: Array, labels: Array, mask: Array | None) -> Ranks:
    scores, labels = np.asarray(scores), np.asarray(labels)
    if scores.ndim != 1 or scores.shape != labels.shape:
        raise ValueError(
            f"scores and labels must both be [n], got {list(scores.shape)} and {list(labels.shape)}"
        )
    if np.isnan(scores).any():
        raise ValueError("scores must not be NaN; the model may have diverged")
    found = ranks_of(scores, labels, None if mask is None else np.asarray(mask))
    if not found.is_positive.any() or not found.num_negatives:
        raise ValueError("there are no positives, or no negatives: there is nothing to rank")
    return found


def _area(scores: np.ndarray, positive: np.ndarray) -> float:
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(sizes) - (sizes - 1) / 2)[group]
    num_positive = int(positive.sum())
    num_negative = len(positive) - num_positive
    smallest = num_positive * (num_positive + 1) / 2
    return (ranks[positive].sum() - smallest) / (num_positive * num_negative)


def _namespace(*arrays: Array | None) -> ModuleType:
    return jnp if any(isinstance(array, jax.Array) for array in arrays) else np


def _counted(xp: ModuleType, labels: Array, mask: Array | None) -> Any:
    """Bool in the shape of the labels: True for known labels of nodes in the mask."""
    # NaN, an unknown label, compares False.
    known = xp.asarray(labels) >= 0
    if mask is None:
        return known
    return known & (xp.asarray(mask) if labels.ndim == 1 else xp.asarray(mask)[:, None])


def _predicted_classes(xp: ModuleType, outputs: Array) -> Any:
    """The class of each node; -1, which is no class, for logits with a NaN."""
    if outputs.ndim == 1:
        return xp.asarray(outputs)
    # The largest of logits with a NaN is, for argmax, the NaN.
    return xp.where(xp.isnan(outputs).any(axis=1), -1, xp.argmax(outputs, axis=1))


def _check(outputs: Array, labels: Array, mask: Array | None) -> None:
    """Checks shapes and dtypes, which traced arrays have too."""
    single = labels.ndim == 1
    if not (single or labels.ndim == 2) or (single and labels.dtype.kind not in "iu"):
        raise ValueError(
            f"labels must be integer [n] or 0 and 1 [n, labels], got {labels.dtype} {labels.shape}"
        )
    if single and outputs.ndim == 1:
        fits = outputs.shape == labels.shape and outputs.dtype.kind in "iu"
    elif single:
        fits = outputs.ndim == 2 and len(outputs) == len(labels) and outputs.shape[1] > 0
    else:
        fits = outputs.shape == labels.shape
    if not fits:
        raise ValueError(
            f"outputs {outputs.dtype} {outputs.shape} do not fit labels {labels.shape}: expected "
            + ("logits [n, classes] or integer classes [n]" if single else "logits of that shape")
        )
    if mask is not None and (mask.shape != labels.shape[:1] or mask.dtype != np.bool_):
        raise ValueError(f"mask must be bool {labels.shape[:1]}, got {mask.dtype} {mask.shape}")


def _on_host(
    outputs: Array, labels: Array, mask: Array | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The arguments as NumPy arrays, with checked values."""
    outputs, labels = np.asarray(outputs), np.asarray(labels)
    mask = None if mask is None else np.asarray(mask)
    _check(outputs, labels, mask)
    counted = _counted(np, labels, mask)
    if not counted.any():
        raise ValueError("no node counts: the mask is empty, or holds no node with a label")
    if labels.ndim == 2 and not np.isin(labels[counted], (0, 1)).all():
        raise ValueError("multi-label labels must be 0 or 1; for classes pass integer [n]")
    if labels.ndim == 1 and outputs.ndim == 2 and labels.max() >= outputs.shape[1]:
        raise ValueError(
            f"labels reach class {labels.max()}, but outputs have {outputs.shape[1]} columns"
        )
    return outputs, labels, mask


def __dir__() -> list[str]:
    return sorted(__all__)
