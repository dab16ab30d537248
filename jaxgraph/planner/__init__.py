"""The cost of a layer on a part: features, a model learned from measured times, node costs.

Only `profile` runs programs, and only it imports jax.
"""

from typing import TYPE_CHECKING, Any

from jaxgraph.planner.cost_model import CostModel, PredictionError, Sample, fit_layers, node_cost
from jaxgraph.planner.features import (
    DEFAULT,
    EDGES_ONLY,
    FEATURES,
    NODES_AND_EDGES,
    ROC_PRINTED,
    Access,
    Feature,
    part_features,
)

if TYPE_CHECKING:
    from jaxgraph.planner.profiling import Reference, profile

__all__ = [
    "DEFAULT",
    "EDGES_ONLY",
    "FEATURES",
    "NODES_AND_EDGES",
    "ROC_PRINTED",
    "Access",
    "CostModel",
    "Feature",
    "PredictionError",
    "Reference",
    "Sample",
    "fit_layers",
    "node_cost",
    "part_features",
    "profile",
]

if not TYPE_CHECKING:  # pyright sees the import above and reports names that do not exist

    def __getattr__(name: str) -> Any:
        if name in ("Reference", "profile"):
            from jaxgraph.planner import profiling

            return getattr(profiling, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
