"""The seconds that a device computes in a step, by the cost models of a model's layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.partition import Partition, partition
from jaxgraph.planner.cost.linear_model import CostModel

if TYPE_CHECKING:
    from jaxgraph.layout.manifest import Manifest
    from jaxgraph.planner.plan import Option

__all__ = ["LayerTimes"]


@dataclass(frozen=True, eq=False)
class LayerTimes:
    """The slowest part's convolutions, forward and backward, for `choose(..., cost_model=)`.

    Args:
        layers: a cost model for each layer of the model, in order; of `fit_layers`.
        graph: the graph that the choice is made for.
        name: its name in a plan.
    """

    layers: Sequence[CostModel]
    graph: Graph
    name: str = "cost model"
    _parts: dict[tuple[int, str], Partition] = field(default_factory=dict, init=False, repr=False)

    def seconds(self, model: Any, manifest: Manifest, option: Option) -> float:
        """Returns the seconds of a step, messages not counted.

        Raises:
            ValueError: a layer of the model is not that of its cost model.
        """
        found = [type(layer.convolution).__name__ for layer in getattr(model, "layers", ())]
        known = [each.layer.split()[0] for each in self.layers]
        if found != known:
            raise ValueError(
                f"cost_model: knows layers {', '.join(known) or 'none'}; the model has "
                f"{', '.join(found) or 'none that it could know'}: fit one to each layer"
            )
        key = (manifest.num_parts, option.method)
        if key not in self._parts:
            self._parts[key] = partition(self.graph, manifest.num_parts, method=option.method)
        times = [each.predict_parts(self.graph, self._parts[key]) for each in self.layers]
        return float(np.max(np.sum(times, axis=0)))
