"""The time of a layer on a part, learned online from measured parts.

ROC (section 4.1) fits a linear model of vertex features to the times of all parts by least squares.
Here errors are relative, weights are not negative, and there is a small ridge: few samples or
collinear features give a coarse model, not an absurd one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from jaxgraph.graph import Graph
from jaxgraph.kinds import check_graph, kind_of
from jaxgraph.partition.node_cost import NodeCost
from jaxgraph.planner.cost.features import (
    DEFAULT,
    Access,
    Neighbors,
    checked_features,
    weighted_cost,
)

FORMAT = 1
"""Version of the file format; others are refused."""
_RIDGE = 1e-4
"""Relative to the squared length of a scaled column, 1."""


@dataclass(frozen=True)
class Sample:
    """The measured time of a layer on a part.

    Args:
        layer: the layer's type and widths, such as "GCNConv 128->64"; ", first" follows for a
            model's first layer, whose input has no gradient.
        mode: the schedule of the graph, "domain" or "sar".
        hardware: the device.
        access: how the layer reads rows.
        graph: name of the graph.
        part: index of the part.
        features: all features of the part, by name.
        seconds: forward and backward.
        repeat_error: relative difference between two measurements.
    """

    layer: str
    mode: str
    hardware: str
    access: Access
    graph: str
    part: int
    features: Mapping[str, float]
    seconds: float
    repeat_error: float = 0.0


class PredictionError(NamedTuple):
    """Relative errors of predictions, |predicted / measured - 1|.

    Attributes:
        median, percentile_90: of the parts.
        num_parts: number of parts.
    """

    median: float
    percentile_90: float
    num_parts: int

    @classmethod
    def of(cls, predicted: np.ndarray, measured: np.ndarray) -> PredictionError:
        """Compares predictions with measurements, each float [parts], at least one."""
        errors = np.abs(predicted / measured - 1)
        return cls(float(np.median(errors)), float(np.percentile(errors, 90)), errors.size)


@dataclass(frozen=True, eq=False)
class CostModel:
    """The time of one layer as a sum of features of a part.

        seconds(p) = sum_f w_f x_f(p),   w = argmin_{w >= 0} sum_s (w x_s / t_s - 1)^2 + ridge

    The columns x / t are scaled to length 1, so that the ridge has no unit. The model holds all
    samples, in an order that does not depend on their arrival, and reports its error by predicting
    each from the others.

    Args:
        layer, mode, hardware, access: those of its samples; see `Sample`.
        features: names of `jaxgraph.planner.cost.features.FEATURES`.
        values: float64 [samples, features].
        seconds: float64 [samples], measured.

    Raises:
        ValueError: a feature is unknown, or a value is negative or a time not positive, or their
            numbers differ.

    References:
        ROC, section 4.1, equations 4 to 7.
    """

    layer: str
    mode: str
    hardware: str
    access: Access
    features: tuple[str, ...] = DEFAULT
    values: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    seconds: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        count = len(checked_features(self.features))
        seconds = np.asarray(self.seconds, np.float64)
        values = np.asarray(self.values, np.float64).reshape(-1, count)
        if len(values) != len(seconds) or not np.all(values >= 0) or not np.all(seconds > 0):
            raise ValueError(
                f"values, seconds: expected [samples, {count}] numbers of at least 0, and as many "
                "times above 0."
            )
        order = np.lexsort((seconds, *values.T))
        object.__setattr__(self, "values", values[order])
        object.__setattr__(self, "seconds", seconds[order])

    @classmethod
    def fit(cls, samples: Iterable[Sample], features: Sequence[str] = DEFAULT) -> CostModel:
        """Fits a model to samples of one layer.

        Args:
            samples: at least one, such as those of `jaxgraph.planner.profile` of one layer.
            features: names of `jaxgraph.planner.cost.features.FEATURES`.

        Returns:
            The model.

        Raises:
            ValueError: there is no sample, they are of several layers, modes, devices or widths, or
                a feature is unknown.
        """
        samples = list(samples)
        if not samples:
            raise ValueError(
                "samples: got none; expected those that jaxgraph.planner.profile returns."
            )
        first = samples[0]
        kind = first.layer, first.mode, first.hardware, first.access
        return cls(*kind, tuple(features)).update(samples)

    def update(self, samples: Iterable[Sample]) -> CostModel:
        """Returns a model that has learned from more samples, in any order.

        Args:
            samples: of the same layer, mode, device and width.

        Returns:
            The model.

        Raises:
            ValueError: one is of another layer, mode, device or width.
        """
        samples = list(samples)
        for sample in samples:
            for name in ("layer", "mode", "hardware", "access"):
                found, expected = getattr(sample, name), getattr(self, name)
                if found != expected:
                    raise ValueError(f"samples: {name} is {found!r}; expected {expected!r}")
        values = [[sample.features[name] for name in self.features] for sample in samples]
        more = np.array(values, np.float64).reshape(len(samples), len(self.features))
        seconds = np.array([sample.seconds for sample in samples], np.float64)
        return dataclasses.replace(
            self,
            values=np.concatenate([self.values, more]),
            seconds=np.concatenate([self.seconds, seconds]),
        )

    @cached_property
    def weights(self) -> Mapping[str, float]:
        """Seconds per unit of each feature, by name, not negative.

        Raises:
          ValueError: there are no samples.
        """
        return dict(zip(self.features, self._weights.tolist(), strict=True))

    @cached_property
    def _weights(self) -> np.ndarray:
        if self.seconds.size == 0:
            raise ValueError(
                f"the cost model of {self.layer} has no samples; give it those of "
                "jaxgraph.planner.profile by update(samples)"
            )
        return _relative_nnls(self.values, self.seconds)

    def predict(self, values: np.ndarray) -> np.ndarray:
        """Predicts the seconds of parts, float64 [parts], from float [parts, features]."""
        return np.asarray(values, np.float64) @ self._weights

    def error(self, samples: Iterable[Sample] | None = None) -> PredictionError:
        """Reports how well the model predicts.

        Args:
            samples: parts that it did not learn from; None: its own, each predicted by a model that
                learned from all parts with other features.

        Returns:
            The relative errors.

        Raises:
            ValueError: there are not two different samples of its own.
        """
        if samples is not None:
            none = np.zeros((0, len(self.features)))
            held = dataclasses.replace(self, values=none, seconds=np.zeros(0)).update(samples)
            return PredictionError.of(self.predict(held.values), held.seconds)
        group = np.unique(self.values, axis=0, return_inverse=True)[1].reshape(-1)
        count = int(group.max(initial=-1)) + 1
        if count < 2:
            raise ValueError(
                f"the cost model of {self.layer} has {count} different part(s); its error needs two"
            )
        predicted = np.zeros(self.seconds.size)
        for index in range(count):
            left_out = group == index
            weights = _relative_nnls(self.values[~left_out], self.seconds[~left_out])
            predicted[left_out] = self.values[left_out] @ weights
        return PredictionError.of(predicted, self.seconds)

    def save(self, path: str | Path) -> None:
        """Writes the model to a file in JSON.

        Args:
            path: of the file.
        """
        arrays = {"values": self.values.tolist(), "seconds": self.seconds.tolist()}
        fields = {"format": FORMAT, **dataclasses.asdict(self), **arrays}
        Path(path).write_text(json.dumps(fields, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> CostModel:
        """Reads a model from a file.

        Args:
            path: of the file, as `save` wrote it.

        Returns:
            The model.

        Raises:
            ValueError: the file is no cost model, or of another version.
        """
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            if found.pop("format") != FORMAT:
                raise ValueError(f"the format is not {FORMAT}")
            access, features = Access(**found.pop("access")), tuple(found.pop("features"))
            return cls(access=access, features=features, **found)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is no cost model of this version of jaxgraph: {error}"
            ) from error


def fit_layers(
    samples: Iterable[Sample], features: Sequence[str] = DEFAULT
) -> dict[str, CostModel]:
    """Fits a model to the samples of each layer.

    Args:
        samples: such as those of `jaxgraph.planner.profile`.
        features: names of `jaxgraph.planner.cost.features.FEATURES`.

    Returns:
        Models by the name of their layer. Layers of the same type and widths have one name.

    Raises:
        ValueError: samples of a layer are of several modes, devices or widths, or a feature is
            unknown.
    """
    by_layer: dict[str, list[Sample]] = {}
    for sample in samples:
        by_layer.setdefault(sample.layer, []).append(sample)
    return {layer: CostModel.fit(some, features) for layer, some in by_layer.items()}


def node_cost(
    model: CostModel | Iterable[CostModel] | Mapping[str, CostModel], graph: Graph
) -> NodeCost:
    """Predicts the costs of the nodes of a graph, for ``partition(..., method="cost")``.

    Args:
        model: the model of a layer, or one for every layer, to add up: a list, or the mapping that
          `fit_layers` returns.
        graph: the graph, even one never seen.

    Returns:
        Costs in seconds of nodes with their edges, of halo rows, padding and cache misses.

    Raises:
        ValueError: there is no model, one without samples, or an argument is of another kind.
    """
    given: Any = model.values() if isinstance(model, Mapping) else model
    models: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    for each in models or [None]:
        if not isinstance(each, CostModel):
            raise ValueError(
                f"model is or has {kind_of(each)}; expected the CostModels of fit_layers(samples), "
                "whose samples jaxgraph.planner.profile(network, graph, parts) returns"
            )
    check_graph(graph, "node_cost(model, graph)")
    neighbors = Neighbors(graph)
    costs = [weighted_cost(each.weights, neighbors, each.access) for each in models]
    return NodeCost(
        np.sum([cost.per_node for cost in costs], axis=0),
        sum(cost.per_halo_row for cost in costs),
        sum(cost.per_padded_row for cost in costs),
        sum(cost.per_padded_halo_row for cost in costs),
        sum(cost.per_part for cost in costs),
        tuple(miss for cost in costs for miss in cost.misses),
    )


def _relative_nnls(values: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """argmin_{w >= 0} |values w / seconds - 1|^2 + ridge, float64 [features]."""
    relative = values / seconds[:, None]
    lengths = np.sqrt(np.sum(relative**2, axis=0))
    lengths[lengths == 0] = 1.0
    count = values.shape[1]
    scaled = np.concatenate([relative / lengths, np.sqrt(_RIDGE) * np.eye(count)])
    target = np.concatenate([np.ones(seconds.size), np.zeros(count)])
    return optimize.nnls(scaled, target)[0] / lengths
