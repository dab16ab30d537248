"""The plan of a training step, before it runs: where nodes go, what a device holds, which mode.

A cost model learned from measured times predicts the cost of a part. The memory manager decides
what a device keeps, fetches and recomputes (ROC, sections 4 and 5). A dry run tells the memory, the
traffic and the time of a step on a machine, and `choose` takes the mode. Only `profile` runs
programs. Submodules are imported on first use: most of them do not import jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxgraph.planner.choice import Considered, StepTimes, choose, consider
    from jaxgraph.planner.cost.features import (
        DEFAULT,
        EDGES_ONLY,
        FEATURES,
        NODES_AND_EDGES,
        ROC_PRINTED,
        Access,
        Feature,
        part_features,
    )
    from jaxgraph.planner.cost.layer_times import LayerTimes
    from jaxgraph.planner.cost.linear_model import (
        CostModel,
        PredictionError,
        Sample,
        fit_layers,
        node_cost,
    )
    from jaxgraph.planner.cost.profiling import Reference, profile
    from jaxgraph.planner.degree_model import GraphCounts
    from jaxgraph.planner.memory.cache_policies import (
        least_recently_used,
        no_cache,
        write_back_cache,
    )
    from jaxgraph.planner.memory.choices import Choices, policy_of
    from jaxgraph.planner.memory.dataflow import Dataflow, Operation, Rates, Tensor
    from jaxgraph.planner.memory.dynamic_program import least_transfer
    from jaxgraph.planner.memory.integer_program import plan_memory
    from jaxgraph.planner.memory.schedule import MemorySchedule, simulate
    from jaxgraph.planner.memory.step_dataflow import Shape, training_step
    from jaxgraph.planner.plan import Option, Plan, load_plan
    from jaxgraph.planner.policy_search import MemoryPlan, Needed, cheapest_fitting
    from jaxgraph.planner.step_cost import DryRun, dry_run
    from jaxgraph.planner.streaming import fewest_parts, streamed_needs
    from jaxgraph.planner.targets import Target, find_target

_MODULES = {
    "choice": ("Considered", "StepTimes", "choose", "consider"),
    "cost.layer_times": ("LayerTimes",),
    "cost.linear_model": ("CostModel", "PredictionError", "Sample", "fit_layers", "node_cost"),
    "cost.features": (
        *("DEFAULT", "EDGES_ONLY", "FEATURES", "NODES_AND_EDGES", "ROC_PRINTED"),
        *("Access", "Feature", "part_features"),
    ),
    "cost.profiling": ("Reference", "profile"),
    "degree_model": ("GraphCounts",),
    "policy_search": ("MemoryPlan", "Needed", "cheapest_fitting"),
    "step_cost": ("DryRun", "dry_run"),
    "streaming": ("fewest_parts", "streamed_needs"),
    "memory.cache_policies": ("least_recently_used", "no_cache", "write_back_cache"),
    "memory.choices": ("Choices", "policy_of"),
    "memory.dataflow": ("Dataflow", "Operation", "Rates", "Tensor"),
    "memory.dynamic_program": ("least_transfer",),
    "memory.integer_program": ("plan_memory",),
    "memory.schedule": ("MemorySchedule", "simulate"),
    "memory.step_dataflow": ("Shape", "training_step"),
    "plan": ("Option", "Plan", "load_plan"),
    "targets": ("Target", "find_target"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "DEFAULT",
    "EDGES_ONLY",
    "FEATURES",
    "NODES_AND_EDGES",
    "ROC_PRINTED",
    "Access",
    "Choices",
    "Considered",
    "CostModel",
    "Dataflow",
    "DryRun",
    "Feature",
    "GraphCounts",
    "LayerTimes",
    "MemoryPlan",
    "MemorySchedule",
    "Needed",
    "Operation",
    "Option",
    "Plan",
    "PredictionError",
    "Rates",
    "Reference",
    "Sample",
    "Shape",
    "StepTimes",
    "Target",
    "Tensor",
    "cheapest_fitting",
    "choose",
    "consider",
    "dry_run",
    "fewest_parts",
    "find_target",
    "fit_layers",
    "least_recently_used",
    "least_transfer",
    "load_plan",
    "no_cache",
    "node_cost",
    "part_features",
    "plan_memory",
    "policy_of",
    "profile",
    "simulate",
    "streamed_needs",
    "training_step",
    "write_back_cache",
]

if not TYPE_CHECKING:  # pyright sees the imports above and reports names that do not exist

    def __getattr__(name: str) -> Any:
        if name in _MODULE_OF:
            return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
