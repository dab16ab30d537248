"""Where nodes go and what a device holds: costs of parts, and plans of memory.

A cost model learned from measured times predicts the cost of a part. The memory manager moves the
fewest bytes (ROC, section 5), or chooses what to recompute as well by a mixed-integer program. Only
`profile` runs programs, and only it imports jax.
"""

from typing import TYPE_CHECKING, Any

from jaxgraph.planner.cache_policies import least_recently_used, no_cache, write_back_cache
from jaxgraph.planner.choices import Choices, policy_of
from jaxgraph.planner.cost_model import CostModel, PredictionError, Sample, fit_layers, node_cost
from jaxgraph.planner.dataflow import Dataflow, Operation, Rates, Tensor
from jaxgraph.planner.dynamic_program import least_transfer
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
from jaxgraph.planner.integer_program import plan_memory
from jaxgraph.planner.memory_schedule import MemorySchedule, simulate
from jaxgraph.planner.step_dataflow import Shape, training_step

if TYPE_CHECKING:
    from jaxgraph.planner.profiling import Reference, profile

__all__ = [
    "DEFAULT",
    "EDGES_ONLY",
    "FEATURES",
    "NODES_AND_EDGES",
    "ROC_PRINTED",
    "Access",
    "Choices",
    "CostModel",
    "Dataflow",
    "Feature",
    "MemorySchedule",
    "Operation",
    "PredictionError",
    "Rates",
    "Reference",
    "Sample",
    "Shape",
    "Tensor",
    "fit_layers",
    "least_recently_used",
    "least_transfer",
    "no_cache",
    "node_cost",
    "part_features",
    "plan_memory",
    "policy_of",
    "profile",
    "simulate",
    "training_step",
    "write_back_cache",
]

if not TYPE_CHECKING:  # pyright sees the import above and reports names that do not exist

    def __getattr__(name: str) -> Any:
        if name in ("Reference", "profile"):
            from jaxgraph.planner import profiling

            return getattr(profiling, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
